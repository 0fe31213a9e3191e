//! The native class of `engram.buffers.ReplayBuffer`.

mod adding;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use engram_core::pool::Pool;
use engram_core::ring::{DeviceCells, EpisodeColumns, ItemStart, StepBuffer, StepBufferOptions};
use engram_core::{CellSpec, Result, Schema, Shape, Signature};
use engram_engine::{self as engine, SaveContents, SaveTarget, request_huge_pages};
use numpy::{PyArray1, PyArrayDescr, PyArrayMethods, PyReadwriteArray1};
use parking_lot::{RwLock, RwLockWriteGuard};
use pyo3::prelude::*;

use crate::buffer_batch::BufferBatch;
use crate::buffer_columns::{BatchColumns, Column};
use crate::buffer_env_ids::{all_envs, read_env_id, read_env_ids, unknown_env};
use crate::buffer_items::{BufferItemsConfig, BufferSamplerConfig};
use crate::buffer_reader::{BufferReader, Unread};
use crate::buffer_steps::{LeadingAxes, StepColumns};
use crate::device_columns::{DeviceColumns, DeviceConfig, StagedBlock};
use crate::gil::{ForkGuard, detached};
use crate::leaf::MIN_DETACHED_BYTES;
use crate::saved_buffer::{SavedBuffer, interruptible};
use crate::store::entropy;
use crate::structure::Structure;
use crate::{config, errors};

/// A ring of steps per environment, and the items that are sampled from it.
#[pyclass(frozen, module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct ReplayBuffer {
    /// No thread acquires the GIL while it holds this lock.
    buffer: ForkGuard<RwLock<engine::ReplayBuffer>>,
    columns: StepColumns,
    /// The columns on a device; `None` if all are in the ring.
    device: Option<DeviceColumns>,
    /// Names, nesting, dtypes and shapes of the columns of a step.
    schema: Arc<Schema>,
    /// Structure of an item.
    structure: Arc<Structure>,
    /// Names, dtypes and shapes of the columns of an item, with the time axis; then those of hidden columns.
    outputs: Vec<(String, CellSpec)>,
    /// Maximum number of steps of an item.
    steps_per_item: usize,
    /// The columns `terminated` and `truncated`, if the buffer uses them.
    episode_columns: Option<EpisodeColumns>,
    /// Minimum number of bytes that are copied without the GIL.
    min_detached_bytes: usize,
    pool: Arc<Pool>,
    /// The numbers of all environments, from 0 on.
    envs: Vec<usize>,
    /// Slots per environment.
    length: usize,
}

/// Bytes whose copying takes about as long as a change of one priority in the sum tree.
const BYTES_PER_PRIORITY_CHANGE: usize = 512;

impl ReplayBuffer {
    /// Locks the buffer and runs `work`: without the GIL if `work` copies many bytes (`bytes`), or if the lock is
    /// taken.
    pub(crate) fn locked<T: Send>(
        &self,
        py: Python<'_>,
        bytes: usize,
        work: impl FnOnce(RwLockWriteGuard<'_, engine::ReplayBuffer>) -> Result<T> + Send,
    ) -> PyResult<T> {
        let lock = self.buffer.get(py)?;
        let free = if bytes < self.min_detached_bytes {
            lock.try_write()
        } else {
            None
        };
        let work = |guard: RwLockWriteGuard<'_, engine::ReplayBuffer>| {
            guard.check_open()?;
            work(guard)
        };
        let outcome = match free {
            Some(guard) => work(guard),
            None => py.detach(|| work(lock.write())),
        };
        outcome.map_err(|error| errors::to_py(py, &error))
    }

    /// Like [`Self::locked`], but shares the lock with other threads that only read.
    pub(crate) fn reading<T: Send>(
        &self,
        py: Python<'_>,
        bytes: usize,
        work: impl FnOnce(&StepBuffer) -> Result<T> + Send,
    ) -> PyResult<T> {
        let lock = self.buffer.get(py)?;
        let free = if bytes < self.min_detached_bytes {
            lock.try_read()
        } else {
            None
        };
        let work = |buffer: &engine::ReplayBuffer| {
            buffer.check_open()?;
            work(buffer)
        };
        let outcome = match free {
            Some(buffer) => work(&buffer),
            None => py.detach(|| work(&lock.read())),
        };
        outcome.map_err(|error| errors::to_py(py, &error))
    }

