//! Scans, for `engram.Scan`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use engram_core::gather::{Columns, gather};
use engram_core::pool::Pool;
use engram_core::table::ScanOrder;
use engram_core::{Draw, Result, SampledItemInfo};
use engram_engine::{Scan, ScanOptions, WaitOptions, WaitOutcome, wait};
use engram_rpc::client::{RemoteScan, ScanRequest};
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;

use crate::batch::{Batch, length_policy};
use crate::errors;
use crate::gil::{ForkGuard, check_signals, detached};
use crate::tables::{Tables, wait_for_reply};

/// A scan of a local or a remote table.
#[derive(Debug)]
enum BatchScan {
    Local(Scan, Arc<Pool>),
    Remote(Box<RemoteScan>),
}

/// The columns of a batch, and the properties of its items.
type FetchedBatch = (Columns, Vec<SampledItemInfo>);

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
    // Copied, because other threads can write to the array while the GIL is released.
    let keys = keys.map(|keys| keys.as_slice().map(<[u64]>::to_vec));
    Ok(ScanRequest {
        table: table.into(),
        options: ScanOptions {
            order,
            keys: keys.transpose()?,
        },
        batch_size: u32::try_from(batch_size.unwrap_or(1)).unwrap_or(u32::MAX),
        pad,
    })
}

/// Begins a scan. With `single`, it returns single items.
pub(crate) fn begin(
    py: Python<'_>,
    tables: &Tables,
    request: ScanRequest,
    single: bool,
) -> PyResult<PyScan> {
    let (batch_size, pad) = (request.batch_size as usize, request.pad);
    let (scan, num_items) = match tables {
        Tables::Local(engine) => detached(py, || {
            let scan = Scan::begin(&engine.table(&request.table)?, &request.options)?;
            let num_items = scan.num_items();
            Ok((BatchScan::Local(scan, Arc::clone(engine.pool())), num_items))
        })?,
        Tables::Remote(remote) => {
            let scan = wait_for_reply(py, remote.client.scan(request))?;
            let num_items = scan.num_items();
            (BatchScan::Remote(Box::new(scan)), num_items)
        }
    };
    let open = OpenScan {
        scan: Mutex::new(Some(scan)),
        is_closed: AtomicBool::new(false),
    };
    Ok(PyScan {
        scan: ForkGuard::new("scan", open),
        num_items,
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
