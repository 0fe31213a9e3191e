//! The call `sample`, in process and on a server.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engram_core::gather::LengthPolicy;
use engram_core::text::count;
use engram_core::{Error, Result};
use engram_engine::{BatchLease, Engine, SampleOptions};
use engram_rpc::client::{BatchRequest, LeasedBatch, PendingResponse, ShardedBatch};
use pyo3::prelude::*;

use crate::batch::Batch;
use crate::blocked_reason::{Blocked, blocked_reason};
use crate::errors;
use crate::gil::{Deadlock, Timeout, wait_for, wait_for_table};
use crate::tables::{RemoteTables, Tables};

/// Extra time for a server's reply after the deadline of a sample request.
const SAMPLE_REPLY_GRACE: Duration = Duration::from_millis(750);

/// Samples a table of this process. The engine enforces the timeout.
pub(crate) fn sample_local(
    py: Python<'_>,
    engine: &Arc<Engine>,
    table: &str,
    options: SampleOptions,
    length_policy: LengthPolicy,
) -> PyResult<Batch> {
    let tables = Tables::Local(Arc::clone(engine));
    let sampled = async {
        let table = engine.table(table)?;
        let sampled = table.sample_batch(options, length_policy, engine.pool());
        sampled.await
    };
    let deadlock = || {
        let info = engine.table(table).ok()?.info();
        let at_least = options.at_least.min(options.n);
        (info.waiting_samples > 0).then(|| {
            Error::Unsatisfiable(format!(
                "`sample` waits for {}{} of table `{table}`, and has taken none{}; this is the only thread of the process, so \
                 nothing is inserted while it waits: insert more before you sample, call `flush` of the writers, or pass \
                 `timeout`",
                if at_least < options.n { "at least " } else { "" },
                count(at_least, "item"),
                blocked_reason(&tables, table, Blocked::Sampling)
            ))
        })
    };
    let waits_forever = options.timeout.is_none_or(f64::is_infinite);
    let deadlock: Option<&Deadlock<'_>> = if waits_forever { Some(&deadlock) } else { None };
    let batch = finish(py, (&tables, table, options.n), sampled, None, deadlock)?;
    batch.ok_or_else(|| errors::invalid(py, "interrupted".into()))
}

/// Samples a table of a server.
pub(crate) fn sample_remote(
    py: Python<'_>,
    remote: &Arc<RemoteTables>,
    request: BatchRequest,
    timeout: Timeout,
) -> PyResult<Batch> {
    let (table, n) = (request.table.clone(), request.options.n);
    let tables = Tables::Remote(Arc::clone(remote));
    let ticket = remote.client.sample(request);
    // The server enforces the timeout. The deadline here is for a server that does not reply.
    let deadline = timeout
        .deadline()
        .map(|deadline| deadline + SAMPLE_REPLY_GRACE);
    let batch = finish(py, (&tables, &table, n), receive(ticket), deadline, None)?;
    batch.ok_or_else(|| {
        let text = format!(
            "the server at {} did not reply within {} s to a request for {} of table `{table}`{}",
            remote.client.address(),
            timeout.seconds(),
            count(n, "sample"),
            remote.connect_failure_note()
        );
        errors::to_py(py, &Error::DeadlineExceeded(text))
    })
}

/// Samples a table of several servers.
pub(crate) fn sample_sharded(
    py: Python<'_>,
    tables: &Tables,
    (table, n): (&str, usize),
    ticket: PendingResponse<ShardedBatch>,
) -> PyResult<Batch> {
    // The servers enforce the timeout, and the sample a deadline for their replies.
    let batch = finish(py, (tables, table, n), receive(ticket), None, None)?;
    batch.ok_or_else(|| errors::invalid(py, "interrupted".into()))
}

/// Waits for a batch of servers; returns it with its lease.
async fn receive<L>(
    ticket: impl Future<Output = Result<LeasedBatch<L>>>,
) -> Result<(engram_engine::Batch, Option<L>)> {
    let sampled = ticket.await?;
    Ok((sampled.batch, Some(sampled.lease)))
}

/// Waits for a sample of `n` items, builds its batch and then acknowledges it; `None` at the deadline. If the batch cannot
/// be built, its lease is dropped, which returns the items to the table.
fn finish<L: BatchLease + Send>(
    py: Python<'_>,
    (tables, table, n): (&Tables, &str, usize),
    sampled: impl Future<Output = Result<(engram_engine::Batch, Option<L>)>> + Send,
    deadline: Option<Instant>,
    deadlock: Option<&Deadlock<'_>>,
) -> PyResult<Option<Batch>> {
    let describe = |waited: &str| {
        let reason = blocked_reason(tables, table, Blocked::Sampling);
        format!(
            "`sample` has waited {waited} for {} of table `{table}`{reason}",
            count(n, "item")
        )
    };
    let mut sampled = pin!(sampled);
    let waited = wait_for_table(py, &mut sampled, deadline, describe, deadlock)?;
    let Some((batch, lease)) = waited else {
        return Ok(None);
    };
    let batch = Batch::new(py, batch.columns, batch.infos, false)?;
    // Does not wait for other threads for long, so it keeps the GIL.
    if let Some(durable) = lease.and_then(BatchLease::acknowledge) {
        let mut durable = pin!(async {
            match durable.await {
                // Ignored, because the caller has the items: a store that reopens the directory might sample them again.
                Err(Error::Storage(_) | Error::Closed(_)) => Ok(()),
                outcome => outcome,
            }
        });
        wait_for(py, &mut durable, None)?;
    }
    Ok(Some(batch))
}