    /// The columns of a batch of the buffer's items.
    pub(crate) fn item_columns(&self) -> BatchColumns<'_> {
        BatchColumns {
            structure: &self.structure,
            columns: Cow::Borrowed(&self.outputs),
            steps_per_item: self.steps_per_item,
            pool: &self.pool,
        }
    }

    /// Names, dtypes and shapes of the columns of steps in the ring, or of sequences of this many steps.
    fn step_cells(&self, sequence_length: Option<usize>) -> Vec<Column> {
        let mut columns = self.columns.columns(sequence_length);
        if let Some(device) = &self.device {
            device.replace_cells(columns.iter_mut().map(|(_, cell)| cell), sequence_length);
        }
        columns
    }

    /// The columns of a batch of steps.
    pub(crate) fn step_columns(&self) -> BatchColumns<'_> {
        BatchColumns {
            structure: self.columns.structure(),
            columns: Cow::Owned(self.step_cells(None)),
            steps_per_item: 1,
            pool: &self.pool,
        }
    }

    /// The columns of a batch of sequences of `length` steps.
    ///
    /// # Errors
    /// `InvalidArgumentError` if `length` is not from 1 to the number of slots.
    fn sequence_columns(&self, py: Python<'_>, length: usize) -> PyResult<BatchColumns<'_>> {
        if !(1..=self.length).contains(&length) {
            let text = format!("`length` must be from 1 to {}; got {length}", self.length);
            return Err(errors::invalid(py, text));
        }
        Ok(BatchColumns {
            columns: Cow::Owned(self.step_cells(Some(length))),
            steps_per_item: length,
            ..self.step_columns()
        })
    }

    /// Number of environments.
    pub(crate) fn num_envs(&self) -> usize {
        self.envs.len()
    }

    /// Number of steps whose cells were ever staged for a device.
    pub(crate) fn staged_end(&self) -> u64 {
        self.device.as_ref().map_or(0, DeviceColumns::staged_end)
    }

    /// The cells on a device, in these copies of its arrays.
    fn device_cells<'a>(
        &self,
        copies: &'a mut [PyReadwriteArray1<'_, u8>],
    ) -> PyResult<DeviceCells<'a>> {
        let copies = copies.iter_mut().map(PyReadwriteArray1::as_slice_mut);
        let copies = copies.collect::<Result<Vec<_>, _>>()?;
        let device = self.device.as_ref();
        Ok(device.map_or_else(Vec::new, |device| device.device_cells(copies)))
    }
}

