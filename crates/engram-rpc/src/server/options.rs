//! The options of a server.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The options of a server: where it listens, who may connect, and its limits.
#[derive(Clone)]
pub struct ServerOptions {
    /// TCP address to listen at; port 0 selects a free port.
    pub address: SocketAddr,
    /// A Unix domain socket to listen at as well, for processes of the same user.
    pub unix_socket: Option<PathBuf>,
    /// A port of the same host that serves metrics over HTTP, with the same token and encryption; 0 selects a free
    /// port. `None`: no metrics are served.
    pub metrics_port: Option<u16>,
    /// The token that every call must send. `None`: calls need no token.
    pub token: Option<String>,
    /// Encrypts TCP connections.
    pub tls: Option<ServerTls>,
    /// Allows an address that other machines can reach, without a token.
    pub insecure: bool,
    /// The items of a leased batch return to their table if the batch is not acknowledged within this time. A scan that
    /// is idle for longer ends.
    pub lease_timeout: Duration,
    /// A connection is closed if no call with a valid token arrives within this time.
    pub first_call_timeout: Duration,
    /// Maximum bytes of batches and samples that clients have not read yet. One connection may use a quarter of it. A
    /// batch larger than that quarter is counted separately, and the server has only one of these at a time.
    pub max_unread_bytes: u64,
    /// Each table that a client creates without a seed gets a different seed, computed from this one.
    pub seed: u64,
    /// Id of the server among those that tables are sharded over, from 1 to 1023. 0: none.
    pub shard_id: u16,
    /// Logs a warning. Must not wait for the server.
    pub log: fn(String),
}

/// The TLS options of a server.
#[derive(Clone)]
pub struct ServerTls {
    /// The server's certificate, followed by intermediate certificates.
    pub certificate_pem: String,
    /// Its private key.
    pub key_pem: String,
    /// The authority that must have signed clients' certificates; `None`: clients need no certificate.
    pub client_ca_pem: Option<String>,
}

impl Default for ServerOptions {
    /// A free port of the loopback address.
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            unix_socket: None,
            metrics_port: None,
            token: None,
            tls: None,
            insecure: false,
            lease_timeout: Duration::from_secs(600),
            first_call_timeout: Duration::from_secs(10),
            max_unread_bytes: 1 << 30,
            seed: 0,
            shard_id: 0,
            log: |_| {},
        }
    }
}

// Written by hand: tokens and keys must not get into logs.
impl fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerOptions")
            .field("address", &self.address)
            .field("unix_socket", &self.unix_socket)
            .field("metrics_port", &self.metrics_port)
            .field("insecure", &self.insecure)
            .field("lease_timeout", &self.lease_timeout)
            .field("first_call_timeout", &self.first_call_timeout)
            .field("max_unread_bytes", &self.max_unread_bytes)
            .field("seed", &self.seed)
            .field("shard_id", &self.shard_id)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").finish_non_exhaustive()
    }
}
