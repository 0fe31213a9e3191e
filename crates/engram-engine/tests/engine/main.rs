//! Tests of tables, tickets, leases and streams.

#![expect(clippy::unwrap_used, reason = "test helpers fail by panicking")]

mod durability;
mod leases;
mod queue_space;
mod scans;
mod sessions;
mod streams;
mod stress;
mod support;
mod tickets;
mod unreadable;
