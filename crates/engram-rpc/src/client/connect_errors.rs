//! Why a connection failed, in one line: the errors of the transport are nested and name its internals.

use std::error::Error;
use std::io;

use tonic::Status;

use super::transport::OpenError;
use crate::file_limit;

/// The reason if no connection was opened in time.
pub(super) const NO_CONNECTION: &str =
    "it does not answer (is the address right? does a firewall block the port?)";

/// The reason if a connection was opened, but the server did not respond in time.
pub(super) const NO_RESPONSE: &str =
    "it accepts connections, but does not respond (is it frozen, or not an Engram server?)";

/// The reason for a call that timed out while it waited for another call, which was opening their shared connection.
pub(super) const OTHER_CALL_CONNECTS: &str = "another call of this client is still connecting";

/// What a peer is, judged by the first bytes that it sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Peer {
    /// A server that uses TLS.
    Tls,
    /// A server of HTTP/2, and thus perhaps of gRPC, without TLS.
    Http2,
    Http1,
    Other,
}

impl Peer {
    /// Recognises a program by the first bytes that it sent; `None` if it sent none.
    pub(super) fn recognise(first: &[u8]) -> Option<Self> {
        Some(match first {
            [] => return None,
            // A handshake or alert record; the second byte is the version.
            [0x15 | 0x16, 0x03, ..] => Self::Tls,
            // A server of HTTP/2 first sends a SETTINGS frame, or a GOAWAY frame if it closes the connection. Both
            // belong to stream 0.
            [0, _, _, 4 | 7, _, 0, 0, 0, 0, ..] => Self::Http2,
            // Some servers answer a request that they do not understand with an HTML page only.
            [b'H', b'T', b'T', b'P', b'/', ..] | [b'<', ..] => Self::Http1,
            _ => Self::Other,
        })
    }
}

/// Describes why no connection could be opened.
pub(super) fn describe_open_failure(error: &OpenError) -> String {
    match error {
        OpenError::UnknownHost(why) => {
            let why = why.to_string();
            let why = why.rsplit_once(": ").map_or(&*why, |(_, why)| why);
            format!("the host name cannot be resolved ({why})")
        }
        OpenError::Io(error) => describe_io(error),
    }
}

/// Describes an error of the operating system with its name, and with what to do if it is not about the peer.
fn describe_io(error: &io::Error) -> String {
    let advice = match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            return "connection refused (is it running? is the port right?)".into();
        }
        io::ErrorKind::NotFound => {
            return "the socket does not exist (is the server running?)".into();
        }
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => return "it closed the connection".into(),
        io::ErrorKind::PermissionDenied => "; may this user use the socket?",
        _ => file_limit::advice(error),
    };
    format!("{error}{advice}")
}

/// Describes why a call failed on an open connection.
pub(super) fn describe_call_failure(status: &Status) -> String {
    if status.message().contains("mapped from HTTP status code") {
        "a web server listens there, not an Engram server; is the port right?".into()
    } else if let Some(source) = status.source() {
        system_error(source).map_or_else(|| "it closed the connection".into(), describe_io)
    } else {
        // The server's text.
        status.message().into()
    }
}

/// The error of the operating system among an error and its causes.
fn system_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a io::Error> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let found = error.downcast_ref::<io::Error>();
        if found.is_some_and(|found| found.raw_os_error().is_some()) {
            return found;
        }
        cause = error.source();
    }
    None
}

