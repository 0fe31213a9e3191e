//! A protobuf codec for tonic that bounds the memory a message takes before it decodes it.

mod decoded_size;
mod size_checked_codec;

pub use decoded_size::{
    DecodedSize, Field, MAX_DECODED_BYTES, check_decoded_size, message, repeated, repeated_number,
    repeated_string, string,
};
pub use size_checked_codec::{SizeCheckedCodec, SizeCheckedDecoder};
