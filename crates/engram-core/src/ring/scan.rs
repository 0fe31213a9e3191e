//! Reading all items or all steps of a buffer in order.

use std::ops::Range;

use super::{Drawn, ItemStart, StepBuffer, filled};
use crate::error::Result;
use crate::selector::DrawDistribution;

/// The items or the steps that a buffer had at one moment, without those that were read: environment after environment,
/// oldest first.
#[derive(Debug)]
pub struct BufferScan {
    of_steps: bool,
    /// For each environment: the positions of the steps that were not read, or that items begin with.
    left: Vec<Range<u64>>,
    /// The environment that is read next.
    env: usize,
}

impl BufferScan {
    /// True if single steps are read; false for items.
    #[must_use]
    pub fn of_steps(&self) -> bool {
        self.of_steps
    }

    /// Maximum number of items or steps that were not read: those that were overwritten since, and steps between items,
    /// count too.
    #[must_use]
    pub fn len(&self) -> u64 {
        let ranges = self.left[self.env..].iter();
        ranges.map(|range| range.end - range.start).sum()
    }

    /// True if all were read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl StepBuffer {
    /// Begins to read all items, or with `of_steps` all steps.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`].
    pub fn begin_scan(&self, of_steps: bool) -> Result<BufferScan> {
        let mut left = filled(0..0, self.num_envs())?;
        for (env, range) in left.iter_mut().enumerate() {
            *range = self.current(env, of_steps);
        }
        Ok(BufferScan {
            of_steps,
            left,
            env: 0,
        })
    }

    /// The positions of the steps of an environment, or of those that items begin with.
    fn current(&self, env: usize, of_steps: bool) -> Range<u64> {
        if of_steps {
            self.ring.oldest(env)..self.ring.envs[env].added
        } else {
            self.index.starts(env)
        }
    }

    /// Reads the next `n` items or steps, or fewer at the end. Leaves out those that were overwritten. Goals are as stored.
    pub fn read(&self, scan: &mut BufferScan, n: usize) -> Drawn {
        let mut starts = Vec::with_capacity(n);
        while starts.len() < n
            && let Some(left) = scan.left.get_mut(scan.env)
        {
            let current = self.current(scan.env, scan.of_steps);
            let first = left.start.max(current.start);
            let end = left.end.min(current.end);
            let wanted = n - starts.len();
            let before = starts.len();
            if scan.of_steps {
                starts.extend((first..end).take(wanted).map(|position| ItemStart {
                    env: scan.env,
                    position,
                    slot: self.ring.slot(scan.env, position),
                }));
            } else {
                let items = self.index.items_within(&self.ring, scan.env, first..end);
                starts.extend(items.take(wanted));
            }
            left.start = match starts.last() {
                Some(last) if starts.len() - before == wanted => last.position + 1,
                _ => first.max(end),
            };
            if left.start >= end {
                scan.env += 1;
            }
        }
        let drawn = self.index.uniformly_drawn(&self.ring, starts);
        Drawn {
            probabilities: vec![1.0],
            priorities: if scan.of_steps {
                Vec::new()
            } else {
                drawn.priorities
            },
            distribution: DrawDistribution::uniform(1),
            ..drawn
        }
    }
}
