//! What a stream knows about the leases of its batches.

use std::collections::HashMap;

use engram_core::{Error, Result};
use parking_lot::Mutex;
use tokio::sync::watch;

/// Which leases have ended, and whether that is known. The stream's task changes it; the leases read it.
#[derive(Debug)]
pub(super) struct LeaseStates {
    /// Batches whose items the server has returned to their tables, and whose lease object still exists; with the reason
    /// if it concerns later requests too: the server cannot be reached.
    ended: Mutex<HashMap<u64, Option<Error>>>,
    /// False from the loss of a connection until the server has answered which leases it has kept, or cannot be reached.
    is_known: watch::Sender<bool>,
}

impl Default for LeaseStates {
    fn default() -> Self {
        Self {
            ended: Mutex::default(),
            is_known: watch::Sender::new(true),
        }
    }
}

impl LeaseStates {
    pub(super) fn set_known(&self, is_known: bool) {
        self.is_known.send_replace(is_known);
    }

    pub(super) fn is_known(&self) -> bool {
        *self.is_known.borrow()
    }

    /// Waits until it is known which leases have ended.
    pub(super) async fn until_known(&self) {
        // Cannot fail: `self` holds the sender.
        let _ = self.is_known.subscribe().wait_for(|known| *known).await;
    }

    pub(super) fn end(&self, id: u64, reason: Option<Error>) {
        self.ended.lock().insert(id, reason);
    }

    /// Called when the lease object of a batch is used up.
    pub(super) fn forget(&self, id: u64) {
        self.ended.lock().remove(&id);
    }

    /// True if the lease has ended.
    ///
    /// # Errors
    /// The reason, if it has one.
    pub(super) fn has_ended(&self, id: u64) -> Result<bool> {
        match self.ended.lock().get(&id) {
            None => Ok(false),
            Some(None) => Ok(true),
            Some(Some(reason)) => Err(reason.clone()),
        }
    }
}
