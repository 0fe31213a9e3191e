//! Tests of the public API of the crate, as one binary; `fuzz` has its own allocator.

mod checkpoints;
mod round_trip;
mod step_signatures;
