//! The native class of `engram.buffers.ReplayBuffer`.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engram_core::pool::Pool;
use engram_core::ring::{Drawn, EpisodeColumns, ItemStart, StepBuffer, StepBufferOptions};
use engram_core::{CellSpec, Layout, Result, Schema, Shape, SharedBytes, Signature};
use engram_engine::{SaveTarget, request_huge_pages};
use numpy::{PyArray1, PyArrayMethods};
use parking_lot::{RwLock, RwLockWriteGuard};
use pyo3::prelude::*;

use crate::buffer_batch::BufferBatch;
use crate::buffer_columns::BatchColumns;
use crate::buffer_env_ids::{all_envs, read_env_id, read_env_ids, unknown_env};
use crate::buffer_episodes::check_episode;
use crate::buffer_items::{BufferItemsConfig, BufferSamplerConfig};
use crate::buffer_steps::{Cells, LeadingAxes, StepColumns};
use crate::gil::ForkGuard;
use crate::leaf::{MIN_DETACHED_BYTES, prevent_resize};
use crate::saved_buffer::{SavedBuffer, interruptible};
use crate::store::entropy;
use crate::structure::Structure;
use crate::{config, errors};

/// A ring of steps per environment, and the items that are sampled from it.
#[pyclass(frozen, module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct ReplayBuffer {
    /// No thread acquires the GIL while it holds this lock.
    buffer: ForkGuard<RwLock<StepBuffer>>,
    columns: StepColumns,
    /// Names, nesting, dtypes and shapes of the columns of a step.
    schema: Arc<Schema>,
    /// Structure of an item.
    structure: Arc<Structure>,
    /// Names, dtypes and shapes of the columns of an item, with the time axis.
    outputs: Vec<(String, CellSpec)>,
    /// Maximum number of steps of an item.
    steps_per_item: usize,
    /// The columns `terminated` and `truncated`, if the buffer uses them.
    episode_columns: Option<EpisodeColumns>,
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
    fn locked<T: Send>(
        &self,
        py: Python<'_>,
        bytes: usize,
        work: impl FnOnce(RwLockWriteGuard<'_, StepBuffer>) -> Result<T> + Send,
    ) -> PyResult<T> {
        let lock = self.buffer.get(py)?;
        let free = if bytes < MIN_DETACHED_BYTES {
            lock.try_write()
        } else {
            None
        };
        let outcome = match free {
            Some(guard) => work(guard),
            None => py.detach(|| work(lock.write())),
        };
        outcome.map_err(|error| errors::to_py(py, &error))
    }

    /// Like [`Self::locked`], but shares the lock with other threads that only read.
    fn reading<T: Send>(
        &self,
        py: Python<'_>,
        bytes: usize,
        work: impl FnOnce(&StepBuffer) -> Result<T> + Send,
    ) -> PyResult<T> {
        let lock = self.buffer.get(py)?;
        let free = if bytes < MIN_DETACHED_BYTES {
            lock.try_read()
        } else {
            None
        };
        let outcome = match free {
            Some(buffer) => work(&buffer),
            None => py.detach(|| work(&lock.read())),
        };
        outcome.map_err(|error| errors::to_py(py, &error))
    }

    /// Adds steps of these environments.
    fn add_to(
        &self,
        envs: &[usize],
        steps: &Bound<'_, PyAny>,
        leading: LeadingAxes,
    ) -> PyResult<()> {
        let py = steps.py();
        let (cells, count) = self.columns.read(steps, leading)?;
        let is_episode = matches!(leading, LeadingAxes::Steps);
        let lock = self.buffer.get(py)?;
        let num_steps = envs.len() * count;
        let read = || -> PyResult<Vec<SharedBytes<'_>>> {
            let bytes: Vec<_> = cells.iter().map(Cells::bytes).collect();
            self.columns.check_bytes(py, &bytes, num_steps)?;
            if is_episode {
                check_episode(py, &bytes, count, self.episode_columns)?;
            }
            Ok(bytes)
        };
        let add = |buffer: &mut StepBuffer, bytes: &[SharedBytes<'_>]| {
            if is_episode {
                buffer.end_episodes(envs);
            }
            buffer.add(envs, bytes, count);
            if is_episode {
                buffer.end_episodes(envs);
            }
        };
        let bytes = read()?;
        let total: usize = bytes.iter().map(|bytes| bytes.len()).sum();
        if total < MIN_DETACHED_BYTES
            && let Some(mut buffer) = lock.try_write()
        {
            add(&mut buffer, &bytes);
            return Ok(());
        }
        // Before any address or length is read, because preventing a resize may run Python code.
        let resize_guards = cells
            .iter()
            .filter_map(Cells::array)
            .map(prevent_resize)
            .collect::<PyResult<Vec<_>>>()?;
        let bytes = read()?;
        py.detach(|| add(&mut lock.write(), &bytes));
        drop(resize_guards);
        Ok(())
    }

    /// The columns of a batch of the buffer's items.
    fn item_columns(&self) -> BatchColumns<'_> {
        BatchColumns {
            structure: &self.structure,
            columns: Cow::Borrowed(&self.outputs),
            steps_per_item: self.steps_per_item,
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
            structure: self.columns.structure(),
            columns: Cow::Owned(self.columns.with_time_axis(length)),
            steps_per_item: length,
            pool: &self.pool,
        })
    }
}

