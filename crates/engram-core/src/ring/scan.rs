//! Reading all items or all steps of a buffer in order.

use std::ops::Range;

use super::{Drawn, StepBuffer, filled};
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
    /// Number of items or steps that the buffer had, without those that were read.
    unread: u64,
}

impl BufferScan {
    /// True if single steps are read; false for items.
    #[must_use]
    pub fn of_steps(&self) -> bool {
        self.of_steps
    }

    /// Maximum number of items or steps that were not read: some that were overwritten since count too.
    #[must_use]
    pub fn len(&self) -> u64 {
        let ranges = self.left[self.env..].iter();
        let positions: u64 = ranges.map(|range| range.end - range.start).sum();
        positions.min(self.unread) // fewer items than positions if items are episodes
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
            unread: if of_steps {
                self.len()
            } else {
                self.num_items()
            } as u64,
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
                let steps = (first..end).take(wanted);
                starts.extend(steps.map(|position| self.ring.start(scan.env, position)));
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
        scan.unread = scan.unread.saturating_sub(starts.len() as u64);
        let drawn = self.index.equally_likely_draw(&self.ring, starts);
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

#[cfg(test)]
mod tests {
    use crate::ring::RingItems;
    use crate::ring::test_buffer::{buffer_of, no_flags};

    #[test]
    fn a_scan_of_episodes_counts_items_and_not_their_steps() {
        let mut buffer = buffer_of(RingItems::Episodes { max_length: 4 }, 2, 20);
        for (env, steps) in [(0, 4), (0, 3), (0, 10), (1, 2)] {
            buffer.add_episode(env, &no_flags(), steps);
        }
        let mut steps = buffer.begin_scan(true).unwrap();
        assert_eq!(steps.len(), 19);
        assert_eq!(buffer.read(&mut steps, 5).starts.len(), 5);
        assert_eq!(steps.len(), 14);
        let mut items = buffer.begin_scan(false).unwrap();
        assert_eq!(items.len(), 6);
        assert_eq!(buffer.read(&mut items, 2).starts.len(), 2);
        assert_eq!(items.len(), 4);
        buffer.add_episode(0, &no_flags(), 20); // overwrites three of them
        assert_eq!(buffer.read(&mut items, 4).starts.len(), 1);
        assert!(items.is_empty());
    }
}
