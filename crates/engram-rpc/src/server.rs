//! The server: an engine's tables, over the network.
//!
//! The server has its own Tokio runtime, which serves all connections. Each stream is a task. Calls of the engine are
//! short and run in that task; calls that wait are tickets that the task awaits.

mod accept_failures;
mod auth;
mod change;
mod connection;
mod counters;
mod insert;
mod listeners;
mod manage;
mod metrics;
mod options;
mod reverb;
mod router;
mod sample;
mod scan;
mod serve;
mod service;
mod service_state;
mod shutdown;
mod stream_users;
mod table_names;
mod table_pages;
mod whole_messages;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use engram_core::{Error, Result};
use engram_engine::Engine;
use parking_lot::Mutex;
use tokio::sync::watch;

pub use options::{ServerOptions, ServerTls};

use auth::TokenCheck;
use listeners::{Listeners, check_address};
use serve::ServerRuntime;
use service::Service;
use shutdown::ShutdownSignal;

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
