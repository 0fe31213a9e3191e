//! Stores: named tables whose calls can wait, in memory or on disk. In-process stores and servers both use this
//! crate.
//!
//! Calls that may have to wait return tickets (futures). In process, a thread parks until its
//! ticket is ready; a server awaits the same tickets.

pub mod clock;
mod close_on_fork;
pub mod delivery_tracker;
mod disk;
pub mod engine;
mod fair_mutex;
pub mod histogram;
mod huge_pages;
pub mod lease;
mod meter;
pub mod outbox;
mod outbox_id;
pub mod peek;
mod rejected_calls;
pub mod replay_buffer;
pub mod scan;
pub mod session;
pub mod stream;
pub mod table;
mod table_context;
pub mod table_info;
mod table_user;
pub mod ticket;
mod timer;
mod unreadable;
mod wait;

pub use clock::{Clock, MonotonicClock};
pub use close_on_fork::{CloseOnFork, close_after_fork};
pub use delivery_tracker::DeliveryTracker;
pub use disk::{
    BufferFlush, Checkpoint, Durability, FileState, InspectedCheckpoint, InspectedFile,
    InspectedOpening, InspectedTable, Inspection, Interrupted, InvalidRecord, MAX_SHARDS,
    ReadProgress, ReshardProgress, Resharded, SaveContents, SaveTarget, SavedBuffer,
    StorageOptions, check_unlocked, check_unused, inspect, replace_unused, reshard,
};
pub use engine::{Engine, OpenOptions, derive_number};
pub use histogram::{Histogram, HistogramOf};
pub use lease::{Batch, BatchLease, Lease, Sample};
pub use outbox::{Outbox, Until, send_by_table};
pub use peek::{Peek, PeekOptions, PeekedItem};
pub use rejected_calls::RejectionReason;
pub use replay_buffer::ReplayBuffer;
pub use scan::{Scan, ScanOptions};
pub use session::SessionRun;
pub use stream::{BatchStream, Stream, StreamOptions};
pub use table::survey::MAX_SURVEYED_ITEMS;
pub use table::{SampleOptions, Table};
pub use table_context::unsent_items_note;
pub use table_info::TableInfo;
pub use table_user::{TableUser, TableUserInfo, TableUserKind};
pub use ticket::{InsertTicket, JournalSpace, SampleTicket, UntilDurable};
pub use wait::{WaitOptions, WaitOutcome, wait, wait_by};