#[pymethods]
impl ReplayBuffer {
    #[new]
    fn new(
        py: Python<'_>,
        signature: &Bound<'_, PyAny>,
        items: &Bound<'_, PyAny>,
        num_envs: usize,
        length: usize,
        sampler: BufferSamplerConfig,
        seed: u64,
    ) -> PyResult<Self> {
        let items: BufferItemsConfig = items.extract()?;
        let (structure, _) = Structure::of(signature)?;
        let Signature {
            columns,
            structure: text,
        } = config::signature(py, signature)?;
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
        let columns = StepColumns::new(py, structure, &cells)?;
        let layout = Layout {
            names: names.clone().into(),
            structure: text,
        };
        let schema = Schema {
            layout: Arc::new(layout),
            cells: cells.clone().into(),
        };
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
        let mut buffer = StepBuffer::new(&options).map_err(|error| errors::to_py(py, &error))?;
        buffer.column_memory().for_each(request_huge_pages);
        Ok(Self {
            buffer: ForkGuard::new("replay buffer", RwLock::new(buffer)),
            columns,
            schema: Arc::new(schema),
            structure: Structure::parse(py, &items.structure)?,
            outputs: item_columns,
            steps_per_item: items.steps_per_item(),
            episode_columns: items.episode_columns(),
            pool: Arc::new(Pool::default()),
            envs: all_envs(py, num_envs)?,
            length,
        })
    }

    #[pyo3(signature = (step, *, env_id = None))]
    fn add(&self, step: &Bound<'_, PyAny>, env_id: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let env = read_env_id(step.py(), env_id, &self.envs)?;
        self.add_to(&[env], step, LeadingAxes::None)
    }

    #[pyo3(signature = (steps, *, env_ids = None))]
    fn add_batch(
        &self,
        steps: &Bound<'_, PyAny>,
        env_ids: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let envs = read_env_ids(env_ids, &self.envs)?;
        self.add_to(&envs, steps, LeadingAxes::Envs(envs.len()))
    }

    #[pyo3(signature = (steps, *, env_ids = None))]
    fn add_steps(
        &self,
        steps: &Bound<'_, PyAny>,
        env_ids: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let envs = read_env_ids(env_ids, &self.envs)?;
        self.add_to(&envs, steps, LeadingAxes::EnvsAndSteps(envs.len()))
    }

