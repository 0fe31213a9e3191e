//! The native class of `engram.gymnasium.VectorWriter`.

use std::sync::Arc;

use engram_core::writer::{AutoresetMode, ColumnInput, ItemRecorder, VectorRecorder, VectorStep};
use engram_core::{Layout, Schema, SharedBytes};
use numpy::PyUntypedArray;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::errors;
use crate::gil::exclusive;
use crate::leaf::{MIN_DETACHED_BYTES, bytes_of, prevent_resize};
use crate::sender::Sender;
use crate::store::Store;
use crate::vector_arguments::{Nest, read_final_observations, read_flags, read_rewards};
use crate::vector_items::VectorItemsConfig;
use crate::writer::{Writer, WriterConfig, WriterState};

/// Writes the transitions of N environments, and creates items that never cross the end of an episode.
#[pyclass(extends = Writer, module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct VectorWriter;

#[derive(Debug)]
struct VectorState {
    options: engram_core::writer::WriterOptions,
    num_envs: usize,
    mode: AutoresetMode,
    sender: Sender,
    /// Python function that compiles the declared items for the structures of observations, actions and extras.
    compile: Py<PyAny>,
    /// Python function that returns the last observations of the environments that ended, from `info`.
    final_observations: Py<PyAny>,
    /// Structure and cells of the observations; set by the first reset.
    observations: Option<Nest>,
    /// The observations of `reset` before the first step, when the other columns are not known yet.
    first: Option<FirstObservations>,
    /// Set by the first step.
    recording: Option<Recording>,
}

/// Observations of all environments, and which of them are the first ones of an episode.
#[derive(Debug)]
struct FirstObservations {
    bytes: Vec<Vec<u8>>,
    started: Vec<bool>,
}

#[derive(Debug)]
struct Recording {
    /// The action and, if the first step had any, the extras.
    others: Vec<Nest>,
    recorder: VectorRecorder,
}

impl WriterState for VectorState {
    fn parts(&self) -> (Option<&dyn ItemRecorder>, &Sender) {
        let recorder = (self.recording.as_ref()).map(|recording| &recording.recorder as _);
        (recorder, &self.sender)
    }

    fn parts_mut(&mut self) -> (Option<&mut dyn ItemRecorder>, &mut Sender) {
        let recorder = (self.recording.as_mut()).map(|recording| &mut recording.recorder as _);
        (recorder, &mut self.sender)
    }
}

