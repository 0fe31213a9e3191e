//! What all writers share: sending items, and waiting for the tables to take them.

use std::sync::Arc;
use std::time::Instant;

use engram_core::{Error, NewItem};
use engram_engine::{Engine, Outbox};
use pyo3::prelude::*;

use crate::door::{Timeout, wait_for};
use crate::errors;

/// Items on their way, and how many of them there may be.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) engine: Arc<Engine>,
    pub(crate) outbox: Outbox,
    max_in_flight: usize,
    timeout: Timeout,
    pub(crate) closed: bool,
    /// Items in unfinished chunks, as the engine was told last.
    unsent: u64,
}

impl Sender {
    pub(crate) fn new(engine: &Arc<Engine>, max_in_flight: usize, timeout: Timeout) -> Self {
        let outbox = Outbox::default();
        Self {
            engine: Arc::clone(engine),
            outbox,
            max_in_flight,
            timeout,
            closed: false,
            unsent: 0,
        }
    }

    /// Called before anything is written: at the bound it waits, or refuses.
    pub(crate) fn make_room(&mut self, py: Python<'_>) -> PyResult<()> {
        if self.closed {
            return Err(errors::to_py(
                py,
                &Error::Closed("this writer is closed".into()),
            ));
        }
        if self.outbox.in_flight() <= self.max_in_flight {
            return Ok(());
        }
        let deadline = self.timeout.deadline();
        if wait_for(py, self.outbox.wait_for(self.max_in_flight), deadline)?.is_some() {
            return Ok(());
        }
        let text = format!(
            "{} items of this writer wait for their tables, {} are allowed, and none was taken within {} s{}",
            self.outbox.in_flight(),
            self.max_in_flight,
            self.timeout.seconds(),
            self.outbox.why_waiting()
        );
        Err(errors::to_py(py, &Error::Backpressure(text)))
    }

    /// Sends items whose chunks are complete; `unsent` more are not.
    pub(crate) fn send(
        &mut self,
        py: Python<'_>,
        ready: impl ExactSizeIterator<Item = (u32, NewItem)> + Send,
        unsent: usize,
    ) -> PyResult<()> {
        let unsent = unsent as u64;
        if unsent != self.unsent {
            self.engine.tell_unsent(self.unsent, unsent);
            self.unsent = unsent;
        }
        if ready.len() == 0 {
            return Ok(());
        }
        let outbox = &mut self.outbox;
        py.detach(|| outbox.send(ready))
            .map_err(|error| errors::to_py(py, &error))
    }

    /// Waits until the tables have everything that was sent.
    pub(crate) fn wait(&mut self, py: Python<'_>, timeout: Timeout) -> PyResult<()> {
        let deadline: Option<Instant> = timeout.deadline();
        if wait_for(py, self.outbox.wait_for(0), deadline)?.is_some() {
            return Ok(());
        }
        let text = format!(
            "{} items wait for their tables after {} s; they stay queued{}",
            self.outbox.items_left(),
            timeout.seconds(),
            self.outbox.why_waiting()
        );
        Err(errors::to_py(py, &Error::DeadlineExceeded(text)))
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.engine.tell_unsent(self.unsent, 0);
    }
}
