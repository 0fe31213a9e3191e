//! Compares the recorders with simple models: runs random operations on both and compares the created items.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "models of a few steps; a wrong conversion fails the test"
)]

mod batched;
mod common;
mod model;
mod patterns;
mod recorder;
