//! Changes to items by their keys.

use engram_engine::Engine;
use tonic::Status;

use crate::keys::kept;
use crate::pb;
use crate::status::status;

/// Deletes, then updates. Bad priorities are found before anything is done.
pub(crate) fn mutate(engine: &Engine, request: &pb::MutatePrioritiesRequest) -> Result<(), Status> {
    let table = engine
        .table(&request.table)
        .map_err(|error| status(&error))?;
    let updates = request.updates.iter();
    let (keys, priorities): (Vec<u64>, Vec<f64>) = updates
        .map(|update| (kept(update.key), update.priority))
        .unzip();
    let deletes: Vec<u64> = request.delete_keys.iter().copied().map(kept).collect();
    let done = table
        .options()
        .check_updates(&keys, &priorities)
        .and_then(|()| {
            table.delete(&deletes)?;
            table.update_priorities(&keys, &priorities)
        });
    done.map(drop).map_err(|error| status(&error))
}
