//! What all calls of dm-reverb's service share.

use std::sync::Arc;

use engram_core::pool::Pool;
use engram_engine::Engine;
use tokio::sync::{Mutex, watch};
use tonic::Status;

use crate::insert::OrphanedItems;
use crate::pb;

/// The state shared by all calls.
#[derive(Debug)]
pub(crate) struct ServiceState {
    pub(crate) engine: Arc<Engine>,
    /// True once the server is asked to stop.
    pub(crate) stopped: watch::Receiver<bool>,
    /// Buffers for samples.
    pub(crate) pool: Arc<Pool>,
    pub(crate) orphans: Arc<OrphanedItems>,
    /// Locked while a checkpoint is written.
    pub(crate) checkpoints: Arc<Mutex<()>>,
    /// Random id of this service. When it changes, because the server was started again, clients read signatures again.
    pub(crate) tables_state_id: pb::Uint128,
}

impl ServiceState {
    /// Waits until the server is asked to stop.
    pub(crate) async fn until_stopped(&self) {
        // An error means that the server was dropped, which counts as stopped.
        let _ = self.stopped.clone().wait_for(|stopped| *stopped).await;
    }
}

/// The status of calls that end because the server stops. Clients retry without limit.
pub(crate) fn stopping_status() -> Status {
    Status::unavailable("the server is stopping")
}
