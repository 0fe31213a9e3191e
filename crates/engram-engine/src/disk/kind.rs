//! Kinds of records: 1 to 3 occur in logs and checkpoints, 4 to 9 only in logs, 16 to 22 only in checkpoints, 23 only in
//! the file `CLOSED`, 24 to 26 only in saved replay buffers, and 27 and 28 only in the files of mapped ones. Both also have
//! layouts and schemas. `docs/format.md` specifies the bodies.

/// Defines a layout.
pub(crate) const LAYOUT: u32 = 1;
/// Defines a schema.
pub(crate) const SCHEMA: u32 = 2;
/// Defines a window shape.
pub(crate) const WINDOW_SHAPE: u32 = 3;
/// A chunk.
pub(crate) const CHUNK: u32 = 4;
/// Consecutive changes of one table.
pub(crate) const CHANGES: u32 = 5;
/// The change that creates a table.
pub(crate) const TABLE_CREATED: u32 = 6;
/// The change that drops a table.
pub(crate) const TABLE_DROPPED: u32 = 7;
/// The record before the changes of a log: the number of its first change, and the readings of the store's clock and the
/// system's.
pub(crate) const BEGIN: u32 = 8;
/// States that a checkpoint has contents that the logs lack.
pub(crate) const UNLOGGED: u32 = 9;
/// First record of a checkpoint: the logs that it requires, and counters of the store.
pub(crate) const LOGS: u32 = 16;
/// A table's number, options and counters. The next records, up to another of this kind, belong to this table.
pub(crate) const TABLE: u32 = 17;
/// Items of a table.
pub(crate) const ITEMS: u32 = 18;
/// Part of the order of a table's items in its sampler or remover.
pub(crate) const ORDER: u32 = 19;
/// Sessions of a table.
pub(crate) const SESSIONS: u32 = 20;
/// Last record of a checkpoint: how many tables the checkpoint has, and how many records precede this one.
pub(crate) const END: u32 = 21;
/// Serials of the chunks that a checkpoint's items refer to.
pub(crate) const SERIALS: u32 = 22;
/// Where the logs ended when the store was closed.
pub(crate) const CLOSED: u32 = 23;
/// A saved replay buffer: its schema, its size and its random generator.
pub(crate) const BUFFER: u32 = 24;
/// Which steps the environments of a saved replay buffer have.
pub(crate) const ENVIRONMENTS: u32 = 25;
/// Consecutive steps of an environment.
pub(crate) const STEPS: u32 = 26;
/// A mapped replay buffer: its schema and its size.
pub(crate) const MAPPED_BUFFER: u32 = 27;
/// Which steps of a mapped replay buffer are durable, and which process uses it.
pub(crate) const FLUSHED: u32 = 28;
