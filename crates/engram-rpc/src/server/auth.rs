//! Checks the token of every call.

use std::hint::black_box;
use std::sync::Arc;

use engram_core::Result;
use tonic::metadata::MetadataValue;
use tonic::service::Interceptor;
use tonic::{Request, Status};

use crate::check_token;

/// How a gRPC caller passes a token, for error texts.
const TOKEN_HINT: &str = "pass the server's token to the client as `token`, which sends it as metadata \
                          `authorization: Bearer TOKEN` (dm-reverb clients cannot send one)";

/// Accepts the calls that send the server's token. If the server has no token, accepts all calls.
#[derive(Clone)]
pub(super) struct TokenCheck {
    /// The value that `authorization` must have: `Bearer TOKEN`. `None` if the server has no token.
    expected: Option<Arc<[u8]>>,
}

impl TokenCheck {
    /// # Errors
    /// [`Error::InvalidArgument`] for a token that cannot be sent.
    pub(super) fn new(token: Option<&str>) -> Result<Self> {
        let Some(token) = token else {
            return Ok(Self { expected: None });
        };
        check_token(token)?;
        Ok(Self {
            expected: Some(format!("Bearer {token}").into_bytes().into()),
        })
    }

    /// Checks the value of `authorization`.
    ///
    /// # Errors
    /// Why the call is rejected, for an error text.
    pub(super) fn check(&self, given: Option<&[u8]>) -> Result<(), &'static str> {
        match (&self.expected, given) {
            (None, _) => Ok(()),
            (Some(expected), Some(given)) if constant_time_eq(given, expected) => Ok(()),
            (Some(_), Some(_)) => Err("wrong token"),
            (Some(_), None) => Err("token required, none sent"),
        }
    }
}

impl Interceptor for TokenCheck {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let given = request.metadata().get("authorization");
        let checked = self.check(given.map(MetadataValue::as_encoded_bytes));
        checked.map_err(|reason| Status::unauthenticated(format!("{reason}; {TOKEN_HINT}")))?;
        Ok(request)
    }
}

/// Compares in a time that does not depend on where the first difference is.
fn constant_time_eq(given: &[u8], expected: &[u8]) -> bool {
    let mut difference = given.len() ^ expected.len();
    for (given, expected) in given.iter().zip(expected.iter().cycle()) {
        difference |= black_box(usize::from(given ^ expected));
    }
    black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_equal_bytes_compare_as_equal() {
        assert!(constant_time_eq(b"Bearer abc", b"Bearer abc"));
        for other in [
            &b"Bearer abd"[..],
            b"Bearer ab",
            b"Bearer abcBearer abc",
            b"",
        ] {
            assert!(!constant_time_eq(other, b"Bearer abc"));
        }
    }

    #[test]
    fn a_token_that_cannot_be_sent_is_rejected() {
        assert!(TokenCheck::new(Some("s3cret-_.~")).is_ok());
        for token in ["", "two words", "ümlaut", "line\n"] {
            let error = TokenCheck::new(Some(token)).err().unwrap().to_string();
            assert!(
                error.contains("must consist of visible ASCII characters"),
                "{error}"
            );
        }
    }
}
