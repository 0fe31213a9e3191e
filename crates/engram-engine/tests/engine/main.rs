//! Tables that callers wait for: tickets, leases, prefetching, and all of them at once.

#![expect(
    clippy::unwrap_used,
    reason = "a test's helpers may fail, and say so by panicking"
)]

mod durability;
mod leases;
mod room;
mod sessions;
mod streams;
mod stress;
mod support;
mod waiting;
