//! The `MutatePriorities` call: priority updates and deletes by key.

use engram_engine::Engine;
use tonic::Status;

use crate::keys::engram_key;
use crate::pb;
use crate::status::status;

/// Deletes items, then updates priorities. Checks all priorities before it changes anything.
pub(crate) fn mutate(engine: &Engine, request: &pb::MutatePrioritiesRequest) -> Result<(), Status> {
    let table = engine
        .table(&request.table)
        .map_err(|error| status(&error))?;
    let updates = request.updates.iter();
    let (keys, priorities): (Vec<u64>, Vec<f64>) = updates
        .map(|update| (engram_key(update.key), update.priority))
        .unzip();
    let deletes: Vec<u64> = request
        .delete_keys
        .iter()
        .copied()
        .map(engram_key)
        .collect();
    let done = table
        .options()
        .check_updates(&keys, &priorities)
        .and_then(|()| {
            table.delete(&deletes)?;
            table.update_priorities(&keys, &priorities)
        });
    done.map(drop).map_err(|error| status(&error))
}
