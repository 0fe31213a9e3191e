//! Durable stores, and saved replay buffers. `docs/format.md` specifies their files.
//!
//! [`storage`] manages the directory of an open store; [`recover`] reads a directory when a store is opened;
//! [`resharding`] distributes the tables of directories to new ones.
//! [`buffer_writer`] and [`buffer_reader`] save and restore replay buffers; [`mapped_file`] has the steps of one.

mod buffer_reader;
mod buffer_writer;
mod byte_codec;
mod change_codec;
mod checkpoint_reader;
mod checkpoint_writer;
mod chunk_checkers;
mod chunk_loader;
mod chunk_log;
mod clock_reading;
mod close_mark;
mod direct_io;
mod directory;
mod directory_lock;
mod directory_reader;
mod directory_setup;
mod errors;
mod file_format;
mod file_names;
mod inspect;
mod journal;
mod kind;
mod log;
mod log_writer;
mod manifest;
mod mapped_file;
mod mapping;
mod options_codec;
mod os_directory;
mod ownership;
mod pending_log;
mod read_ahead;
mod record_codec;
mod record_reader;
mod record_writer;
mod recover;
mod recovery_error;
mod replay;
mod resharding;
mod serial_ranges;
mod storage;

pub use buffer_reader::SavedBuffer;
pub use buffer_writer::{Interrupted, SaveContents, SaveTarget};
pub use directory_reader::ReadProgress;
pub use inspect::{
    FileState, InspectedCheckpoint, InspectedFile, InspectedOpening, InspectedTable, Inspection,
    InvalidRecord, inspect,
};
pub use journal::Durability;
pub use mapped_file::BufferFlush;
pub(crate) use mapped_file::{BufferSize, FlushedState, MappedFile, boot_id};
pub use ownership::{check_unlocked, check_unused, replace_unused};
pub(crate) use recover::ClosedDirectory;
pub use resharding::{MAX_SHARDS, ReshardProgress, Resharded, reshard};
pub use storage::{Checkpoint, StorageOptions};
pub(crate) use storage::{CheckpointView, Storage};

#[cfg(test)]
mod tests;
