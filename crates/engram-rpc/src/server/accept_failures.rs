//! Connections that cannot be accepted, for example because too many files are open.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::time::sleep;

use crate::file_limit;

/// Pause after a failure.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Minimum time between two log messages.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Logs that a server cannot accept connections.
#[derive(Clone, Debug)]
pub(super) struct AcceptFailures {
    address: SocketAddr,
    log: fn(String),
    logged: Arc<Mutex<Option<Instant>>>,
}

impl AcceptFailures {
    /// Those of the server at this address.
    pub(super) fn new(address: SocketAddr, log: fn(String)) -> Self {
        Self {
            address,
            log,
            logged: Arc::default(),
        }
    }

    /// Waits before the next connection is accepted.
    pub(super) async fn pause(&self, error: &io::Error) {
        let is_due = {
            let mut logged = self.logged.lock();
            let is_due = logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL);
            if is_due {
                *logged = Some(Instant::now());
            }
            is_due
        };
        if is_due {
            (self.log)(format!(
                "the server at {} cannot accept a connection, and tries again: {error}{}",
                self.address,
                file_limit::advice(error)
            ));
        }
        sleep(RETRY_DELAY).await;
    }
}
