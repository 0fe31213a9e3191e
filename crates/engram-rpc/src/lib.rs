//! Server and client of a store over the network. `docs/protocol.md` specifies the protocol.

pub mod client;
mod file_limit;
pub mod server;
pub mod wire;

pub use server::{Server, ServerOptions, ServerTls};

use engram_core::{Error, Result};
use rand::rand_core::TryRng;
use rand::rngs::SysRng;

/// Messages that `make generate` generates from `proto/engram.proto`.
#[expect(
    missing_docs,
    clippy::pedantic,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "generated; documented in the .proto file"
)]
pub mod pb {
    include!("generated/engram.v1.rs");
}

/// Version of the protocol that this crate implements.
pub const PROTOCOL_VERSION: u32 = 1;

/// Maximum size in bytes of a message that server and client accept.
pub const MAX_MESSAGE_BYTES: usize = 4 << 20;

/// Maximum total size in bytes of a batch's columns.
pub const MAX_BATCH_BYTES: usize = 4 << 30;

/// Maximum number of items of a batch. Their keys, probabilities, priorities and lengths must also fit into one message:
/// [`wire::OutgoingBatch::new`] rejects a batch with many items and many columns whose lengths differ between items.
pub const MAX_ITEMS_PER_BATCH: u32 = 65_536;

/// Maximum number of keys of a scan.
pub const MAX_KEYS_PER_SCAN: usize = 4_194_304;

/// A sender puts about this many payload bytes into one message, and splits larger payloads.
pub const PART_BYTES: usize = 256 << 10;

/// Maximum size in bytes of an HTTP/2 frame that server and client accept. Each frame needs a zeroed buffer, so larger
/// frames cost more memory; smaller frames are slower.
pub const MAX_FRAME_BYTES: u32 = 256 << 10;

/// HTTP/2 flow-control window of a client in bytes, for each stream and for the connection.
pub const CLIENT_WINDOW_BYTES: u32 = 16 << 20;

/// Enlarges the send buffer of a Unix socket to two frames. With Linux's default of 208 KiB the
/// sender wakes several times per frame.
fn enlarge_send_buffer(stream: &tokio::net::UnixStream) {
    // The system may silently use a smaller size.
    let _ = socket2::SockRef::from(stream).set_send_buffer_size(2 * MAX_FRAME_BYTES as usize);
}

/// Checks that a token of a server or a client is not empty and consists of visible ASCII characters, so that it can be
/// sent in an HTTP header.
///
/// # Errors
/// [`Error::InvalidArgument`]. Its text omits the token's characters, which are secret.
fn check_token(token: &str) -> Result<()> {
    if !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(());
    }
    let length = token.chars().count();
    let invalid = token.chars().zip(1..).find(|(c, _)| !c.is_ascii_graphic());
    let problem = invalid.map_or_else(
        || "the given token is empty".into(),
        |(c, number)| {
            let what = match c {
                '\n' | '\r' => "a line break",
                c if c.is_whitespace() => "white space",
                _ => "not visible ASCII",
            };
            format!("character {number} of {length} of the given token is {what}")
        },
    );
    Err(Error::InvalidArgument(format!(
        "`token` must consist of visible ASCII characters, at least one; {problem}"
    )))
}

/// Returns a random number from the operating system. A generator in the process would repeat its
/// numbers in every forked child.
///
/// # Errors
/// [`Error::Unavailable`] if the operating system provides none.
pub fn random_u64() -> Result<u64> {
    SysRng.try_next_u64().map_err(|error| {
        Error::Unavailable(format!(
            "cannot read random numbers from the operating system: {error}"
        ))
    })
}
