//! The signal that ends a server's streams, and the errors that their callers get.

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

    /// A channel that becomes true when the server shuts down.
    pub(super) fn signal(&self) -> watch::Receiver<bool> {
        self.stopped.clone()
    }

    /// Waits until the server shuts down.
    pub(super) async fn wait(&mut self) {
        // An error means that the server was dropped, which also ends its streams.
        let _ = self.stopped.wait_for(|stopped| *stopped).await;
    }

    /// The error of waiting calls.
    pub(super) fn error(&self) -> Error {
        Error::Closed(self.text())
    }

    /// The status that streams end with.
    pub(super) fn status(&self) -> Status {
        Status::unavailable(self.text())
    }

    fn text(&self) -> String {
        format!("the server at {} is stopping", self.address)
    }
}
