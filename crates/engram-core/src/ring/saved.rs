//! Saving a [`StepBuffer`], and filling one from a save: the steps of environments, in runs of consecutive ones.
//!
//! A buffer with the same steps in the same slots, the same priorities and the same random generator draws the same
//! items, because the sums of the tree depend only on the current weights.

use super::episode_flags::{CUT, ENDED, FIRST, TERMINATED};
use super::filled::filled;
use super::reopen::MAX_STEPS;
use super::{DeviceCells, EnvRing, StepBuffer};
use crate::error::{Error, Result};
use crate::selector::TableRng;
use crate::shared_bytes::SharedBytes;
use crate::text::count;

/// Which steps of an environment a buffer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnvSteps {
    /// Number of steps ever added, which is the position of the next one.
    pub added: u64,
    /// Number of steps stored, the newest ones.
    pub stored: u64,
}

/// Consecutive steps of an environment, in consecutive slots.
#[derive(Clone, Copy, Debug)]
pub struct StepRun {
    /// The environment.
    pub env: usize,
    /// Position of the first step.
    pub position: u64,
    /// Number of steps.
    pub len: usize,
    /// Row of the first step.
    row: usize,
}

/// Consecutive steps of an environment, as a save contains them.
#[derive(Clone, Copy, Debug)]
pub struct SavedRun<'a> {
    /// The environment.
    pub env: u64,
    /// Position of the first step.
    pub position: u64,
    /// Number of steps.
    pub len: usize,
    /// The flags of the steps, one byte each; `None` if the saved buffer did not record where episodes end.
    pub flags: Option<&'a [u8]>,
    /// The priorities of the items that begin with the steps, 8 bytes each, NaN where no item begins; `None` if the saved
    /// buffer had none.
    pub priorities: Option<&'a [u8]>,
    /// The cells of the steps, column after column.
    pub cells: &'a [u8],
}

impl StepBuffer {
    /// Number of environments.
    #[must_use]
    pub fn num_envs(&self) -> usize {
        self.ring.num_envs()
    }

    /// True if the buffer records where episodes end.
    #[must_use]
    pub fn has_flags(&self) -> bool {
        self.ring.episode_columns.is_some()
    }

    /// True if its items have priorities.
    #[must_use]
    pub fn has_priorities(&self) -> bool {
        self.index.has_priorities()
    }

    /// Which steps of an environment the buffer has.
    #[must_use]
    pub fn env_steps(&self, env: usize) -> EnvSteps {
        let env = &self.ring.envs[env];
        EnvSteps {
            added: env.added,
            stored: env.stored as u64,
        }
    }

