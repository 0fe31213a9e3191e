//! Named tables that callers may wait for: the one API behind every door.
//!
//! In process a waiting caller parks its thread; a server awaits the same tickets.

pub mod clock;
mod disk;
pub mod engine;
mod fair;
pub mod handed;
pub mod info;
mod inherited;
pub mod lease;
pub mod outbox;
pub mod session;
pub mod stream;
pub mod table;
pub mod ticket;
mod wait;

pub use clock::{Clock, SystemClock};
pub use disk::{
    Checkpoint, Durability, FileState, InspectedCheckpoint, InspectedFile, InspectedOpening,
    InspectedTable, Inspection, Progress, StorageOptions, Tear, inspect,
};
pub use engine::{Engine, Opening, spread, unsent_text};
pub use handed::{Fate, Handed};
pub use info::TableInfo;
pub use inherited::{Inherited, close_inherited};
pub use lease::{Lease, Sample};
pub use outbox::Outbox;
pub use session::Session;
pub use stream::{Batch, Stream, StreamOptions};
pub use table::Table;
pub use ticket::{InsertTicket, Room, Safe, SampleTicket};
pub use wait::{Patience, Waited, wait};
