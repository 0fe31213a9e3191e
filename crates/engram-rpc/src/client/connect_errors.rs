//! Why a connection failed, in one line: the errors of the transport are nested and name its internals.

use std::error::Error;
use std::io;

use tonic::Status;

/// Describes why no connection could be opened.
pub(super) fn describe_connect_failure(error: &(dyn Error + 'static)) -> String {
    if join_causes(error).contains("dns error") {
        return "the host name cannot be resolved".into();
    }
    let Some(kind) = io_error_kind(error) else {
        return "the connection failed".into();
    };
    match kind {
        io::ErrorKind::ConnectionRefused => {
            "connection refused (is it running? is the port right?)".into()
        }
        io::ErrorKind::NotFound => "the socket does not exist (is the server running?)".into(),
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => "it closed the connection".into(),
        io::ErrorKind::Other => "the connection failed".into(),
        // A plain text, for example "host unreachable".
        other => other.to_string(),
    }
}

/// Describes why a call failed on an open connection.
pub(super) fn describe_call_failure(status: &Status) -> String {
    if status.message().contains("mapped from HTTP status code") {
        "it is not a gRPC server".into()
    } else if status.source().is_some() {
        "it closed the connection".into()
    } else {
        // The server's text.
        status.message().into()
    }
}

/// Describes why a TLS handshake failed. `name` is the one that the server's certificate must have.
pub(super) fn describe_tls_failure(causes: &str, name: &str) -> String {
    let causes = causes.to_lowercase();
    let contains = |words: &[&str]| words.iter().any(|word| causes.contains(word));
    if contains(&["certificaterequired", "certificate required"]) {
        "it requires a client certificate; pass `certificate` and `key`".into()
    } else if contains(&["not valid for name", "notvalidforname"]) {
        format!(
            "its certificate is not valid for `{name}`; pass a name from the certificate as `server_name`"
        )
    } else if contains(&["expired"]) {
        "its certificate has expired".into()
    } else if contains(&["not valid yet", "notvalidyet"]) {
        "its certificate is not valid yet".into()
    } else if contains(&["invalid peer certificate"]) {
        "its certificate is not signed by the authority given as `ca`".into()
    } else if contains(&["fatal alert"]) {
        "it rejects this client's certificate or TLS version".into()
    } else if contains(&["corrupt message", "invaliddata"]) {
        "it does not use TLS; create the client without `ca`".into()
    } else {
        "the handshake failed".into()
    }
}

/// True if a failure to connect is about certificates or TLS itself, so that trying again would not help.
pub(super) fn is_tls_failure(causes: &str) -> bool {
    let causes = causes.to_lowercase();
    // The server closed the connection: it may be restarting.
    if causes.contains("handshake eof") {
        return false;
    }
    [
        "certificate",
        "tls",
        "alert",
        "handshake",
        "invaliddata",
        "corrupt message",
    ]
    .iter()
    .any(|word| causes.contains(word))
}

/// Returns the texts of an error and of all its causes, without repetitions.
pub(super) fn join_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let cause_text = error.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        cause = error.source();
    }
    text
}

/// Returns the text of the innermost cause of an error.
pub(super) fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut root = error;
    while let Some(cause) = root.source() {
        root = cause;
    }
    root.to_string()
}

fn io_error_kind(error: &(dyn Error + 'static)) -> Option<io::ErrorKind> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return Some(error.kind());
        }
        next = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::describe_tls_failure;

    #[test]
    fn a_certificate_for_another_name_is_reported_with_the_requested_name() {
        assert_eq!(
            describe_tls_failure("invalid peer certificate: NotValidForName", "h"),
            "its certificate is not valid for `h`; pass a name from the certificate as `server_name`"
        );
    }
}
