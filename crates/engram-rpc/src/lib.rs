//! The store over the network: what `docs/protocol.md` describes, both ends of it.

pub mod client;
pub mod server;
pub mod wire;

pub use server::{Server, ServerOptions, ServerTls};

use engram_core::{Error, Result};
use rand::rand_core::TryRng;
use rand::rngs::SysRng;

/// The messages, as generated from `proto/engram.proto`.
#[expect(
    missing_docs,
    clippy::pedantic,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "generated; the protocol file explains them"
)]
pub mod pb {
    tonic::include_proto!("engram.v1");
}

/// The version of the protocol that this crate speaks.
pub const PROTOCOL_VERSION: u32 = 1;

/// Largest message that either side reads.
pub const MAX_MESSAGE_BYTES: usize = 4 << 20;

/// Largest batch: what its columns take in all.
pub const MAX_BATCH_BYTES: usize = 4 << 30;

/// Payload bytes that a sender puts into one message.
pub const PART_BYTES: usize = 256 << 10;

/// Largest HTTP/2 frame that either side reads: larger ones take memory that has to be cleared
/// for each, smaller ones take longer.
pub const MAX_FRAME_BYTES: u32 = 256 << 10;

/// HTTP/2 window of a stream and of a connection.
pub const CLIENT_WINDOW_BYTES: u32 = 16 << 20;

/// Lets more than a frame lie in a socket of this machine: with the system's default of 208 KiB its sender is woken
/// several times for each. The client's end of the short way, and the server's end of every way by such a socket.
fn enlarge_send_buffer(stream: &tokio::net::UnixStream) {
    // Where the system allows less, it is less.
    let _ = socket2::SockRef::from(stream).set_send_buffer_size(2 * MAX_FRAME_BYTES as usize);
}

/// A random number of the system's: a generator of our own would say the same in every forked child.
fn random_u64() -> Result<u64> {
    SysRng
        .try_next_u64()
        .map_err(|error| Error::Unavailable(format!("the system has no random numbers: {error}")))
}
