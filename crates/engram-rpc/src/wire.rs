//! Between messages and what the engine calls the same things.
//!
//! Whatever comes from a peer is checked here: decoding gives an error, never a panic, and
//! allocates in proportion to the bytes that came.

mod batch_in;
mod batch_out;
mod decoded_size;
mod insert_in;
mod insert_out;
mod numbers;
mod options;

pub use batch_in::{Arrived, Arriving};
pub use batch_out::BatchOut;
pub use engram_codec::{
    DecodedSize, MAX_DECODED_BYTES, SizeCheckedCodec, SizeCheckedDecoder, check_decoded_size,
};
pub use insert_in::{Broken, Intake};
pub use insert_out::{Parcel, Told, check_sendable};
pub use numbers::{f64s, i64s, join, u32s, u64s};
pub use options::{
    cell_in, cell_out, error_in, error_out, info_in, info_out, layout_in, layout_out, limits_in,
    limits_out, options_in, options_out,
};

/// Names that a layout, and columns that a schema, shape, item or signature may have.
const MAX_COLUMNS: usize = 16_384;

/// Axes that an array may have.
const MAX_AXES: usize = 64;

/// How an extent's bytes are written.
pub(crate) const RAW: u32 = 0;
pub(crate) const LZ4: u32 = 1;
pub(crate) const DELTA: u32 = 2;
