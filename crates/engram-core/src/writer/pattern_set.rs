//! The patterns of one stream of steps, applied after every append.

use std::ops::Range;

use super::StepPosition;
use super::condition::StepContext;
use super::pattern::Pattern;
use super::recorder::Recorder;
use crate::error::Result;
use crate::schema::Schema;

/// A pattern, and when it last created an item.
#[derive(Debug, Default)]
struct PatternState {
    /// `None` until the columns that the pattern needs are known.
    pattern: Option<Pattern>,
    /// End of the available steps when the pattern last created an item; 0 before that.
    applied_at: StepPosition,
}

/// Patterns in declaration order. Each creates at most one item per step.
#[derive(Debug)]
pub struct PatternSet {
    patterns: Box<[PatternState]>,
}

impl PatternSet {
    /// Returns a set of `count` patterns. A pattern is skipped until it is [`set`](Self::set).
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self {
            patterns: std::iter::repeat_with(PatternState::default)
                .take(count)
                .collect(),
        }
    }

    /// Sets or replaces pattern `number`, for steps of this schema.
    pub fn set(&mut self, number: usize, mut pattern: Pattern, schema: &Schema) {
        pattern.bind(schema);
        self.patterns[number].pattern = Some(pattern);
    }

    /// Returns pattern `number`, if it is set.
    #[must_use]
    pub fn get(&self, number: usize) -> Option<&Pattern> {
        self.patterns[number].pattern.as_ref()
    }

    /// Renumbers the columns. Call it after [`Recorder::restructure`], with the same `map`.
    ///
    /// # Errors
    /// [`crate::Error::InvalidArgument`] if there are more than 2^32 columns.
    pub fn remap(&mut self, map: &[usize]) -> Result<()> {
        let mut patterns = self.patterns.iter_mut().filter_map(|p| p.pattern.as_mut());
        patterns.try_for_each(|pattern| pattern.remap(map))
    }

    /// Creates the items that are due, and returns their number. Call it after every append,
    /// complete or partial. Before [`Recorder::end_episode`], call it again with `end_of_episode`, to evaluate the
    /// conditions of the episode's last step once more. A pattern creates no item while steps or
    /// values that it needs are missing, and at most one item per step. `check_priority(table, priority)` checks a
    /// priority that was computed from TD errors.
    ///
    /// # Errors
    /// [`crate::Error::Signature`] if cells of an item's column differ in shape,
    /// [`crate::Error::Priority`] for TD errors of an unsupported type, and any error of
    /// `check_priority`. The other patterns still create their items.
    pub fn apply(
        &mut self,
        recorder: &mut Recorder,
        end_of_episode: bool,
        check_priority: impl Fn(u32, f64) -> Result<()>,
    ) -> Result<usize> {
        let steps = recorder.available_steps();
        self.apply_to(recorder, steps, end_of_episode, &check_priority)
    }

    /// Creates the items that [`Self::apply`] would have created after each of the last `count` steps, in the same
    /// order. Call it after [`Recorder::append_steps`].
    ///
    /// # Errors
    /// The first error of [`Self::apply`]. The items of the other steps are created nevertheless.
    pub fn apply_to_last(
        &mut self,
        recorder: &mut Recorder,
        count: usize,
        check_priority: impl Fn(u32, f64) -> Result<()>,
    ) -> Result<usize> {
        let end = recorder.complete_steps();
        let mut created = Ok(0);
        for end in end - count as StepPosition + 1..=end {
            let steps = recorder.available_before(end);
            let more = self.apply_to(recorder, steps, false, &check_priority);
            created = created.and_then(|created| Ok(created + more?));
        }
        created
    }

    /// Applies the patterns to the newest of the available `steps`.
    fn apply_to(
        &mut self,
        recorder: &mut Recorder,
        steps: Range<StepPosition>,
        end_of_episode: bool,
        check_priority: &impl Fn(u32, f64) -> Result<()>,
    ) -> Result<usize> {
        if steps.end <= recorder.episode_start() {
            return Ok(0);
        }
        let mut created = 0;
        let mut outcome = Ok(());
        for state in &mut self.patterns {
            let Some(pattern) = &state.pattern else {
                continue;
            };
            if state.applied_at == steps.end {
                continue;
            }
            let context = StepContext {
                step_index: steps.end - 1 - recorder.episode_start(),
                since_applied: steps.end - state.applied_at,
                history_length: steps.end - steps.start,
                end_of_episode,
            };
            let is_due = pattern
                .conditions
                .iter()
                .all(|c| c.is_met(context, |column| recorder.newest_integer(column, &steps)));
            if !is_due {
                continue;
            }
            match recorder.create_item_from(pattern, steps.clone(), check_priority) {
                Ok(true) => {
                    state.applied_at = steps.end;
                    created += 1;
                }
                Ok(false) => {}
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome.map(|()| created)
    }
}
