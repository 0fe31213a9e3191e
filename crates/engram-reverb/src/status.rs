//! Errors as dm-reverb's clients know them.

use engram_core::Error;
use tonic::{Code, Status};

/// Bytes of a status's text: it travels in headers.
const TEXT: usize = 2_000;

/// Bytes of a table's name in a text.
const NAME: usize = 200;

/// What a call ends with.
pub(crate) fn status(error: &Error) -> Status {
    let code = match error {
        // In these words, and no others: clients look for them.
        Error::UnknownTable { name, .. } => {
            let name = shortened(name, NAME);
            return Status::not_found(format!("Priority table {name} was not found"));
        }
        Error::Signature(_)
        | Error::Priority(_)
        | Error::InvalidArgument(_)
        | Error::Unsatisfiable(_)
        | Error::ExpiredStep(_) => Code::InvalidArgument,
        Error::DeadlineExceeded(_) => Code::DeadlineExceeded,
        // Clients try again: a table that was dropped is not found then.
        Error::Closed(_) | Error::Unavailable(_) => Code::Unavailable,
        Error::Handshake(_) => Code::Unauthenticated,
        Error::Payload(_) => Code::DataLoss,
        Error::OutOfMemory(_) | Error::Backpressure(_) => Code::ResourceExhausted,
        _ => Code::Internal,
    };
    Status::new(code, shortened(&error.to_string(), TEXT))
}

/// A status of data or requests that make no sense.
pub(crate) fn invalid(text: impl AsRef<str>) -> Status {
    Status::invalid_argument(shortened(text.as_ref(), TEXT))
}

/// The beginning of a text that is too long.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let end = (0..=most).rev().find(|at| text.is_char_boundary(*at));
    format!("{}...", text.split_at(end.unwrap_or(0)).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_table_is_named_as_clients_expect() {
        let error = Error::UnknownTable {
            name: "x".into(),
            known: vec!["a".into(), "b".into()],
        };
        let status = status(&error);
        assert_eq!(status.code(), Code::NotFound);
        assert_eq!(status.message(), "Priority table x was not found");
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(shortened("abcdé!", 5), "abcd...");
        assert_eq!(shortened("abcd", 4), "abcd");
    }
}
