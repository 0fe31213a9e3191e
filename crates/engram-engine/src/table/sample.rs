//! Calls that sample.

use std::sync::Arc;

use engram_core::gather::LengthPolicy;
use engram_core::pool::Pool;
use engram_core::{Error, Result};

use crate::lease::{Batch, Lease};
use crate::table::Table;
use crate::table::serve::WaitingSample;
use crate::ticket::SampleTicket;

/// Maximum number of draws for which memory is allocated before the table is locked.
const MAX_PREALLOCATED: usize = 1 << 20;

/// What a call samples, and how long it waits.
#[derive(Clone, Copy, Debug)]
pub struct SampleOptions {
    /// Maximum number of items.
    pub n: usize,
    /// Minimum number of items: if at least this many are available, the call returns them instead of waiting for `n`.
    pub at_least: usize,
    /// Lease the items even if sampling removes none. If it can remove items, they are leased in any case: they return
    /// to the table if they do not reach the caller.
    pub lease: bool,
    /// Seconds after which the call fails if it has fewer than `at_least` items; `None` or infinity mean no limit.
    pub timeout: Option<f64>,
}

impl Table {
    /// Samples items and copies them into a batch. Does nothing until it is polled. If it is dropped before it is ready,
    /// the items drawn so far return to the table.
    ///
    /// # Errors
    /// Those of [`Self::sample_with`], its ticket and [`Sample::gather`](crate::Sample::gather).
    pub async fn sample_batch(
        self: &Arc<Self>,
        options: SampleOptions,
        length_policy: LengthPolicy,
        pool: &Arc<Pool>,
    ) -> Result<(Batch, Option<Lease>)> {
        let sample = self.sample_with(options)?.await?;
        sample.gather(length_policy, pool)
    }

    /// Samples items.
    ///
    /// # Errors
    /// [`Error::Unsatisfiable`] if the table can never yield `at_least` items; [`Error::InvalidArgument`] if `n` is 0, or
    /// unless `at_least` is from 1 to `n`; [`Error::Closed`].
    pub fn sample_with(self: &Arc<Self>, options: SampleOptions) -> Result<SampleTicket> {
        let leased = options.lease || self.options.max_times_sampled > 0;
        let ticket = self.begin_sample((options.n, options.at_least), leased);
        let ticket = ticket.map_err(|error| self.count_rejected(error))?;
        Ok(ticket.with_timeout(options.timeout))
    }

    /// Samples exactly `n` items, waiting for them if necessary. If `leased`, the sample has a lease, which the caller
    /// acknowledges or drops; otherwise it is final.
    ///
    /// # Errors
    /// Those of [`Self::sample_with`].
    pub fn sample(self: &Arc<Self>, n: usize, leased: bool) -> Result<SampleTicket> {
        self.begin_sample((n, n), leased)
    }

    fn begin_sample(
        self: &Arc<Self>,
        (n, at_least): (usize, usize),
        leased: bool,
    ) -> Result<SampleTicket> {
        if at_least > n || (at_least == 0 && n > 0) {
            return Err(Error::InvalidArgument(format!(
                "`at_least` must be from 1 to the number of samples ({n}); got {at_least}"
            )));
        }
        let mut draws = Vec::with_capacity(n.min(MAX_PREALLOCATED));
        let id = self.change(|locked, after, _| {
            locked.check_open()?;
            locked.state.check_sample(at_least)?;
            if locked.samples.is_empty() && locked.state.can_draw_at_once(n) {
                let count = locked
                    .state
                    .draw(n, leased, &mut draws, &mut after.deferred);
                locked.meter.samples += count as u64;
                return Ok(None);
            }
            let id = locked.new_ticket_id();
            locked.samples.insert(
                id,
                WaitingSample {
                    n,
                    at_least,
                    served: n == 0,
                    draws: std::mem::take(&mut draws),
                    waker: None,
                },
            );
            Ok(Some(id))
        })?;
        Ok(SampleTicket {
            table: Arc::clone(self),
            n,
            at_least,
            leased,
            id,
            draws,
            deadline: None,
        })
    }
}