impl VectorState {
    fn reset(&mut self, observations: &Bound<'_, PyAny>, mask: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = observations.py();
        let envs = self.num_envs;
        let started = if mask.is_none() {
            vec![true; envs]
        } else {
            read_flags(mask, "mask", envs)?
        };
        // Before the first step, a reset of all environments may have other columns than the one before.
        let is_new = self.recording.is_none() && started.iter().all(|started| *started);
        let Some(known) = self.observations.as_ref().filter(|_| !is_new) else {
            let (nest, arrays) = Nest::of(observations, "obs", envs)?;
            let bytes = arrays.iter().map(|array| {
                let bytes = bytes_of(array);
                let mut copy = vec![0; bytes.len()];
                bytes.copy_to(&mut copy);
                copy
            });
            self.first = Some(FirstObservations {
                bytes: bytes.collect(),
                started,
            });
            self.observations = Some(nest);
            return Ok(());
        };
        let mut arrays = Vec::new();
        known.read(observations, envs, &mut arrays)?;
        if let Some(recording) = &mut self.recording {
            let bytes: Vec<_> = arrays.iter().map(bytes_of).collect();
            let reset = recording.recorder.reset(&bytes, &started);
            reset.map_err(|error| errors::to_py(py, &error))?;
            self.sender
                .send_or_report_later(py, &mut recording.recorder);
            return Ok(());
        }
        let Some(first) = &mut self.first else {
            return Ok(());
        };
        // Another reset before the first step: replaces the observations of the environments that it started.
        for (known, array) in first.bytes.iter_mut().zip(&arrays) {
            let mut copy = vec![0; known.len()];
            bytes_of(array).copy_to(&mut copy);
            let size = (known.len() / envs).max(1);
            let cells = known.chunks_mut(size).zip(copy.chunks(size));
            for ((known, given), _) in cells.zip(&started).filter(|(_, started)| **started) {
                known.copy_from_slice(given);
            }
        }
        for (known, given) in first.started.iter_mut().zip(&started) {
            *known |= given;
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a step")]
    fn step(
        &mut self,
        actions: &Bound<'_, PyAny>,
        observations: &Bound<'_, PyAny>,
        rewards: &Bound<'_, PyAny>,
        terminated: &Bound<'_, PyAny>,
        truncated: &Bound<'_, PyAny>,
        info: &Bound<'_, PyAny>,
        extras: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let py = actions.py();
        let envs = self.num_envs;
        let mut arrays = Vec::with_capacity(8);
        let mut new_nests = Vec::new();
        let Some(known) = &self.observations else {
            let text = "`reset` must be called before `step`, with the observations that `reset` of the environments \
                        returned";
            return Err(errors::invalid(py, text.into()));
        };
        known.read(observations, envs, &mut arrays)?;
        let observation_arrays = arrays.len();
        let others = [
            ("action", Some(actions)),
            ("extras", (!extras.is_none()).then_some(extras)),
        ];
        if let Some(recording) = &self.recording {
            let given = others.iter().filter_map(|(_, nest)| *nest);
            if given.clone().count() != recording.others.len() {
                let text = "`extras` must be given at every step or at none";
                return Err(errors::invalid(py, text.into()));
            }
            for (known, given) in recording.others.iter().zip(given) {
                known.read(given, envs, &mut arrays)?;
            }
        } else {
            for (name, nest) in others {
                if let Some(nest) = nest {
                    let (nest, read) = Nest::of(nest, name, envs)?;
                    new_nests.push(nest);
                    arrays.extend(read);
                }
            }
        }
        let rewards = read_rewards(rewards, envs)?;
        let terminated = read_flags(terminated, "terminated", envs)?;
        let truncated = read_flags(truncated, "truncated", envs)?;
        let last = self.last_observations(observations, &terminated, &truncated, info)?;
        let is_first = self.recording.is_none();
        if is_first {
            self.start(py, new_nests)?;
        }
        let Some(recording) = &mut self.recording else {
            return Ok(());
        };
        let total: usize = arrays.iter().map(|array| bytes_of(array).len()).sum();
        let is_large = total >= MIN_DETACHED_BYTES;
        // Before any address or length is read, because preventing a resize may run Python code.
        let resize_guards = (arrays.iter().filter(|_| is_large))
            .map(prevent_resize)
            .collect::<PyResult<Vec<_>>>()?;
        let columns: Vec<_> = arrays
            .iter()
            .map(|array| ColumnInput::Cells(bytes_of(array)))
            .collect();
        let last: Vec<SharedBytes<'_>> = last.iter().map(|b| b.as_slice().into()).collect();
        debug_assert!(last.is_empty() || last.len() == observation_arrays);
        let step = VectorStep {
            columns: &columns,
            rewards: &rewards,
            terminated: &terminated,
            truncated: &truncated,
            last_observations: &last,
        };
        let recorder = &mut recording.recorder;
        let outcome = if is_large {
            py.detach(|| recorder.step(&step))
        } else {
            recorder.step(&step)
        };
        drop(resize_guards);
        if let Err(error) = outcome {
            if is_first {
                self.recording = None; // another first step may have other columns
            }
            return Err(errors::to_py(py, &error));
        }
        self.first = None;
        self.sender.send_or_report_later(py, recorder);
        Ok(())
    }

    /// Returns the last observations of the episodes that ended, as the cells of each column. Returns no columns if no
    /// episode ended, or if these observations are in `observations`.
    fn last_observations(
        &self,
        observations: &Bound<'_, PyAny>,
        terminated: &[bool],
        truncated: &[bool],
        info: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<Vec<u8>>> {
        let py = info.py();
        let ended: Vec<usize> = (terminated.iter().zip(truncated).enumerate())
            .filter(|(_, (terminated, truncated))| **terminated || **truncated)
            .map(|(env, _)| env)
            .collect();
        if ended.is_empty() {
            return Ok(Vec::new());
        }
        if self.mode != AutoresetMode::SameStep {
            if let Ok(info) = info.cast::<PyDict>()
                && info.contains("final_obs")?
            {
                let text = "`info` has \"final_obs\", which only environments with `autoreset_mode` SAME_STEP return; \
                            create the writer with the `autoreset_mode` of the environments";
                return Err(errors::invalid(py, text.into()));
            }
            return Ok(Vec::new());
        }
        if let Some(known) = &self.observations
            && let Some(cells) = read_final_observations(known, info, self.num_envs, &ended)?
        {
            return Ok(cells);
        }
        let arrays = (self.final_observations.bind(py)).call1((info, ended, observations))?;
        let arrays = arrays.cast::<PyList>()?.iter();
        let cells = arrays.map(|array| {
            let array = array.cast_into::<PyUntypedArray>()?;
            let bytes = bytes_of(&array);
            let mut cells = vec![0; bytes.len()];
            bytes.copy_to(&mut cells);
            Ok(cells)
        });
        cells.collect()
    }

    /// Creates the recorder once the columns of a step are known.
    fn start(&mut self, py: Python<'_>, others: Vec<Nest>) -> PyResult<()> {
        let (Some(observations), Some(first)) = (&self.observations, &self.first) else {
            return Ok(());
        };
        let to_py = |error| errors::to_py(py, &error);
        let text = |index: usize| {
            others
                .get(index)
                .map(|nest: &Nest| nest.structure.text.as_str())
        };
        let configs: Vec<VectorItemsConfig> = (self.compile.bind(py))
            .call1((observations.structure.text.as_str(), text(0), text(1)))?
            .extract()?;
        let rules = configs
            .into_iter()
            .map(|config| config.compile(py, &mut self.sender))
            .collect::<PyResult<Vec<_>>>()?;
        let nests = || std::iter::once(observations).chain(&others);
        let names = nests().flat_map(|nest| &nest.structure.names);
        let cells = nests().flat_map(|nest| &nest.cells);
        let schema = Schema {
            layout: Arc::new(Layout {
                names: names.map(|name| name.as_str().into()).collect(),
                structure: "".into(),
            }),
            cells: cells.cloned().collect(),
        };
        let mut recorder = VectorRecorder::new(
            self.options.clone(),
            self.sender.unique_number(),
            self.num_envs,
            self.mode,
            &schema,
            observations.cells.len(),
            &rules,
        )
        .map_err(to_py)?;
        for (table, columns) in recorder.item_columns() {
            let options = self.sender.options(table);
            if let Some(signature) = &options.signature {
                signature.check(&options.name, columns).map_err(to_py)?;
            }
        }
        let bytes: Vec<_> = first.bytes.iter().map(|b| b.as_slice().into()).collect();
        recorder.reset(&bytes, &first.started).map_err(to_py)?;
        self.recording = Some(Recording { others, recorder });
        Ok(())
    }
}

#[pymethods]
impl VectorWriter {
    #[new]
    #[expect(
        clippy::too_many_arguments,
        reason = "one per argument of engram.gymnasium.VectorWriter"
    )]
    fn new(
        py: Python<'_>,
        store: &Store,
        num_envs: usize,
        autoreset_mode: &str,
        table_names: Vec<String>,
        compile: Py<PyAny>,
        final_observations: Py<PyAny>,
        options: WriterConfig,
    ) -> PyResult<PyClassInitializer<Self>> {
        let mode = match autoreset_mode {
            "SAME_STEP" => AutoresetMode::SameStep,
            "DISABLED" => AutoresetMode::Disabled,
            _ => AutoresetMode::NextStep,
        };
        let mut sender = options.sender(py, store)?;
        for name in table_names {
            sender.table_number(py, &name)?;
        }
        let state = VectorState {
            options: options.recorder_options(1, &sender),
            num_envs,
            mode,
            sender,
            compile,
            final_observations,
            observations: None,
            first: None,
            recording: None,
        };
        Ok(Writer::with_state(state).add_subclass(Self))
    }

    #[pyo3(signature = (obs, info = None, *, mask = None))]
    fn reset(
        slf: &Bound<'_, Self>,
        obs: &Bound<'_, PyAny>,
        info: Option<&Bound<'_, PyAny>>,
        mask: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let py = slf.py();
        let _ = info;
        let mut this = exclusive(slf.as_super())?;
        let state: &mut VectorState = this.state_mut(py)?;
        state.sender.wait_for_capacity(py)?;
        let none = py.None();
        state.reset(obs, mask.unwrap_or_else(|| none.bind(py)))
    }

    #[pyo3(signature = (actions, obs, rewards, terminated, truncated, info = None, *, extras = None))]
    #[expect(clippy::too_many_arguments, reason = "the parts of a step")]
    fn step(
        slf: &Bound<'_, Self>,
        actions: &Bound<'_, PyAny>,
        obs: &Bound<'_, PyAny>,
        rewards: &Bound<'_, PyAny>,
        terminated: &Bound<'_, PyAny>,
        truncated: &Bound<'_, PyAny>,
        info: Option<&Bound<'_, PyAny>>,
        extras: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let py = slf.py();
        let mut this = exclusive(slf.as_super())?;
        let state: &mut VectorState = this.state_mut(py)?;
        state.sender.wait_for_capacity(py)?;
        let none = py.None();
        let none = none.bind(py);
        let (info, extras) = (info.unwrap_or(none), extras.unwrap_or(none));
        state.step(actions, obs, rewards, terminated, truncated, info, extras)
    }
}
