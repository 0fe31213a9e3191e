//! Durable stores: what lies on disk is described in `docs/format.md`.

mod bytes;
mod changes;
mod checkpoint;
mod chunk_log;
mod file;
mod files;
mod journal;
mod log;
mod log_writer;
mod names;
mod pending;
mod ranges;
mod records;
mod recover;
mod saved;
mod scan;
mod storage;
mod things;

pub use journal::Durability;
pub(crate) use storage::{Moment, Storage};
pub use storage::{Checkpoint, StorageOptions};

#[cfg(test)]
mod power;
#[cfg(test)]
mod tests;