/// Describes why a TLS handshake failed. `name` is the one that the server's certificate must have.
pub(super) fn describe_tls_failure(causes: &str, name: &str) -> String {
    let all_causes = causes;
    let causes = causes.to_lowercase();
    let contains = |words: &[&str]| words.iter().any(|word| causes.contains(word));
    if contains(&["certificaterequired", "certificate required"]) {
        "it requires a client certificate; pass `certificate` and `key`".into()
    } else if contains(&["not valid for name", "notvalidforname"]) {
        format!(
            "its certificate is not valid for `{name}`; pass one of the names in its subjectAltName as `server_name` \
             (a common name does not count)"
        )
    } else if contains(&["fatal alert: certificateexpired"]) {
        "it rejects this client's certificate, which has expired".into()
    } else if contains(&["expired"]) {
        "its certificate has expired".into()
    } else if contains(&["not valid yet", "notvalidyet"]) {
        "its certificate is not valid yet".into()
    } else if contains(&["unknownissuer"]) {
        "its certificate is not signed by the authority given as `ca`".into()
    } else if contains(&["causedasendentity"]) {
        "its certificate is that of an authority (CA:TRUE), which a server must not use; issue a server certificate"
            .into()
    } else if let Some((_, cause)) = all_causes.rsplit_once("invalid peer certificate: ") {
        format!("its certificate cannot be used: {cause}")
    } else if contains(&["fatal alert"]) {
        "it rejects this client's certificate or TLS version".into()
    } else if contains(&["corrupt message", "invaliddata"]) {
        "it does not use TLS; omit `ca`".into()
    } else {
        format!("the cause that was reported is: {all_causes}")
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

#[cfg(test)]
mod tests {
    use std::io;

    use super::{OpenError, Peer, describe_open_failure, describe_tls_failure};

    #[test]
    fn errors_of_the_system_are_named() {
        let describe =
            |code| describe_open_failure(&OpenError::Io(io::Error::from_raw_os_error(code)));
        assert_eq!(
            describe(24),
            "Too many open files (os error 24); close some files, or raise the limit of open files (`ulimit -n`)"
        );
        assert_eq!(
            describe(13),
            "Permission denied (os error 13); may this user use the socket?"
        );
        let reset = OpenError::Io(io::ErrorKind::ConnectionReset.into());
        assert_eq!(describe_open_failure(&reset), "it closed the connection");
    }

    #[test]
    fn programs_are_recognised_by_their_first_bytes() {
        for (first, expected) in [
            (&b""[..], None),
            (&[0x15, 3, 3, 0, 2], Some(Peer::Tls)),
            (&[0, 0, 18, 4, 0, 0, 0, 0, 0], Some(Peer::Http2)),
            (b"HTTP/1.1 400 Bad Request", Some(Peer::Http1)),
            (b"<!DOCTYPE HTML>", Some(Peer::Http1)),
            (b"SSH-2.0-OpenSSH_9.6", Some(Peer::Other)),
            (&[0, 0], Some(Peer::Other)),
        ] {
            assert_eq!(Peer::recognise(first), expected, "{first:?}");
        }
    }

    #[test]
    fn a_certificate_for_another_name_is_reported_with_the_requested_name() {
        assert_eq!(
            describe_tls_failure("invalid peer certificate: NotValidForName", "h"),
            "its certificate is not valid for `h`; pass one of the names in its subjectAltName as `server_name` (a \
             common name does not count)"
        );
    }

    #[test]
    fn expired_certificates_of_server_and_client_have_different_texts() {
        for (cause, expected) in [
            (
                "invalid peer certificate: Expired",
                "its certificate has expired",
            ),
            (
                "received fatal alert: CertificateExpired",
                "it rejects this client's certificate, which has expired",
            ),
        ] {
            assert_eq!(describe_tls_failure(cause, "h"), expected);
        }
    }

    #[test]
    fn each_problem_of_a_certificate_has_a_text_of_its_own() {
        for (cause, expected) in [
            (
                "UnknownIssuer",
                "its certificate is not signed by the authority given as `ca`",
            ),
            (
                "Other(OtherError(CaUsedAsEndEntity))",
                "its certificate is that of an authority (CA:TRUE), which a server must not use; issue a server \
                 certificate",
            ),
            ("BadEncoding", "its certificate cannot be used: BadEncoding"),
        ] {
            let causes = format!("transport error: invalid peer certificate: {cause}");
            assert_eq!(describe_tls_failure(&causes, "h"), expected);
        }
    }
}
