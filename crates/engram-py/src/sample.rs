//! The call `sample`, in process and on a server.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engram_core::gather::LengthPolicy;
use engram_core::text::count;
use engram_core::{Error, Result};
use engram_engine::{BatchLease, Engine, SampleOptions};
use engram_rpc::client::{BatchRequest, PendingResponse, RemoteLease, ShardedBatch};
use pyo3::prelude::*;

use crate::batch::Batch;
use crate::blocked_reason::{Blocked, blocked_reason};
use crate::errors;
use crate::gil::{Deadlock, Timeout, wait_for, wait_for_table};
use crate::tables::{RemoteTables, Tables};

/// Extra time for a server's reply after the deadline of a sample request.
const SAMPLE_REPLY_GRACE: Duration = Duration::from_millis(750);

const HAS_BATCH: &str = "; this error has the batch, as `batch`";

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
    let sampled = async { sampled.await.map(Some) };
    let what = (&tables, table, options.n);
    match finish(
        py,
        what,
        sampled,
        BatchLease::acknowledge,
        None,
        deadlock,
        None,
    )? {
        Finished::Sampled(batch) => Ok(batch),
        Finished::TimedOut | Finished::Returned => Err(errors::invalid(py, "interrupted".into())),
    }
}

/// Samples a table of a server.
pub(crate) fn sample_remote(
    py: Python<'_>,
    remote: &Arc<RemoteTables>,
    request: &BatchRequest,
    timeout: Timeout,
) -> PyResult<Batch> {
    let (table, n) = (&*request.table, request.options.n);
    let tables = Tables::Remote(Arc::clone(remote));
    let end = timeout.deadline();
    // The server enforces the timeout. The deadline here is for a server that does not reply.
    let deadline = end.map(|end| end + SAMPLE_REPLY_GRACE);
    let finished = finish_repeated(request, end, |request| {
        let ticket = remote.client.sample(request);
        let sampled = async {
            let sampled = ticket.await?;
            sampled.lease.until_known().await;
            Ok((!sampled.lease.has_ended()?).then_some((sampled.batch, Some(sampled.lease))))
        };
        let acknowledge = RemoteLease::acknowledge_before_use;
        finish(
            py,
            (&tables, table, n),
            sampled,
            acknowledge,
            deadline,
            None,
            Some((timeout, end)),
        )
    })?;
    finished.ok_or_else(|| {
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
    request: &BatchRequest,
    timeout: Timeout,
    sample: impl Fn(BatchRequest) -> PendingResponse<ShardedBatch>,
) -> PyResult<Batch> {
    let what = (tables, &*request.table, request.options.n);
    // The servers enforce the timeout, and the sample a deadline for their replies.
    let end = timeout.deadline();
    let finished = finish_repeated(request, end, |request| {
        let ticket = sample(request);
        let sampled = async {
            let sampled = ticket.await?;
            sampled.lease.until_known().await;
            Ok((!sampled.lease.has_ended()).then_some((sampled.batch, Some(sampled.lease))))
        };
        let acknowledge = BatchLease::acknowledge;
        finish(
            py,
            what,
            sampled,
            acknowledge,
            None,
            None,
            Some((timeout, end)),
        )
    })?;
    finished.ok_or_else(|| errors::invalid(py, "interrupted".into()))
}

/// How a sample ended.
enum Finished {
    Sampled(Batch),
    TimedOut,
    /// A connection was lost, and a server has returned the items to their table.
    Returned,
}

/// Samples again as long as the items return to their table, with the time that is left until `end`; `None` if the sample
/// timed out.
fn finish_repeated(
    request: &BatchRequest,
    end: Option<Instant>,
    sample: impl Fn(BatchRequest) -> PyResult<Finished>,
) -> PyResult<Option<Batch>> {
    let mut request = request.clone();
    loop {
        match sample(request.clone())? {
            Finished::Sampled(batch) => return Ok(Some(batch)),
            Finished::TimedOut => return Ok(None),
            Finished::Returned => {}
        }
        if let Some(end) = end {
            let left = end.saturating_duration_since(Instant::now());
            request.options.timeout = Some(left.as_secs_f64());
        }
    }
}

/// Waits for a sample of `n` items, which is `None` if they have returned to their table; builds its batch and then
/// acknowledges it. If the batch cannot be built, its lease is dropped, which returns the items to the table.
///
/// `timeout`: that of the call and its end, for a server that may not confirm the acknowledgement.
///
/// # Errors
/// Those of the sample. An error after the acknowledgement has the batch.
fn finish<L, D>(
    py: Python<'_>,
    (tables, table, n): (&Tables, &str, usize),
    sampled: impl Future<Output = Result<Option<(engram_engine::Batch, Option<L>)>>> + Send,
    acknowledge: impl FnOnce(L) -> Option<D>,
    deadline: Option<Instant>,
    deadlock: Option<&Deadlock<'_>>,
    timeout: Option<(Timeout, Option<Instant>)>,
) -> PyResult<Finished>
where
    L: Send,
    D: Future<Output = Result<()>> + Send,
{
    let describe = |waited: &str| {
        let reason = blocked_reason(tables, table, Blocked::Sampling);
        format!(
            "`sample` has waited {waited} for {} of table `{table}`{reason}",
            count(n, "item")
        )
    };
    let mut sampled = pin!(sampled);
    let waited = wait_for_table(py, &mut sampled, deadline, describe, deadlock)?;
    let (batch, lease) = match waited {
        Some(Some(sampled)) => sampled,
        Some(None) => return Ok(Finished::Returned),
        None => return Ok(Finished::TimedOut),
    };
    let batch = Batch::new(py, batch.columns, batch.infos, false)?;
    // Does not wait for other threads for long, so it keeps the GIL.
    let Some(durable) = lease.and_then(acknowledge) else {
        return Ok(Finished::Sampled(batch));
    };
    let mut confirmed = pin!(async { Ok(durable.await) });
    let confirm_by = timeout.and_then(|(_, end)| end);
    let confirm_by = confirm_by.map(|end| end.max(Instant::now()) + SAMPLE_REPLY_GRACE);
    let error = match wait_for(py, &mut confirmed, confirm_by) {
        // Storage: ignored, because the caller has the items: a store that reopens the directory might sample them again.
        Ok(Some(Ok(()) | Err(Error::Storage(_) | Error::Closed(_)))) => {
            return Ok(Finished::Sampled(batch));
        }
        Ok(Some(Err(Error::LeaseEnded(_)))) => return Ok(Finished::Returned),
        Ok(Some(Err(error))) => errors::append_text(py, errors::to_py(py, &error), HAS_BATCH),
        Ok(None) => {
            let seconds = timeout.map_or(f64::INFINITY, |(timeout, _)| timeout.seconds());
            errors::to_py(
                py,
                &Error::Unavailable(format!(
                    "table `{table}`: the server did not confirm within {seconds} s (`timeout`) that the sampled items are \
                     acknowledged, so they may be sampled again{HAS_BATCH}"
                )),
            )
        }
        // Of a signal handler. The server may remove the items.
        Err(error) => error,
    };
    let _ = error.value(py).setattr("batch", Py::new(py, batch)?);
    Err(error)
}
