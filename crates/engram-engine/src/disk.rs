//! Durable stores: what lies on disk is described in `docs/format.md`.

mod bytes;
mod changes;
mod checkpoint;
mod chunk_log;
mod file;
mod files;
mod journal;
mod lock;
mod log;
mod log_writer;
mod names;
mod pending;
mod ranges;
mod records;
mod recover;
mod replay;
mod saved;
mod scan;
mod storage;
mod things;

pub use journal::Durability;
pub(crate) use recover::read_directory;
pub(crate) use storage::{Look, Storage};
pub use recover::Progress;
pub use storage::{Checkpoint, StorageOptions};

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod life;
#[cfg(test)]
mod power;
#[cfg(test)]
mod tests;
