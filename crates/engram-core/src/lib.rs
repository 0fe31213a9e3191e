//! The replay data structures: chunks of steps, items that refer to them, selectors, rate limiters,
//! tables, the writers that build chunks and items, and the rings of replay buffers.
//!
//! Nothing in this crate does I/O, reads a clock or calls Python. Its only threads are rayon's, which copy large
//! batches.

pub mod aligned;
pub mod chunk;
pub mod codec;
pub mod cow;
pub mod dtype;
pub mod error;
pub mod gather;
pub mod holders;
pub mod item;
pub mod key_map;
pub mod op;
pub mod pages;
pub mod pool;
mod prefetch;
mod printable;
pub mod rate_limiter;
pub mod ring;
pub mod schema;
pub mod selector;
pub mod shared_bytes;
mod structure;
pub mod sum_tree;
pub mod table;
pub mod text;
pub mod trajectory;
pub mod writer;

pub use aligned::AlignedBytes;
pub use chunk::{Chunk, ChunkBuilder, Extent, Origin};
pub use codec::{Compression, Compressor};
pub use dtype::DType;
pub use error::{Error, Result};
pub use item::{NewItem, Slot};
pub use op::{Lsn, OpSink, Removal, SessionNumber, TableOp, Volatile};
pub use printable::{ErrorText, Printable};
pub use rate_limiter::{RateLimiter, RateLimits};
pub use schema::{CellSpec, ColumnSpec, Layout, Schema, Shape, Signature};
pub use selector::{DrawDistribution, SelectorKind};
pub use shared_bytes::SharedBytes;
pub use table::{
    Admission, DeferredDrops, Draw, Handle, SampledItemInfo, Snapshot, TableOptions, TableState,
    TableStats,
};
pub use trajectory::{
    MAX_ITEM_BYTES, Slice, SpanChunks, SpanColumn, Spans, Trajectory, WindowShape,
};
