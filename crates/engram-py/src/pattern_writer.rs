//! The pattern writer, as `engram.PatternWriter` sees it.

use engram_core::writer::{PatternSet, Recorder};
use pyo3::prelude::*;

use crate::door::{Home, Timeout};
use crate::errors;
use crate::intake::{Appended, Intake};
use crate::patterns::{PatternConfig, check};
use crate::sender::Sender;
use crate::store::Store;
use crate::writer::options;

/// Steps in; items out by themselves.
#[pyclass(module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct PatternWriter {
    home: Home<Inner>,
}

#[derive(Debug)]
struct Inner {
    recorder: Recorder,
    intake: Intake,
    sender: Sender,
    patterns: PatternSet,
    /// Compiles the declared patterns once the first step shows the structure.
    compile: Py<PyAny>,
    /// They were compiled for the columns that there are.
    compiled: bool,
}

impl Inner {
    fn send(&mut self, py: Python<'_>) -> PyResult<()> {
        let waiting = self.recorder.pending_items() - self.recorder.ready_items();
        let ready = self.recorder.take_ready();
        self.sender.send(py, ready, waiting)
    }

    /// Compiles all patterns whose columns have appeared.
    fn compile(&mut self, py: Python<'_>) -> PyResult<()> {
        let Some(structure) = self.intake.structure() else {
            return Ok(());
        };
        let configs: Vec<PatternConfig> =
            self.compile.bind(py).call1((&structure.text,))?.extract()?;
        for (number, config) in configs.into_iter().enumerate() {
            let column = |leaf| self.intake.column(leaf);
            let Some(pattern) = config.compile(py, &mut self.sender, column)? else {
                continue;
            };
            check(py, &pattern, &self.sender, self.recorder.schema())?;
            self.recorder.keep(pattern.history());
            self.patterns.set(number, pattern, self.recorder.schema());
        }
        self.compiled = true;
        Ok(())
    }

    fn apply(&mut self, py: Python<'_>, end_of_episode: bool) -> PyResult<()> {
        let made = self.patterns.apply(&mut self.recorder, end_of_episode);
        let sent = self.send(py);
        made.map_err(|error| errors::to_py(py, &error))?;
        sent
    }
}

#[pymethods]
impl PatternWriter {
    #[new]
    #[expect(
        clippy::too_many_arguments,
        reason = "one per keyword of Store.pattern_writer"
    )]
    fn new(
        py: Python<'_>,
        store: &Store,
        patterns: usize,
        compile: Py<PyAny>,
        chunk_length: Option<usize>,
        max_in_flight_items: usize,
        timeout: Option<f64>,
        compression: &str,
    ) -> PyResult<Self> {
        let engine = store.engine(py)?;
        let timeout = Timeout::new(py, timeout)?;
        let options = options(1, chunk_length, compression, py)?;
        let recorder = Recorder::new(options, engine.fresh_number())
            .map_err(|error| errors::to_py(py, &error))?;
        let inner = Inner {
            recorder,
            intake: Intake::default(),
            sender: Sender::new(engine, max_in_flight_items, timeout),
            patterns: PatternSet::new(patterns),
            compile,
            compiled: false,
        };
        Ok(Self {
            home: Home::new("writer", inner),
        })
    }

    #[pyo3(signature = (step, *, partial_step = false))]
    fn append(
        &mut self,
        py: Python<'_>,
        step: &Bound<'_, PyAny>,
        partial_step: bool,
    ) -> PyResult<()> {
        let inner = self.home.get_mut(py)?;
        inner.sender.make_room(py)?;
        // The parts of a step may come in any grouping; a whole one must look like those before.
        let whole = !(partial_step || inner.recorder.step_is_open());
        let mut appended = Appended::default();
        let wrote = inner
            .intake
            .write(&mut inner.recorder, step, whole, &mut appended);
        // Columns have moved whether or not the step is taken.
        if let Some(map) = &appended.map {
            inner.compiled = false;
            inner
                .patterns
                .remap(map)
                .map_err(|error| errors::to_py(py, &error))?;
        }
        let ready = match wrote {
            Ok(()) if !inner.compiled && !partial_step => inner.compile(py),
            other => other,
        };
        inner
            .intake
            .finish(&mut inner.recorder, partial_step, &appended, py, ready)?;
        inner.apply(py, false)
    }

    fn end_episode(&mut self, py: Python<'_>, timeout: Option<f64>, clear: bool) -> PyResult<()> {
        let timeout = Timeout::new(py, timeout)?;
        let inner = self.home.get_mut(py)?;
        inner.apply(py, true)?;
        inner
            .recorder
            .end_episode(clear)
            .map_err(|error| errors::to_py(py, &error))?;
        inner.send(py)?;
        inner.sender.wait(py, timeout)
    }

    fn flush(&mut self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let timeout = Timeout::new(py, timeout)?;
        let inner = self.home.get_mut(py)?;
        inner
            .recorder
            .flush()
            .map_err(|error| errors::to_py(py, &error))?;
        inner.send(py)?;
        inner.sender.wait(py, timeout)
    }

    fn close(&mut self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        if self.home.get(py)?.sender.closed {
            return Ok(());
        }
        self.flush(py, timeout)?;
        self.home.get_mut(py)?.sender.closed = true;
        Ok(())
    }

    #[getter]
    fn episode_steps(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.home.get(py)?.recorder.episode_steps())
    }

    #[getter]
    fn pending_items(&self, py: Python<'_>) -> PyResult<usize> {
        let inner = self.home.get(py)?;
        Ok(inner.recorder.pending_items() + inner.sender.outbox.items_left())
    }
}
