//! Durable stores: what lies on disk is described in `docs/format.md`.

mod bytes;
mod changes;
mod checkpoint;
mod file;
mod files;
mod inspect;
mod journal;
mod log_writer;
mod names;
mod ranges;
mod recover;
mod saved;
mod scan;
mod storage;
mod things;

pub use inspect::{
    FileState, InspectedCheckpoint, InspectedFile, InspectedTable, Inspection, Opening, Tear,
    inspect,
};
pub use journal::Durability;
pub(crate) use storage::{Moment, Storage};
pub use storage::{Checkpoint, StorageOptions};

#[cfg(test)]
mod power;
#[cfg(test)]
mod tests;