#[pymethods]
impl ReplayBuffer {
    #[new]
    #[pyo3(signature = (signature, items, size, sampler, seed, path = None, device = None))]
    #[expect(clippy::too_many_arguments, reason = "called at one place")]
    fn new(
        py: Python<'_>,
        signature: &Bound<'_, PyAny>,
        items: &Bound<'_, PyAny>,
        size: (usize, usize),
        sampler: BufferSamplerConfig,
        seed: u64,
        path: Option<PathBuf>,
        device: Option<DeviceConfig>,
    ) -> PyResult<Self> {
        let items: BufferItemsConfig = items.extract()?;
        let (num_envs, length) = size;
        let (structure, _) = Structure::of(signature)?;
        let Signature { columns, .. } = config::signature(py, signature)?;
        let cells = columns.iter().map(|column| {
            let shape: Option<Shape> = column.shape.iter().copied().collect();
            let shape = shape.ok_or_else(|| {
                let column = crate::leaf::describe_column(&column.name);
                let text = format!(
                    "the shape of {column} in `signature` must have fixed sizes; it has None"
                );
                errors::signature(py, text)
            })?;
            Ok(CellSpec {
                dtype: column.dtype,
                shape,
            })
        });
        let cells = cells.collect::<PyResult<Vec<CellSpec>>>()?;
        let names: Vec<Box<str>> = columns.iter().map(|column| column.name.clone()).collect();
        let layout = structure.layout();
        let columns = StepColumns::new(py, structure, &cells)?;
        let schema = Schema {
            layout,
            cells: cells.clone().into(),
        };
        let device = device.and_then(|config| DeviceColumns::new(config, &cells, length));
        let mut cells = cells; // those of the ring, from now on
        if let Some(device) = &device {
            device.replace_cells(cells.iter_mut(), None);
        }
        let outputs = items.outputs(&cells);
        let item_columns = outputs.iter().map(|output| output.cell.clone());
        let item_columns = items.names.iter().cloned().zip(item_columns).collect();
        let options = StepBufferOptions {
            cells: &cells,
            names: &names,
            num_envs,
            length,
            items: items.items(),
            outputs,
            episode_columns: items.episode_columns(),
            reward_column: items.reward_column,
            hindsight: items.hindsight(),
            exponent: sampler.exponent,
            recent: sampler.recent(),
            seed,
        };
        let schema = Arc::new(schema);
        // Parts of a file that are not in memory are read from disk.
        let min_detached_bytes = if path.is_some() {
            1
        } else {
            MIN_DETACHED_BYTES
        };
        let buffer = match path {
            Some(path) => interruptible(py, |interrupted| {
                engine::ReplayBuffer::open(&path, options, &schema, entropy(), interrupted)
            })?,
            None => detached(py, || {
                let mut buffer = engine::ReplayBuffer::new(&options)?;
                buffer.memory().for_each(request_huge_pages);
                Ok(buffer)
            })?,
        };
        Ok(Self {
            buffer: ForkGuard::new("replay buffer", RwLock::new(buffer)),
            columns,
            device,
            schema,
            structure: Structure::parse(py, &items.structure)?,
            outputs: item_columns,
            steps_per_item: items.steps_per_item(),
            episode_columns: items.episode_columns(),
            min_detached_bytes,
            pool: Arc::new(Pool::default()),
            envs: all_envs(py, num_envs)?,
            length,
        })
    }

    #[pyo3(signature = (step, *, env_id = None))]
    fn add(
        slf: &Bound<'_, Self>,
        step: &Bound<'_, PyAny>,
        env_id: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let env = read_env_id(step.py(), env_id, &slf.get().envs)?;
        Self::add_to(slf, &[env], step, LeadingAxes::None)
    }

    #[pyo3(signature = (steps, *, env_ids = None))]
    fn add_batch(
        slf: &Bound<'_, Self>,
        steps: &Bound<'_, PyAny>,
        env_ids: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let envs = read_env_ids(env_ids, &slf.get().envs)?;
        Self::add_to(slf, &envs, steps, LeadingAxes::Envs(envs.len()))
    }

    #[pyo3(signature = (steps, *, env_ids = None))]
    fn add_steps(
        slf: &Bound<'_, Self>,
        steps: &Bound<'_, PyAny>,
        env_ids: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let envs = read_env_ids(env_ids, &slf.get().envs)?;
        Self::add_to(slf, &envs, steps, LeadingAxes::EnvsAndSteps(envs.len()))
    }

    #[pyo3(signature = (steps, *, env_id = None))]
    fn add_episode(
        slf: &Bound<'_, Self>,
        steps: &Bound<'_, PyAny>,
        env_id: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let env = read_env_id(steps.py(), env_id, &slf.get().envs)?;
        Self::add_to(slf, &[env], steps, LeadingAxes::Steps)
    }

    #[pyo3(signature = (*, env_ids = None))]
    fn end_episodes(&self, py: Python<'_>, env_ids: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let envs = read_env_ids(env_ids, &self.envs)?;
        let bytes = envs.len().saturating_mul(BYTES_PER_PRIORITY_CHANGE);
        self.locked(py, bytes, |mut buffer| {
            buffer.end_episodes(&envs);
            Ok(())
        })
    }

