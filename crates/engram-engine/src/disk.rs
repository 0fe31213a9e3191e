//! Durable stores: what lies on disk is described in `docs/format.md`.

mod ahead;
mod bytes;
mod changes;
mod checkpoint;
mod chunk_log;
mod chunks;
mod direct;
mod file;
mod files;
mod inspect;
mod journal;
mod large_pages;
mod loads;
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

pub use inspect::{
    FileState, InspectedCheckpoint, InspectedFile, InspectedOpening, InspectedTable, Inspection,
    Tear, inspect,
};
pub use journal::Durability;
pub use recover::Progress;
pub(crate) use recover::read_directory;
pub use storage::{Checkpoint, StorageOptions};
pub(crate) use storage::{Look, Storage};

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod life;
#[cfg(test)]
mod power;
#[cfg(test)]
mod tests;
