//! The methods of the native class.

use std::path::PathBuf;
use std::sync::Arc;

use engram_core::pool::Pool;
use engram_core::ring::{ItemStart, StepBufferOptions};
use engram_core::text::describe_column;
use engram_core::{CellSpec, Schema, Shape, Signature};
use engram_engine::{self as engine, Interrupted, SaveContents, SaveTarget};
use engram_rpc::random_u64;
use numpy::{PyArray1, PyArrayDescr, PyArrayMethods, PyReadwriteArray1};
use parking_lot::{RwLock, RwLockWriteGuard};
use pyo3::prelude::*;

use super::{BYTES_PER_PRIORITY_CHANGE, ReplayBuffer};
use crate::buffer_batch::BufferBatch;
use crate::buffer_env_ids::{all_envs, read_env_id, read_env_ids, unknown_env};
use crate::buffer_items::{BufferItemsConfig, BufferSamplerConfig};
use crate::buffer_reader::{BufferReader, Unread};
use crate::buffer_steps::{LeadingAxes, StepColumns};
use crate::device_columns::{DeviceColumns, DeviceConfig, StagedBlock};
use crate::gil::{ForkGuard, detached};
use crate::leaf::MIN_DETACHED_BYTES;
use crate::saved_buffer::{SavedBuffer, interruptible};
use crate::structure::Structure;
use crate::{config, errors};

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
                let column = describe_column(&column.name);
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
            Some(path) => interruptible(
                py,
                |interrupted| {
                    engine::ReplayBuffer::open(&path, options, &schema, random_u64()?, interrupted)
                },
                |mut opened| {
                    let _ = opened.discard();
                },
            )?,
            None => detached(py, || engine::ReplayBuffer::new(&options))?,
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
        let save = move |interrupted: Interrupted<'_>| match SaveTarget::lock(&path, interrupted)? {
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
                target.save(contents, random_u64()?, interrupted)
            }
            None => Ok(None),
        };
        Ok(interruptible(py, save, drop)?.unwrap_or_default())
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
        let restore = move |interrupted: Interrupted<'_>| {
            let mut buffer = lock.write();
            buffer.check_open()?;
            saved.check_schema(&self.schema)?;
            saved.restore(&mut buffer, cells, interrupted)
        };
        interruptible(py, restore, drop)?;
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
        self.reading(env_id.py(), 0, |buffer| Ok(buffer.env_steps(env).added))
    }

    /// Number of steps, and number of items.
    fn sizes(&self, py: Python<'_>) -> PyResult<(usize, usize)> {
        self.reading(py, 0, |buffer| Ok((buffer.len(), buffer.num_items())))
    }
}
