//! Kinds of records: 1 to 3 occur in logs and checkpoints, 4 to 9 only in logs, 16 to 22 only in checkpoints,
//! and 23 only in the file `CLOSED`.

pub(crate) const LAYOUT: u32 = 1;
pub(crate) const SCHEMA: u32 = 2;
pub(crate) const WINDOW_SHAPE: u32 = 3;
pub(crate) const CHUNK: u32 = 4;
pub(crate) const CHANGES: u32 = 5;
pub(crate) const TABLE_CREATED: u32 = 6;
pub(crate) const TABLE_DROPPED: u32 = 7;
pub(crate) const BEGIN: u32 = 8;
pub(crate) const UNLOGGED: u32 = 9;
pub(crate) const LOGS: u32 = 16;
pub(crate) const TABLE: u32 = 17;
pub(crate) const ITEMS: u32 = 18;
pub(crate) const ORDER: u32 = 19;
pub(crate) const SESSIONS: u32 = 20;
pub(crate) const END: u32 = 21;
pub(crate) const SERIALS: u32 = 22;
pub(crate) const CLOSED: u32 = 23;
