//! Messages in and out of the transport: as prost writes them, weighed before they are read.

mod codec;
mod weight;

pub use codec::{WeighingCodec, WeighingDecoder};
pub use weight::{Field, MOST, Weighed, check, many, numbers, one, text, texts};