    /// All stored steps of an environment, oldest first, in runs of at most `max_len` steps.
    pub fn runs(&self, env: usize, max_len: usize) -> impl Iterator<Item = StepRun> + '_ {
        let ring = &self.ring;
        let mut position = ring.oldest(env);
        std::iter::from_fn(move || {
            let left = usize::try_from(ring.envs[env].added - position).unwrap_or(usize::MAX);
            if left == 0 {
                return None;
            }
            let slot = ring.slot(env, position);
            let run = StepRun {
                env,
                position,
                len: left.min(ring.length - slot).min(max_len),
                row: ring.row(env, slot),
            };
            position += run.len as u64;
            Some(run)
        })
    }

    /// The cells of each column of a run; `device_cells` are read if the ring has only their numbers.
    pub fn cells<'a>(
        &'a self,
        run: StepRun,
        device_cells: &'a DeviceCells<'_>,
    ) -> impl Iterator<Item = &'a [u8]> {
        let rows = self.ring.num_envs() * self.ring.length;
        let columns = self.ring.columns.iter().enumerate();
        columns.map(move |(number, column)| {
            let (bytes, cell_bytes) = match device_cells.get(number) {
                Some(Some(cells)) => (&**cells, cells.len() / rows),
                _ => (&*column.bytes, column.cell_bytes),
            };
            &bytes[run.row * cell_bytes..(run.row + run.len) * cell_bytes]
        })
    }

    /// The flags of a run; `None` if the buffer does not record where episodes end.
    #[must_use]
    pub fn flags(&self, run: StepRun) -> Option<&[u8]> {
        let flags = &self.ring.flags[run.row..run.row + run.len];
        self.has_flags().then_some(flags)
    }

    /// The priorities of the items that begin with the steps of a run, NaN where no item begins; `None` if the buffer has
    /// no priorities.
    #[must_use]
    pub fn priorities(&self, run: StepRun) -> Option<impl Iterator<Item = f64>> {
        self.index
            .priorities(&self.ring, run.env, run.position, run.row, run.len)
    }

    /// The random generator.
    #[must_use]
    pub fn rng(&self) -> &TableRng {
        &self.rng
    }

    /// Begins to fill the buffer from a save with these steps. If the ring has only the numbers of cells, these are written to
    /// `device_cells`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if steps were added before, or the number of environments differs;
    /// [`Error::Payload`] if the numbers are invalid; [`Error::OutOfMemory`].
    pub fn begin_restore<'a>(
        &'a mut self,
        envs: &[EnvSteps],
        device_cells: DeviceCells<'a>,
    ) -> Result<BufferRestore<'a>> {
        BufferRestore::new(self, envs, device_cells)
    }
}

/// Fills a buffer from a save. If it is dropped before [`BufferRestore::finish`], the buffer stays empty.
#[derive(Debug)]
pub struct BufferRestore<'a> {
    buffer: &'a mut StepBuffer,
    device_cells: DeviceCells<'a>,
    /// For each environment: the position of the next step in the save, and that after its last one.
    missing: Vec<(u64, u64)>,
    is_finished: bool,
}

impl<'a> BufferRestore<'a> {
    fn new(
        buffer: &'a mut StepBuffer,
        envs: &[EnvSteps],
        device_cells: DeviceCells<'a>,
    ) -> Result<Self> {
        let ring = &mut buffer.ring;
        if ring.envs.iter().any(|env| env.added > 0) {
            return Err(Error::InvalidArgument(
                "a save can be restored only into a buffer to which no step was added; create another buffer, and restore \
                 the save first"
                    .into(),
            ));
        }
        if envs.len() != ring.num_envs() {
            let saved = count(envs.len(), "environment");
            return Err(Error::InvalidArgument(format!(
                "the save has {saved}, and this buffer has {}; create the buffer with `num_envs={}`",
                ring.num_envs(),
                envs.len()
            )));
        }
        let max_added = MAX_STEPS / ring.num_envs() as u64;
        if let Some(wrong) = envs
            .iter()
            .find(|env| env.stored > env.added || env.added > max_added)
        {
            return Err(Error::Payload(format!(
                "an environment has {} steps, of which {} are stored",
                wrong.added, wrong.stored
            )));
        }
        let mut missing = filled((0, 0), envs.len())?;
        for (saved, (missing, env)) in envs.iter().zip(missing.iter_mut().zip(&mut ring.envs)) {
            *missing = (saved.added - saved.stored, saved.added);
            // Only the newest steps fit into a smaller buffer.
            let oldest = saved.added - saved.stored.min(ring.length as u64);
            *env = EnvRing::at(oldest, oldest, ring.length);
        }
        Ok(Self {
            buffer,
            device_cells,
            missing,
            is_finished: false,
        })
    }

