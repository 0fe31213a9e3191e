//! Tests of the server, most of them over a generated gRPC client.

#![expect(clippy::unwrap_used, reason = "test helpers panic on failure")]

mod change;
mod connections;
mod encryption;
mod half_close;
mod idle_connections;
mod insert;
mod insert_bounds;
mod insert_garbage;
mod manage;
mod manage_garbage;
mod message_claims;
mod metrics;
mod outbox;
mod pacing;
mod rejections;
mod reply_bounds;
mod resumption;
mod reverb;
mod reverb_backlog;
mod reverb_differences;
mod reverb_metrics;
mod reverb_streams;
mod sample;
mod sample_bounds;
mod sample_durability;
mod scan;
mod scan_bounds;
mod support;
mod unreadable;
