//! The call `sample`, in process and on a server.

use std::sync::Arc;
use std::time::Duration;

use engram_core::gather::LengthPolicy;
use engram_core::text::count;
use engram_core::{Draw, Error};
use engram_engine::Engine;
use engram_rpc::client::{BatchRequest, PendingResponse};
use pyo3::prelude::*;

use crate::batch::Batch;
use crate::errors;
use crate::gil::{Timeout, detached, wait_for, wait_for_table};
use crate::long_wait::{Blocked, blocked_reason};
use crate::tables::{RemoteTables, Tables};

/// Extra time for a server's reply after the deadline of a sample request.
const SAMPLE_REPLY_GRACE: Duration = Duration::from_millis(750);

/// Samples a table of this process.
pub(crate) fn sample_local(
    py: Python<'_>,
    engine: &Arc<Engine>,
    table: &str,
    (n, at_least): (usize, usize),
    timeout: Timeout,
    length_policy: LengthPolicy,
) -> PyResult<Batch> {
    let deadline = timeout.deadline();
    let tables = Tables::Local(Arc::clone(engine));
    let describe = |waited: &str| describe_long_wait(&tables, table, n, waited);
    // With a limit on samples per item, the items are leased: they return to the table if building the batch fails.
    let mut ticket = detached(py, || {
        let table = engine.table(table)?;
        let leased = table.options().max_times_sampled > 0;
        table.sample_some(n, at_least, leased)
    })?;
    let sample = match wait_for_table(py, &mut ticket, deadline, describe)? {
        Some(sample) => sample,
        None => detached(py, || engine.finish_at_deadline(ticket, timeout.seconds()))?,
    };
    let (columns, sample) = detached(py, || sample.gather(length_policy, engine.pool()))?;
    let infos = sample.draws.iter().map(Draw::info).collect();
    let batch = Batch::new(py, columns, infos, false)?;
    if let Some(lease) = sample.lease
        && let Some(durable) = py.detach(|| lease.acknowledge())
    {
        // The caller has the items, so an error is ignored: a store that reopens the directory might sample them again.
        let mut durable = Box::pin(async move {
            let _ = durable.await;
            Ok::<(), Error>(())
        });
        wait_for(py, &mut durable, None)?;
    }
    Ok(batch)
}

/// The message of a sample that has waited long.
fn describe_long_wait(tables: &Tables, table: &str, n: usize, waited: &str) -> String {
    let reason = blocked_reason(tables, table, Blocked::Sampling);
    format!(
        "`sample` has waited {waited} for {} of table `{table}`{reason}",
        count(n, "item")
    )
}

/// Waits until a server has made an acknowledgement durable.
///
/// # Errors
/// `UnavailableError` if the connection is lost before: then it is unknown whether the samples are acknowledged.
fn wait_until_durable(py: Python<'_>, durable: PendingResponse<()>) -> PyResult<()> {
    let mut durable = Box::pin(async move {
        match durable.await {
            // Ignored, as in process, because the caller has the items.
            Err(Error::Storage(_)) => Ok(()),
            outcome => outcome,
        }
    });
    wait_for(py, &mut durable, None).map(|_| ())
}

/// Samples a table of a server.
pub(crate) fn sample_remote(
    py: Python<'_>,
    remote: &Arc<RemoteTables>,
    request: BatchRequest,
    timeout: Timeout,
) -> PyResult<Batch> {
    let (table, n) = (request.table.clone(), request.n);
    let client = &remote.client;
    let mut ticket = client.sample(request);
    // The server enforces the timeout. The deadline here is for a server that does not reply.
    let deadline = timeout
        .deadline()
        .map(|deadline| deadline + SAMPLE_REPLY_GRACE);
    let tables = Tables::Remote(Arc::clone(remote));
    let describe = |waited: &str| describe_long_wait(&tables, &table, n as usize, waited);
    let error = match wait_for_table(py, &mut ticket, deadline, describe) {
        Ok(Some(delivered)) => {
            let batch = Batch::new(py, delivered.batch.columns, delivered.batch.infos, false)?;
            if let Some(durable) = delivered.lease.acknowledge() {
                wait_until_durable(py, durable)?;
            }
            return Ok(batch);
        }
        Ok(None) => Error::DeadlineExceeded(format!(
            "the server at {} did not reply within {} s to a request for {} of table `{table}`",
            client.address(),
            timeout.seconds(),
            count(n, "sample")
        )),
        Err(error) => return Err(error),
    };
    Err(errors::to_py(py, &error))
}
