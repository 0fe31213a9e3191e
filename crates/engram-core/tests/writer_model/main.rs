//! The writers beside naive models: random programs, items read back and compared.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "models of a few steps; what goes wrong here fails the test"
)]

mod batched;
mod common;
mod naive;
mod patterns;
mod recorder;