    #[pyo3(signature = (steps, *, env_id = None))]
    fn add_episode(
        &self,
        steps: &Bound<'_, PyAny>,
        env_id: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let env = read_env_id(steps.py(), env_id, &self.envs)?;
        self.add_to(&[env], steps, LeadingAxes::Steps)
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
        let (data, drawn) = columns.fill(py, batch_size, out, |outputs| {
            self.locked(py, bytes, |mut buffer| {
                let drawn = buffer.draw(batch_size, replacement)?;
                // Other threads can ask for the sizes while this one copies.
                let buffer = RwLockWriteGuard::downgrade(buffer);
                buffer.gather(&drawn, outputs)?;
                Ok(drawn)
            })
        })?;
        Ok(BufferBatch::new(data, drawn, self.envs.len()))
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
        let (data, drawn) = columns.fill(py, n, out, |outputs| {
            self.reading(py, bytes, |buffer| {
                let drawn = buffer.draw_sequences(n, length, seed)?;
                buffer.gather_sequences(&drawn.starts, length, outputs)?;
                Ok(drawn)
            })
        })?;
        Ok(BufferBatch::new(data, drawn, self.envs.len()))
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
        let (data, ()) = columns.fill(py, starts.len(), out, |outputs| {
            self.reading(py, bytes, |buffer| {
                let starts =
                    (starts.iter()).map(|(env, position)| buffer.start_in_slot_of(*env, *position));
                let starts: Vec<ItemStart> = starts.collect();
                buffer.gather_sequences(&starts, length, outputs)
            })
        })?;
        Ok(data)
    }

    fn epoch(slf: &Bound<'_, Self>) -> PyResult<Epoch> {
        let this = slf.get();
        let keys = this.locked(slf.py(), usize::MAX, |mut buffer| buffer.shuffled_keys())?;
        Ok(Epoch {
            buffer: slf.clone().unbind(),
            keys: Mutex::new(keys),
        })
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

    /// Saves the buffer to a file; returns its size in bytes.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<u64> {
        let lock = self.buffer.get(py)?;
        let bytes = interruptible(py, move |interrupted| {
            match SaveTarget::lock(&path, interrupted)? {
                Some(target) => target.save(&lock.read(), &self.schema, entropy(), interrupted),
                None => Ok(None),
            }
        })?;
        Ok(bytes.unwrap_or_default())
    }

    /// Fills the buffer, to which no step was added, from a save.
    fn restore(&self, py: Python<'_>, saved: &SavedBuffer) -> PyResult<()> {
        let lock = self.buffer.get(py)?;
        let saved = saved.take(py)?;
        interruptible(py, |interrupted| {
            saved.check_schema(&self.schema)?;
            saved.restore(&mut lock.write(), interrupted)
        })?;
        Ok(())
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

/// The items of a replay buffer at one moment, in random order.
#[pyclass(frozen, module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct Epoch {
    buffer: Py<ReplayBuffer>,
    /// Keys of the items that were not returned yet.
    keys: Mutex<Vec<u64>>,
}

impl Epoch {
    fn keys(&self) -> MutexGuard<'_, Vec<u64>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Epoch {
    /// Returns the next batch, which has fewer items at the end; None after the end.
    fn next(&self, py: Python<'_>, batch_size: usize) -> PyResult<Option<BufferBatch>> {
        let this = self.buffer.get();
        let items = batch_size.min(self.keys().len());
        let columns = this.item_columns();
        let mut buffers = columns.allocate(py, items)?;
        let mut keys = std::mem::take(&mut *self.keys());
        let bytes = columns.batch_bytes(items);
        let item_bytes: Vec<usize> = this.outputs.iter().map(|(_, cell)| cell.bytes()).collect();
        let outputs: Vec<&mut [u8]> = buffers.iter_mut().map(|buffer| &mut **buffer).collect();
        let (drawn, keys) = this.locked(py, bytes, |mut buffer| {
            let drawn: Drawn = buffer.take(&mut keys, items);
            let buffer = RwLockWriteGuard::downgrade(buffer);
            let outputs = outputs.into_iter().zip(item_bytes);
            let outputs = outputs.map(|(out, bytes)| &mut out[..bytes * drawn.starts.len()]);
            buffer.gather(&drawn, outputs.collect())?;
            Ok((drawn, keys))
        })?;
        *self.keys() = keys;
        let items = drawn.starts.len();
        if items == 0 {
            return Ok(None);
        }
        let data = columns.nest(py, buffers, items)?;
        Ok(Some(BufferBatch::new(data, drawn, this.envs.len())))
    }
}
