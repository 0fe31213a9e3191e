//! Scans, for `engram.Scan`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use engram_core::gather::{Columns, gather};
use engram_core::pool::Pool;
use engram_core::table::{PeekOrder, ScanOrder};
use engram_core::{Draw, Result, SampledItemInfo};
use engram_engine::{
    Peek, PeekOptions, PeekedItem, Scan, ScanOptions, WaitOptions, WaitOutcome, wait,
};
use engram_rpc::client::{RemoteScan, ScanRequest};
use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::batch::{Batch, length_policy};
use crate::errors;
use crate::gil::{ForkGuard, check_signals, detached};
use crate::tables::{Tables, wait_for_reply};

/// A scan of a local or a remote table.
#[derive(Debug)]
enum BatchScan {
    Local(Box<Scan>, Arc<Pool>),
    Remote(Box<RemoteScan>),
}

/// The columns of a batch, and the properties of its items.
type FetchedBatch = (Columns, Vec<SampledItemInfo>);

/// The values of a [`PeekedItem`], in order.
type PeekedValues = (u64, f64, u32, u64, u64, u64, Option<u64>, bool);

/// What [`PyScan::fetch`] returns.
enum Fetched {
    Batch(Box<FetchedBatch>),
    End,
    Interrupted,
}

/// Returns the request for a scan. Without a `batch_size`, each batch has one item.
///
/// # Errors
/// `TypeError` if the keys are not contiguous.
pub(crate) fn request(
    table: &str,
    newest_first: bool,
    keys: Option<PyReadonlyArray1<'_, u64>>,
    batch_size: Option<usize>,
    pad: bool,
) -> PyResult<ScanRequest> {
    let order = if newest_first {
        ScanOrder::NewestFirst
    } else {
        ScanOrder::OldestFirst
    };
    Ok(ScanRequest {
        table: table.into(),
        options: ScanOptions {
            order,
            keys: copied(keys)?,
            peek: None,
        },
        batch_size: u32::try_from(batch_size.unwrap_or(1)).unwrap_or(u32::MAX),
        pad,
    })
}

/// Returns the request for a peek: a scan of single items.
///
/// # Errors
/// `TypeError` if the keys are not contiguous.
pub(crate) fn peek_request(
    table: &str,
    n: usize,
    order: &str,
    keys: Option<PyReadonlyArray1<'_, u64>>,
    max_bytes: Option<u64>,
) -> PyResult<ScanRequest> {
    let order = match order {
        "oldest" => PeekOrder::Oldest,
        "newest" => PeekOrder::Newest,
        "highest_priority" => PeekOrder::HighestPriority,
        "lowest_priority" => PeekOrder::LowestPriority,
        "most_sampled" => PeekOrder::MostSampled,
        _ => return Err(PyValueError::new_err("unknown order")),
    };
    Ok(ScanRequest {
        table: table.into(),
        options: ScanOptions {
            order: ScanOrder::OldestFirst,
            keys: copied(keys)?,
            peek: Some(PeekOptions {
                order,
                n,
                max_bytes,
            }),
        },
        batch_size: 1,
        pad: false,
    })
}

/// A copy of an array, because other threads can write to it while the GIL is released.
fn copied(keys: Option<PyReadonlyArray1<'_, u64>>) -> PyResult<Option<Vec<u64>>> {
    let keys = keys.map(|keys| keys.as_slice().map(<[u64]>::to_vec));
    Ok(keys.transpose()?)
}

/// Begins a scan. With `single`, it returns single items.
pub(crate) fn begin(
    py: Python<'_>,
    tables: &Tables,
    request: ScanRequest,
    single: bool,
) -> PyResult<PyScan> {
    let (batch_size, pad) = (request.batch_size as usize, request.pad);
    let (scan, num_items, peek) = match tables {
        Tables::Local(engine) => detached(py, || {
            let scan = Scan::begin(&engine.table(&request.table)?, &request.options)?;
            let (num_items, peek) = (scan.num_items(), scan.peek().cloned());
            let scan = BatchScan::Local(Box::new(scan), Arc::clone(engine.pool()));
            Ok((scan, num_items, peek))
        })?,
        Tables::Remote(remote) => {
            let scan = wait_for_reply(py, remote.client.scan(request))?;
            let (num_items, peek) = (scan.num_items(), scan.peek().cloned());
            (BatchScan::Remote(Box::new(scan)), num_items, peek)
        }
    };
    let open = OpenScan {
        scan: Mutex::new(Some(scan)),
        is_closed: AtomicBool::new(false),
    };
    Ok(PyScan {
        scan: ForkGuard::new("scan", open),
        num_items,
        peek,
        batch_size,
        pad,
        single,
    })
}

