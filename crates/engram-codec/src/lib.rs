//! Bounds on the memory of gRPC messages: a Protobuf codec for tonic that computes the decoded size of a message before
//! it decodes the message, and a budget for the replies that clients have not read. Also [`run_blocking`] and
//! [`run_in_place`], which the services of Engram and dm-reverb use.

mod blocking;
mod decoded_size;
mod reply_budget;
mod reply_stream;
mod size_checked_codec;

pub use blocking::{run_blocking, run_in_place};
pub use decoded_size::{
    DecodedSize, Field, MAX_DECODED_BYTES, check_decoded_size, message, repeated, repeated_number,
    repeated_string, string,
};
pub use reply_budget::{ConnectionBudget, PendingReservation, ReplyBudget, Reservation};
pub use reply_stream::{CallBudget, ReplyBody, ReplyMessage, ReplyStream};
pub use size_checked_codec::{PreallocatingEncoder, SizeCheckedCodec, SizeCheckedDecoder};
