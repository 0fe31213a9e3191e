//! A real server, and the generated client.

#![expect(
    clippy::unwrap_used,
    reason = "a test's helpers may fail, and say so by panicking"
)]

mod change;
mod door;
mod encryption;
mod half_close;
mod insert;
mod insert_bounds;
mod insert_garbage;
mod manage;
mod manage_garbage;
mod metrics;
mod outbox;
mod refusals;
mod reverb;
mod reverb_bounds;
mod reverb_differences;
mod sample;
mod sample_bounds;
mod silence;
mod support;