    fn sample(
        &self,
        py: Python<'_>,
        batch_size: usize,
        replacement: bool,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<BufferBatch> {
        let columns = self.item_columns();
        let bytes = columns.batch_bytes(batch_size);
        let (arrays, (drawn, staged_end)) = columns.fill(py, batch_size, out, |outputs| {
            self.locked(py, bytes, |mut buffer| {
                let drawn = buffer.draw(batch_size, replacement)?;
                // Other threads can ask for the sizes while this one copies.
                let buffer = RwLockWriteGuard::downgrade(buffer);
                buffer.gather(&drawn, outputs)?;
                Ok((drawn, self.staged_end()))
            })
        })?;
        Ok(BufferBatch::new(arrays, drawn, self.num_envs()).with_staged_end(staged_end))
    }

    /// Draws `n` sequences of `length` steps; see [`StepBuffer::draw_sequences`].
    #[pyo3(signature = (n, length, seed, out = None))]
    fn sample_sequences(
        &self,
        py: Python<'_>,
        n: usize,
        length: usize,
        seed: u64,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<BufferBatch> {
        let columns = self.sequence_columns(py, length)?;
        let bytes = columns.batch_bytes(n);
        let (arrays, drawn) = columns.fill(py, n, out, |outputs| {
            self.reading(py, bytes, |buffer| {
                let drawn = buffer.draw_sequences(n, length, seed)?;
                buffer.gather_sequences(&drawn.starts, length, outputs)?;
                Ok(drawn)
            })
        })?;
        Ok(BufferBatch::new(arrays, drawn, self.num_envs()))
    }

    /// Reads the slots of these positions and the `length - 1` slots after each, whichever steps they contain now.
    #[pyo3(signature = (env_ids, positions, length, out = None))]
    fn read_sequences(
        &self,
        py: Python<'_>,
        env_ids: &Bound<'_, PyArray1<i64>>,
        positions: &Bound<'_, PyArray1<u64>>,
        length: usize,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let columns = self.sequence_columns(py, length)?;
        let (env_ids, positions) = (env_ids.readonly(), positions.readonly());
        let (env_ids, positions) = (env_ids.as_array(), positions.as_array());
        if env_ids.len() != positions.len() {
            let text = format!(
                "`env_ids` and `positions` must have the same length; got {} and {}",
                env_ids.len(),
                positions.len()
            );
            return Err(errors::invalid(py, text));
        }
        let starts = env_ids.iter().zip(positions.iter()).map(|(id, position)| {
            let env = usize::try_from(*id).ok().and_then(|id| self.envs.get(id));
            let env =
                env.ok_or_else(|| unknown_env(py, "each of `env_ids`", self.envs.len(), *id))?;
            Ok((*env, *position))
        });
        let starts = starts.collect::<PyResult<Vec<_>>>()?;
        let bytes = columns.batch_bytes(starts.len());
        let (arrays, ()) = columns.fill(py, starts.len(), out, |outputs| {
            self.reading(py, bytes, |buffer| {
                let starts =
                    (starts.iter()).map(|(env, position)| buffer.start_in_slot_of(*env, *position));
                let starts: Vec<ItemStart> = starts.collect();
                buffer.gather_sequences(&starts, length, outputs)
            })
        })?;
        Ok(arrays.data)
    }

    /// Reads all items once, in random order.
    fn epoch(slf: &Bound<'_, Self>) -> PyResult<BufferReader> {
        let this = slf.get();
        let keys = this.locked(slf.py(), usize::MAX, |mut buffer| buffer.shuffled_keys())?;
        Ok(BufferReader::new(slf, Unread::Shuffled(keys)))
    }

    /// Reads all items once, or all steps, in order.
    fn scan(slf: &Bound<'_, Self>, of_steps: bool) -> PyResult<BufferReader> {
        let this = slf.get();
        let scan = this.reading(slf.py(), this.num_envs(), |buffer| {
            buffer.begin_scan(of_steps)
        })?;
        Ok(BufferReader::new(slf, Unread::Ordered(scan)))
    }

    fn update_priorities(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyArray1<u64>>,
        priorities: &Bound<'_, PyArray1<f64>>,
    ) -> PyResult<usize> {
        let (keys, priorities) = (keys.readonly(), priorities.readonly());
        // Copied, because other threads can write to the arrays while the GIL is released.
        let (keys, priorities) = (keys.as_slice()?.to_vec(), priorities.as_slice()?.to_vec());
        let bytes = keys.len().saturating_mul(BYTES_PER_PRIORITY_CHANGE);
        self.locked(py, bytes, |mut buffer| {
            buffer.update_priorities(&keys, &priorities)
        })
    }

    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.locked(py, usize::MAX, |mut buffer| {
            buffer.clear();
            Ok(())
        })
    }

    /// Dtype and shape of each column of a step.
    fn columns<'py>(&self, py: Python<'py>) -> Vec<(Bound<'py, PyArrayDescr>, Vec<usize>)> {
        self.columns.dtypes(py)
    }

