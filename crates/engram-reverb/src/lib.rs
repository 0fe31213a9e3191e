//! The store for dm-reverb's clients: their gRPC service, beside Engram's own.
//!
//! Whatever comes from a peer is checked before anybody reads it: what makes no sense gives a status,
//! never a panic, and takes memory in proportion to the bytes that came.

mod bytes_in;
mod bytes_out;
mod checkpoint;
mod chunk;
mod decoded_size;
mod dtypes;
mod info;
mod insert;
mod item;
mod keys;
mod mutate;
mod note;
mod records;
mod sample;
mod service;
mod signature;
mod status;

pub use bytes_in::{Claim, claim};
pub use bytes_out::compress;
pub use checkpoint::{Imported, import};
pub use chunk::Chunks;
pub use item::{ByKey, Items, SampleKeys, entry};
pub use service::{PATH, Reverb};

/// The messages, as generated from `proto/`.
#[expect(
    missing_docs,
    clippy::large_enum_variant,
    clippy::pedantic,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "generated; the protocol files explain them"
)]
pub mod pb {
    /// dm-reverb's own.
    pub mod deepmind {
        /// dm-reverb's own.
        pub mod reverb {
            tonic::include_proto!("deepmind.reverb");
        }
    }

    /// TensorFlow's.
    pub mod tensorflow {
        tonic::include_proto!("tensorflow");
    }

    pub use deepmind::reverb::*;
}
