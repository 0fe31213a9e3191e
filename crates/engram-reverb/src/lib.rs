//! dm-reverb compatibility on the wire: its gRPC service over an Engram engine, and the import of its
//! checkpoints.
//!
//! Every message of a client is checked before it is used. Invalid messages result in a status, never a
//! panic. The memory that decoding allocates is bounded in proportion to the bytes received.

mod checkpoint;
mod chunk;
mod decoded_size;
mod dtypes;
mod info;
mod insert;
mod item;
mod keys;
mod mutate;
mod note_encoder;
mod sample;
mod service;
mod service_state;
mod signature;
mod status;
mod tensor_decoder;
mod tensor_encoder;
mod tfrecord;

pub use checkpoint::{Imported, import};
pub use chunk::ChunkDecoder;
pub use item::{ChunkKeyCounter, ChunksByKey, decode_item, encode_sample};
pub use service::{MAX_MESSAGE_BYTES, PATH, Reverb};
pub use tensor_decoder::{TensorHeader, check_tensor};
pub use tensor_encoder::encode_tensor;

/// The messages, as a `FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.bin");

/// The messages that `make generate` generates from `proto/`.
#[expect(
    missing_docs,
    clippy::large_enum_variant,
    clippy::pedantic,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "generated; documented in the .proto files"
)]
pub mod pb {
    /// dm-reverb's messages.
    pub mod deepmind {
        /// dm-reverb's messages.
        pub mod reverb {
            include!("generated/deepmind.reverb.rs");
        }
    }

    /// TensorFlow's messages.
    pub mod tensorflow {
        include!("generated/tensorflow.rs");
    }

    pub use deepmind::reverb::*;
}
