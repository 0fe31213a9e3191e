//! The patterns of one stream of steps, tried after every append.

use super::StepPosition;
use super::condition::{Moment, number};
use super::pattern::Pattern;
use super::recorder::Recorder;
use crate::error::Result;
use crate::schema::Schema;

/// A pattern, and when it last made an item.
#[derive(Debug, Default)]
struct Entry {
    /// `None` until the columns it needs are known.
    pattern: Option<Pattern>,
    /// Position after the step at which it last made an item; 0 before the first.
    applied: StepPosition,
}

/// Patterns in declaration order. Each makes at most one item per step.
#[derive(Debug)]
pub struct PatternSet {
    entries: Box<[Entry]>,
}

impl PatternSet {
    /// Room for `count` patterns, none of which applies until it is [`set`](Self::set).
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self {
            entries: std::iter::repeat_with(Entry::default).take(count).collect(),
        }
    }

    /// Gives or changes pattern `number`, for steps of this schema.
    pub fn set(&mut self, number: usize, mut pattern: Pattern, schema: &Schema) {
        pattern.bind(schema);
        self.entries[number].pattern = Some(pattern);
    }

    /// Pattern `number`, once it is set.
    #[must_use]
    pub fn get(&self, number: usize) -> Option<&Pattern> {
        self.entries[number].pattern.as_ref()
    }

    /// Follows [`Recorder::restructure`]: to be called with the same `map`.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] when there are more than 2^32 columns.
    pub fn remap(&mut self, map: &[usize]) -> Result<()> {
        let mut patterns = self.entries.iter_mut().filter_map(|e| e.pattern.as_mut());
        patterns.try_for_each(|pattern| pattern.remap(map))
    }

    /// Makes the items due after an append, complete or partial, and says how many. With
    /// `end_of_episode` the newest step is tried once more, as the last: to be called before
    /// [`Recorder::end_episode`]. A pattern that lacks steps or values makes none. `accepts` says
    /// whether a table takes a priority that was found.
    ///
    /// # Errors
    /// [`crate::Error::Signature`] when cells of an item have several shapes,
    /// [`crate::Error::Priority`] when its TD errors are no such numbers, and whatever `accepts`
    /// returns. The other patterns' items are made all the same.
    pub fn apply(
        &mut self,
        recorder: &mut Recorder,
        end_of_episode: bool,
        accepts: impl Fn(u32, f64) -> Result<()>,
    ) -> Result<usize> {
        let newest = recorder.available_steps();
        if newest.end <= recorder.episode_first() {
            return Ok(0);
        }
        let mut made = 0;
        let mut problem = Ok(());
        for entry in &mut self.entries {
            let Some(pattern) = &entry.pattern else {
                continue;
            };
            if entry.applied == newest.end {
                continue;
            }
            let moment = Moment {
                step_index: newest.end - 1 - recorder.episode_first(),
                since_applied: newest.end - entry.applied,
                history_length: newest.end - newest.start,
                end_of_episode,
            };
            let due = pattern
                .conditions
                .iter()
                .all(|c| c.holds(moment, |column| newest_number(recorder, column)));
            if !due {
                continue;
            }
            match recorder.create_from(pattern, &accepts) {
                Ok(true) => {
                    entry.applied = newest.end;
                    made += 1;
                }
                Ok(false) => {}
                Err(error) => problem = problem.and(Err(error)),
            }
        }
        problem.map(|()| made)
    }
}

fn newest_number(recorder: &Recorder, column: usize) -> Option<i128> {
    let newest = recorder.available_steps().end.checked_sub(1)?;
    let spec = recorder.cell_spec(column, newest)?;
    if spec.elements() != 1 {
        return None;
    }
    let mut cell = Vec::new();
    recorder.read_cell(column, newest, &mut cell).ok()?;
    number(spec, &cell)
}
