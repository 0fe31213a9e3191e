//! Tests of durable stores in simulated directories.

mod buffers;
mod checkpoints;
mod fuzz;
mod missing_logs;
pub(super) mod power_loss_directory;
mod power_losses;
mod random_workload;
mod unlogged;
