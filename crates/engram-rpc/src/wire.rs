//! Converts between protocol messages and the engine's types.
//!
//! What is received from a peer is checked here, except for what the engine checks: the ranges of options, and whether
//! slices fit their chunks. Decoding invalid data returns an error and never panics. The memory that decoding allocates
//! is bounded in proportion to the bytes received; only a [`BatchAssembler`] allocates the bytes that a header
//! announces, up to the maximum of its pool.

mod batch_assembler;
mod decoded_size;
mod insert_requests;
mod numbers;
mod options;
mod outgoing_batch;
mod peeks;
mod received_dictionary;
mod users;

pub use batch_assembler::{BatchAssembler, ReceivedBatch};
pub use engram_codec::{
    DecodedSize, MAX_DECODED_BYTES, SizeCheckedCodec, SizeCheckedDecoder, check_decoded_size,
};
pub use insert_requests::{InsertRequestBuilder, SentDictionary, check_sendable};
pub use numbers::{decode_f64s, decode_i64s, decode_u32s, decode_u64s, encode_numbers};
pub use options::{
    decode_cell_spec, decode_error, decode_info, decode_layout, decode_limits, decode_options,
    encode_cell_spec, encode_error, encode_info, encode_layout, encode_limits, encode_options,
};
pub use outgoing_batch::{BatchMessage, HEADER_BYTES_PER_ITEM, OutgoingBatch};
pub use peeks::{
    decode_histogram, decode_histogram_of, decode_peek_options, decode_peeked, encode_histogram,
    encode_histogram_query, encode_peek, encode_peek_options,
};
pub use received_dictionary::{InsertStreamError, ReceivedDictionary};

pub(crate) use options::check_signature_size;

/// Maximum number of names of a layout, and of columns of a schema, window shape, item or new signature.
const MAX_COLUMNS: usize = 16_384;

/// Maximum number of axes of an array.
const MAX_AXES: usize = 64;
