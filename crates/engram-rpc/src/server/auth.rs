//! Who may call: those who bring the server's token.

use std::hint::black_box;
use std::sync::Arc;

use engram_core::{Error, Result};
use tonic::metadata::MetadataValue;
use tonic::service::Interceptor;
use tonic::{Request, Status};

/// How a caller gives a token, for the texts of refusals.
const TOKEN_HINT: &str = "give the server's token to the client as `token`; it travels as metadata \
                   `authorization: Bearer TOKEN` (a dm-reverb client cannot send one)";

/// Lets calls with the right token through; all calls if there is none.
#[derive(Clone)]
pub(super) struct TokenCheck {
    /// `Bearer TOKEN`.
    expected: Option<Arc<[u8]>>,
}

impl TokenCheck {
    /// # Errors
    /// [`Error::InvalidArgument`] for a token that no call could bring.
    pub(super) fn new(token: Option<&str>) -> Result<Self> {
        let Some(token) = token else {
            return Ok(Self { expected: None });
        };
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Error::InvalidArgument(format!(
                "the token has {} characters, some of which cannot be sent; it must have at least \
                 one, and only visible ASCII characters",
                token.chars().count()
            )));
        }
        Ok(Self {
            expected: Some(format!("Bearer {token}").into_bytes().into()),
        })
    }

    /// Judges what came as `authorization`.
    ///
    /// # Errors
    /// Why it will not do, in words.
    pub(super) fn check(&self, given: Option<&[u8]>) -> Result<(), String> {
        match (&self.expected, given) {
            (None, _) => Ok(()),
            (Some(expected), Some(given)) if constant_time_eq(given, expected) => Ok(()),
            (Some(_), Some(_)) => Err(format!("the token is not this server's; {TOKEN_HINT}")),
            (Some(_), None) => Err(format!(
                "this server asks for a token and none came; {TOKEN_HINT}"
            )),
        }
    }
}

impl Interceptor for TokenCheck {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let given = request.metadata().get("authorization");
        let verdict = self.check(given.map(MetadataValue::as_encoded_bytes));
        verdict.map_err(Status::unauthenticated)?;
        Ok(request)
    }
}

/// Compares all bytes of what was given, wherever the first difference is.
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
    fn only_the_same_bytes_are_the_same() {
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
    fn a_token_that_cannot_be_sent_is_refused() {
        assert!(TokenCheck::new(Some("s3cret-_.~")).is_ok());
        for token in ["", "two words", "ümlaut", "line\n"] {
            let error = TokenCheck::new(Some(token)).err().unwrap().to_string();
            assert!(error.contains("only visible ASCII characters"), "{error}");
        }
    }
}