    /// Adds the next steps of an environment.
    ///
    /// # Errors
    /// [`Error::Payload`] if they are not the next ones, or invalid; [`Error::Priority`] if a priority is not allowed.
    pub fn add(&mut self, run: &SavedRun<'_>) -> Result<()> {
        let invalid = |what: String| Err(Error::Payload(what));
        let StepBuffer { ring, index, .. } = &mut *self.buffer;
        let env = usize::try_from(run.env)
            .ok()
            .filter(|env| *env < self.missing.len());
        let Some(env) = env else {
            return invalid(format!("environment {} is unknown", run.env));
        };
        let (position, end) = &mut self.missing[env];
        let len = run.len as u64;
        if run.position != *position || len > *end - *position {
            let (steps, verb) = (
                count(run.len, "step"),
                if len == 1 { "was" } else { "were" },
            );
            return invalid(format!(
                "{steps} from position {} on {verb} not expected: those of environment {env} from {position} to {end} are \
                 missing",
                run.position
            ));
        }
        let rows = ring.num_envs() * ring.length;
        let device_cells = &mut self.device_cells;
        let columns = ring.columns.iter().enumerate();
        let cell_bytes = columns.map(|(number, column)| match device_cells.get(number) {
            Some(Some(cells)) => cells.len() / rows,
            _ => column.cell_bytes,
        });
        let cell_bytes: Vec<usize> = cell_bytes.collect();
        let step_bytes: usize = cell_bytes.iter().sum();
        for (what, bytes, expected) in [
            ("data", Some(run.cells), run.len * step_bytes),
            ("flags", run.flags, run.len),
            ("priorities", run.priorities, 8 * run.len),
        ] {
            if let Some(bytes) = bytes.filter(|bytes| bytes.len() != expected) {
                let (steps, len) = (count(run.len, "step"), bytes.len());
                return invalid(format!(
                    "the {what} of {steps}: {len} bytes, expected {expected}"
                ));
            }
        }
        if run
            .flags
            .iter()
            .copied()
            .flatten()
            .any(|flags| *flags > ENDED | TERMINATED | FIRST | CUT)
        {
            return invalid("a step has unknown flags".into());
        }
        let next = ring.envs[env].added;
        let skipped = usize::try_from(next.saturating_sub(run.position));
        let skipped = skipped.unwrap_or(usize::MAX).min(run.len);
        let priorities = run.priorities.map(|bytes| &bytes.as_chunks().0[skipped..]);
        let steps = run.len - skipped;
        index.stage(ring, env, steps, priorities)?;
        let cell_numbers: Vec<[u8; 8]> = ring.cell_numbers(env, steps).collect();
        let mut columns = Vec::with_capacity(ring.columns.len());
        let mut cells = run.cells;
        for (number, cell_bytes) in cell_bytes.into_iter().enumerate() {
            let (saved, others) = cells.split_at(run.len * cell_bytes);
            let saved = &saved[skipped * cell_bytes..];
            columns.push(SharedBytes::from(match device_cells.get_mut(number) {
                Some(Some(all)) => {
                    ring.copy_to_next_rows(env, saved, cell_bytes, all);
                    cell_numbers.as_flattened()
                }
                _ => saved,
            }));
            cells = others;
        }
        let flags = run.flags.map(|flags| &flags[skipped..]);
        ring.add_saved(env, &columns, flags, steps);
        *position += len;
        Ok(())
    }

    /// Ends the restore: the buffer continues with this random generator.
    ///
    /// # Errors
    /// [`Error::Payload`] if steps are missing.
    pub fn finish(mut self, rng: TableRng) -> Result<()> {
        let missing = self.missing.iter().position(|(next, end)| next < end);
        if let Some(env) = missing {
            let (next, _) = self.missing[env];
            return Err(Error::Payload(format!(
                "the steps of environment {env} from position {next} on are missing"
            )));
        }
        let StepBuffer {
            ring,
            items,
            index,
            rng: own,
            ..
        } = &mut *self.buffer;
        ring.cut_headless_episodes();
        index.finish_restore(ring, items);
        *own = rng;
        self.is_finished = true;
        self.buffer.publish_together();
        Ok(())
    }
}

impl Drop for BufferRestore<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            let StepBuffer { ring, index, .. } = &mut *self.buffer;
            index.discard_staged(ring);
            ring.forget_all();
        }
    }
}