/// A scan that can be closed while `next` runs.
#[derive(Debug)]
struct OpenScan {
    /// `None` once the scan has ended or was dropped. `next` keeps it locked while it fetches, without the GIL.
    scan: Mutex<Option<BatchScan>>,
    is_closed: AtomicBool,
}

impl OpenScan {
    fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.drop_if_closed();
    }

    /// Drops the scan if it is closed and `next` does not run. If `next` runs, it calls this when it has unlocked the
    /// scan.
    fn drop_if_closed(&self) {
        if self.is_closed.load(Ordering::SeqCst)
            && let Ok(mut scan) = self.scan.try_lock()
        {
            let scan = scan.take();
            drop(scan);
        }
    }
}

/// The native class of `engram.Scan`.
#[pyclass(frozen, name = "Scan", module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct PyScan {
    scan: ForkGuard<OpenScan>,
    num_items: u64,
    peek: Option<Peek>,
    batch_size: usize,
    pad: bool,
    /// True if batches have one item and no axis for items.
    single: bool,
}

impl PyScan {
    fn next_local(&self, scan: &mut Scan, pool: &Arc<Pool>) -> Result<Option<FetchedBatch>> {
        let items = scan.next_items(self.batch_size)?;
        if items.is_empty() {
            return Ok(None);
        }
        match gather(&items, length_policy(self.pad), pool) {
            Ok(columns) => Ok(Some((columns, items.iter().map(Draw::info).collect()))),
            Err(error) => Err(scan.leave_out_unreadable(items, error, pool)),
        }
    }

    fn fetch(&self, scan: &OpenScan, options: &mut WaitOptions<'_>) -> Result<Fetched> {
        let mut open = (scan.scan.lock()).unwrap_or_else(PoisonError::into_inner);
        if scan.is_closed.load(Ordering::SeqCst) {
            return Ok(Fetched::End);
        }
        let batch = match &mut *open {
            None => None,
            Some(BatchScan::Local(scan, pool)) => self.next_local(scan, pool)?,
            Some(BatchScan::Remote(scan)) => match wait(&mut scan.next_batch(), options) {
                WaitOutcome::Ready(batch) => batch?.map(|batch| (batch.columns, batch.infos)),
                WaitOutcome::TimedOut | WaitOutcome::Interrupted => {
                    return Ok(Fetched::Interrupted);
                }
            },
        };
        if batch.is_none() {
            *open = None;
        }
        Ok(batch.map_or(Fetched::End, |batch| Fetched::Batch(Box::new(batch))))
    }
}

#[pymethods]
impl PyScan {
    /// Number of items that the scan reads.
    #[getter]
    fn num_items(&self) -> u64 {
        self.num_items
    }

    /// For a peek: number of compared items, size of the table, and the items' keys, priorities, numbers of samples,
    /// ages, bytes, chunks and episodes, and whether their data is read.
    #[getter]
    fn peeked(&self) -> Option<(u64, u64, Vec<PeekedValues>)> {
        let peek = self.peek.as_ref()?;
        let values = peek.items.iter().map(|item| {
            let PeekedItem {
                key,
                priority,
                times_sampled,
                age,
                bytes,
                chunk,
                episode,
                has_data,
            } = *item;
            (
                key,
                priority,
                times_sampled,
                age,
                bytes,
                chunk,
                episode,
                has_data,
            )
        });
        Some((peek.num_compared, peek.table_size, values.collect()))
    }

    /// Returns the next batch; None at the end, and after `close`.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let scan = self.scan.get(py)?;
        let mut raised = None;
        let fetched = py.detach(|| {
            let mut options = WaitOptions {
                deadline: None,
                interrupted: &mut || {
                    check_signals(&mut raised) || scan.is_closed.load(Ordering::SeqCst)
                },
            };
            let fetched = self.fetch(scan, &mut options);
            scan.drop_if_closed();
            fetched
        });
        match fetched.map_err(|error| errors::to_py(py, &error))? {
            Fetched::Batch(batch) => Batch::new(py, batch.0, batch.1, self.single).map(Some),
            Fetched::End | Fetched::Interrupted => raised.map_or(Ok(None), Err),
        }
    }

    /// Ends the scan, also while `next` runs, and releases the items that were not read.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let scan = self.scan.get(py)?;
        py.detach(|| scan.close());
        Ok(())
    }
}
