//! The server: an engine's tables for everybody who may connect.
//!
//! One runtime of its own carries all connections. Each stream is a task; calls of the engine are
//! short and made where they arise, and whatever waits is a ticket that its stream's task awaits.

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
mod serve;
mod service;
mod shutdown;
mod table_names;

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

/// How a server is reached, and by whom.
#[derive(Clone)]
pub struct ServerOptions {
    /// Where it listens; port 0 for any that is free.
    pub address: SocketAddr,
    /// A Unix domain socket beside it, for this user's processes only.
    pub unix_socket: Option<PathBuf>,
    /// A port at the same host where the server's numbers are told over HTTP, under the same token
    /// and encryption; 0 for any that is free.
    pub metrics_port: Option<u16>,
    /// What every call must bring.
    pub token: Option<String>,
    /// Encrypts TCP connections.
    pub tls: Option<ServerTls>,
    /// Allows an address that others can reach without a token.
    pub insecure: bool,
    /// A batch on lease goes back so long after it was sent.
    pub lease_timeout: Duration,
    /// A connection is closed unless somebody calls so long after it was made.
    pub first_call_timeout: Duration,
    /// Seed of tables that clients create without one.
    pub seed: u64,
}

/// What a server shows, and asks, when a connection is encrypted.
#[derive(Clone)]
pub struct ServerTls {
    /// The server's certificate, and those between it and a known authority.
    pub certificate_pem: String,
    /// Its private key.
    pub key_pem: String,
    /// The authority that clients' certificates must come from; without it, none is asked for.
    pub client_ca_pem: Option<String>,
}

impl Default for ServerOptions {
    /// Any free port of this machine, for this machine.
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
            seed: 0,
        }
    }
}

// By hand: neither tokens nor keys belong into logs.
impl fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerOptions")
            .field("address", &self.address)
            .field("unix_socket", &self.unix_socket)
            .field("metrics_port", &self.metrics_port)
            .field("insecure", &self.insecure)
            .field("lease_timeout", &self.lease_timeout)
            .field("first_call_timeout", &self.first_call_timeout)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").finish_non_exhaustive()
    }
}

/// A running server. Dropping it stops it; the engine stays open.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    metrics_address: Option<SocketAddr>,
    stop: watch::Sender<bool>,
    /// Owns the runtime: it ends when everything has, or has had its time.
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Server {
    /// Starts serving an engine's tables; connections are accepted once this returns.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the options are unsafe, the address or socket cannot be
    /// had, or the certificates make no sense, [`Error::Unavailable`] where the system has no random
    /// numbers for us.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "a server's options are made for it, once"
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
            .map_err(|error| cannot_start(&error))?;
        let start_result = start_result.recv().map_err(|_| {
            Error::InvalidArgument("the server's thread ended before it began to serve".into())
        })?;
        start_result.map_err(|error| cannot_start(&error))?;
        Ok(Self {
            address,
            metrics_address,
            stop,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it tells its numbers, at the path `/metrics`.
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// Ends all waiting calls, gives connections two seconds to take leave, and frees the port.
    /// Calling it again does nothing, but for waiting until the first call is done.
    pub fn stop(&self) {
        self.stop.send_replace(true);
        let mut thread = self.thread.lock();
        if let Some(thread) = thread.take() {
            // A panic there has closed the connections all the same.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn cannot_start(error: &std::io::Error) -> Error {
    Error::InvalidArgument(format!("no threads to serve with: {error}"))
}
