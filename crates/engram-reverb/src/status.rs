//! Maps errors to the gRPC statuses that dm-reverb's clients expect.

use engram_core::Error;
use tonic::{Code, Status};

/// Longer status messages, which are sent in HTTP headers, are truncated to this many bytes, plus `...`.
const MAX_MESSAGE_BYTES: usize = 2_000;

/// Longer names of tables are truncated to this many bytes in a status message, plus `...`.
const MAX_NAME_BYTES: usize = 200;

/// The status for an error.
pub(crate) fn status(error: &Error) -> Status {
    let code = match error {
        // dm-reverb's clients match this exact text.
        Error::UnknownTable { name, .. } => {
            let name = shortened(name, MAX_NAME_BYTES);
            return Status::not_found(format!("Priority table {name} was not found"));
        }
        Error::Signature(_)
        | Error::Priority(_)
        | Error::InvalidArgument(_)
        | Error::Unsatisfiable(_)
        | Error::ExpiredStep(_) => Code::InvalidArgument,
        Error::DeadlineExceeded(_) => Code::DeadlineExceeded,
        // Clients retry on this code. If the table was dropped, the retry reports that it was not found.
        Error::Closed(_) | Error::Unavailable(_) => Code::Unavailable,
        Error::Handshake(_) => Code::Unauthenticated,
        Error::Payload(_) => Code::DataLoss,
        Error::OutOfMemory(_) | Error::Backpressure(_) => Code::ResourceExhausted,
        _ => Code::Internal,
    };
    Status::new(code, shortened(&error.to_string(), MAX_MESSAGE_BYTES))
}

/// `UNAVAILABLE` with the text of an error: clients retry.
pub(crate) fn unavailable(error: &Error) -> Status {
    Status::unavailable(shortened(&error.to_string(), MAX_MESSAGE_BYTES))
}

/// `INVALID_ARGUMENT` with this message.
pub(crate) fn invalid(text: impl AsRef<str>) -> Status {
    Status::invalid_argument(shortened(text.as_ref(), MAX_MESSAGE_BYTES))
}

/// Truncates a text of more than `max` bytes, and appends `...`.
pub(crate) fn shortened(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let end = (0..=max).rev().find(|end| text.is_char_boundary(*end));
    format!("{}...", text.split_at(end.unwrap_or(0)).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_table_has_the_text_that_clients_match() {
        let error = Error::UnknownTable {
            name: "x".into(),
            known: vec!["a".into(), "b".into()],
        };
        let status = status(&error);
        assert_eq!(status.code(), Code::NotFound);
        assert_eq!(status.message(), "Priority table x was not found");
    }

    #[test]
    fn long_texts_are_truncated_between_characters() {
        assert_eq!(shortened("abcdé!", 5), "abcd...");
        assert_eq!(shortened("abcd", 4), "abcd");
    }
}