    /// Numbers of the columns that are on a device.
    fn device_columns(&self) -> Vec<usize> {
        self.device
            .as_ref()
            .map_or_else(Vec::new, DeviceColumns::numbers)
    }

    /// The next cells that must be written to the device, out of the first `end` steps that were staged, by default all;
    /// None if there are none.
    #[pyo3(signature = (end, padded))]
    fn staged<'py>(
        &self,
        py: Python<'py>,
        end: Option<u64>,
        padded: bool,
    ) -> PyResult<Option<StagedBlock<'py>>> {
        self.buffer.get(py)?;
        let Some(device) = &self.device else {
            return Ok(None);
        };
        device.staged(py, &self.pool, end.unwrap_or(u64::MAX), padded)
    }

    /// Records that the first `end` steps that were staged are on the device.
    fn mark_written(&self, py: Python<'_>, end: u64) -> PyResult<()> {
        self.buffer.get(py)?;
        if let Some(device) = &self.device {
            device.mark_written(end);
        }
        Ok(())
    }

    /// Saves the buffer to a file; returns its size in bytes. `device_cells` are copies of the arrays on the device.
    #[pyo3(signature = (path, device_cells = Vec::new()))]
    fn save(
        &self,
        py: Python<'_>,
        path: PathBuf,
        mut device_cells: Vec<PyReadwriteArray1<'_, u8>>,
    ) -> PyResult<u64> {
        let lock = self.buffer.get(py)?;
        let mut cells = self.device_cells(&mut device_cells)?;
        let bytes = interruptible(py, move |interrupted| {
            match SaveTarget::lock(&path, interrupted)? {
                Some(target) => {
                    let buffer = lock.read();
                    buffer.check_open()?;
                    if let Some(device) = &self.device {
                        device.add_staged(&mut cells);
                    }
                    let contents = SaveContents {
                        buffer: &buffer,
                        device_cells: &cells,
                        schema: &self.schema,
                    };
                    target.save(contents, entropy(), interrupted)
                }
                None => Ok(None),
            }
        })?;
        Ok(bytes.unwrap_or_default())
    }

    /// Fills the buffer, to which no step was added, from a save; and `device_cells`, zeros, with the cells of the device.
    #[pyo3(signature = (saved, device_cells = Vec::new()))]
    fn restore(
        &self,
        py: Python<'_>,
        saved: &SavedBuffer,
        mut device_cells: Vec<PyReadwriteArray1<'_, u8>>,
    ) -> PyResult<()> {
        let lock = self.buffer.get(py)?;
        let cells = self.device_cells(&mut device_cells)?;
        let saved = saved.take(py)?;
        interruptible(py, move |interrupted| {
            let mut buffer = lock.write();
            buffer.check_open()?;
            saved.check_schema(&self.schema)?;
            saved.restore(&mut buffer, cells, interrupted)
        })?;
        Ok(())
    }

    /// Makes everything durable that was added before.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let lock = self.buffer.get(py)?;
        detached(py, || {
            let flush = {
                let buffer = lock.read();
                buffer.check_open()?;
                buffer.begin_flush()?
            };
            let synced = flush.sync();
            lock.write().finish_flush(flush, synced)
        })
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let lock = self.buffer.get(py)?;
        if let Some(device) = &self.device {
            device.mark_written(u64::MAX); // frees the staged cells
        }
        detached(py, || lock.write().close())
    }

    /// Closes a buffer that was not used, and removes its file if it did not exist before.
    fn discard(&self, py: Python<'_>) -> PyResult<()> {
        let lock = self.buffer.get(py)?;
        detached(py, || lock.write().discard())
    }

    /// The position that the next step of an environment will have.
    fn next_position(&self, env_id: &Bound<'_, PyAny>) -> PyResult<u64> {
        let env = read_env_id(env_id.py(), Some(env_id), &self.envs)?;
        self.reading(env_id.py(), 0, |buffer| Ok(buffer.next_position(env)))
    }

    /// Number of steps, and number of items.
    fn sizes(&self, py: Python<'_>) -> PyResult<(usize, usize)> {
        self.reading(py, 0, |buffer| Ok((buffer.len(), buffer.num_items())))
    }
}
