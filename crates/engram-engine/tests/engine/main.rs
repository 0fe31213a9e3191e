//! Tests of tables, tickets, leases and streams.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod durability;
mod leases;
mod queue_space;
mod sessions;
mod streams;
mod stress;
mod support;
mod tickets;
