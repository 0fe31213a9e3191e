//! The signal that ends a server's streams, and the errors that it causes.

use std::net::SocketAddr;

use engram_core::Error;
use tokio::sync::watch;
use tonic::Status;

/// Signals that the server shuts down.
#[derive(Clone, Debug)]
pub(super) struct ShutdownSignal {
    stopped: watch::Receiver<bool>,
    address: SocketAddr,
}

impl ShutdownSignal {
    pub(super) fn new(stopped: watch::Receiver<bool>, address: SocketAddr) -> Self {
        Self { stopped, address }
    }

    /// Returns a channel whose value becomes true when the server shuts down.
    pub(super) fn receiver(&self) -> watch::Receiver<bool> {
        self.stopped.clone()
    }

    /// True once the server shuts down.
    pub(super) fn is_set(&self) -> bool {
        *self.stopped.borrow()
    }

    /// Waits until the server shuts down.
    pub(super) async fn wait(&mut self) {
        // An error means that the server was dropped, which also ends its streams.
        let _ = self.stopped.wait_for(|stopped| *stopped).await;
    }

    /// The error of waiting calls.
    pub(super) fn error(&self) -> Error {
        Error::Closed(self.error_text())
    }

    /// The status that streams end with.
    pub(super) fn status(&self) -> Status {
        Status::unavailable(self.error_text())
    }

    fn error_text(&self) -> String {
        format!("the server at {} is stopping", self.address)
    }
}
