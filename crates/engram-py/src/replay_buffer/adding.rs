//! Adds steps to a replay buffer.

use engram_core::{Result, SharedBytes};
use engram_engine as engine;
use parking_lot::RwLockWriteGuard;
use pyo3::prelude::*;

use super::ReplayBuffer;
use crate::buffer_episodes::check_episode;
use crate::buffer_steps::{Cells, LeadingAxes};
use crate::errors;
use crate::leaf::prevent_resize;

impl ReplayBuffer {
    /// Adds steps of these environments.
    pub(super) fn add_to(
        slf: &Bound<'_, Self>,
        envs: &[usize],
        steps: &Bound<'_, PyAny>,
        leading: LeadingAxes,
    ) -> PyResult<()> {
        let (this, py) = (slf.get(), slf.py());
        let (cells, count) = this.columns.read(steps, leading)?;
        while !this.try_add(py, envs, &cells, count, leading)? {
            if let Some(device) = &this.device {
                device.write(slf)?;
            }
        }
        Ok(())
    }

    /// Adds `count` steps of each of these environments; returns false if staged cells must be written to the device first.
    fn try_add(
        &self,
        py: Python<'_>,
        envs: &[usize],
        cells: &[Cells<'_>],
        count: usize,
        leading: LeadingAxes,
    ) -> PyResult<bool> {
        let lock = self.buffer.get(py)?;
        let num_steps = envs.len() * count;
        let is_episode = matches!(leading, LeadingAxes::Steps);
        let read = || -> PyResult<Vec<SharedBytes<'_>>> {
            let bytes: Vec<_> = cells.iter().map(Cells::bytes).collect();
            self.columns.check_bytes(py, &bytes, num_steps)?;
            if is_episode {
                check_episode(py, &bytes, count, self.episode_columns)?;
            }
            Ok(bytes)
        };
        let bytes = read()?;
        let total: usize = bytes.iter().map(|bytes| bytes.len()).sum();
        let add_bytes = |buffer: &mut engine::ReplayBuffer, bytes: &[SharedBytes<'_>]| match envs {
            [env] if is_episode => buffer.add_episode(*env, bytes, count),
            _ => buffer.add(envs, bytes, count),
        };
        let add = |mut buffer: RwLockWriteGuard<'_, engine::ReplayBuffer>,
                   bytes: &[SharedBytes<'_>]|
         -> Result<bool> {
            buffer.check_open()?;
            let Some(device) = &self.device else {
                return add_bytes(&mut buffer, bytes).map(|()| true);
            };
            let Some(numbers) = device.stage(&buffer, envs, bytes, count)? else {
                return Ok(false);
            };
            add_bytes(&mut buffer, &device.with_numbers(bytes, &numbers)).map(|()| true)
        };
        let failed = |error| errors::to_py(py, &error);
        if total < self.min_detached_bytes
            && let Some(buffer) = lock.try_write()
        {
            return add(buffer, &bytes).map_err(failed);
        }
        // Before any address or length is read, because preventing a resize may run Python code.
        let resize_guards = cells
            .iter()
            .filter_map(Cells::array)
            .map(prevent_resize)
            .collect::<PyResult<Vec<_>>>()?;
        let bytes = read()?;
        let added = py.detach(|| add(lock.write(), &bytes));
        drop(resize_guards);
        added.map_err(failed)
    }
}
