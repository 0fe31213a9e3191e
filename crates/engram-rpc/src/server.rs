//! The server: an engine's tables, over the network.
//!
//! The server has its own Tokio runtime, which serves all connections. Each stream is a task. Calls of the engine are
//! short and run in that task; calls that wait are tickets that the task awaits.

mod auth;
mod change;
mod connection;
mod counters;
mod insert;
mod listeners;
mod manage;
mod metrics;
mod router;
mod sample;
mod scan;
mod serve;
mod service;
mod shutdown;
mod table_names;
mod table_pages;
mod whole_messages;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use engram_core::{Error, Result};
use engram_engine::Engine;
use parking_lot::Mutex;
use tokio::sync::watch;

use auth::TokenCheck;
use listeners::{Listeners, check_address};
use serve::ServerRuntime;
use service::Service;
use shutdown::ShutdownSignal;

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
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").finish_non_exhaustive()
    }
}

/// A running server. Dropping it closes it; the engine stays open.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    metrics_address: Option<SocketAddr>,
    /// Set to true to shut the server down.
    stop: watch::Sender<bool>,
    /// Runs the runtime. Once `stop` is true, ends when all connections are closed, or after a timeout. `None` after
    /// [`Self::close`].
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Server {
    /// Starts a server for an engine's tables. The server accepts connections once this returns.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the options are unsafe, the address or socket is not available, a certificate is
    /// unusable or the server's threads cannot start, [`Error::Unavailable`] if the system provides no random numbers.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "options are created for one server"
    )]
    pub fn start(engine: Arc<Engine>, options: ServerOptions) -> Result<Self> {
        check_address(&options)?;
        let token_check = TokenCheck::new(options.token.as_deref())?;
        let listeners = Listeners::open(&options)?;
        let address = listeners.address;
        let metrics_address = listeners.metrics.as_ref().map(|(address, _)| *address);
        let (stop, stopped) = watch::channel(false);
        let shutdown = ShutdownSignal::new(stopped, address);
        let service = Service::new(engine, &options, &listeners, shutdown.clone())?;
        let runtime = ServerRuntime::new(service, token_check, &options, shutdown)?;
        let (started, start_result) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("engram-server-main".into())
            .spawn(move || runtime.run(listeners, &started))
            .map_err(|error| start_error(&error))?;
        let start_result = start_result.recv().map_err(|_| {
            Error::InvalidArgument(
                "cannot start the server: its thread has panicked; the panic message is on stderr"
                    .into(),
            )
        })?;
        start_result.map_err(|error| start_error(&error))?;
        Ok(Self {
            address,
            metrics_address,
            stop,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// The TCP address that the server listens at, with the port that was selected.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address that serves metrics, at the path `/metrics`. `None` if the options have no `metrics_port`.
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// Ends all waiting calls, waits up to two seconds for connections to close, and frees the port. If another thread
    /// is closing the server, waits until it is closed. Does nothing if it is closed already.
    pub fn close(&self) {
        self.stop.send_replace(true);
        let mut thread = self.thread.lock();
        if let Some(thread) = thread.take() {
            // An error means that the thread has panicked, which closes the connections too.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.close();
    }
}

fn start_error(error: &std::io::Error) -> Error {
    Error::InvalidArgument(format!("cannot start the server's threads: {error}"))
}
