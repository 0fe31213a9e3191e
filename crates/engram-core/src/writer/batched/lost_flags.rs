//! Finds columns such as `terminated` that are true at the last step of an episode, but in no item.

use super::super::open_batch::OpenBatch;
use super::super::pattern::Pattern;
use crate::dtype::DType;
use crate::schema::Schema;

/// Bool columns that all patterns use only at steps before the newest. If such a column, for example `terminated`, is
/// true at the last step of an episode and not at the step before, the caller has probably set `episode_ends` one step
/// too early: an item with this value needs one more step, which has the last observation.
#[derive(Debug, Default)]
pub(super) struct LostFlags {
    /// The columns that were not reported yet.
    columns: Vec<usize>,
    /// A column that was true at the last step of an episode, where no item has it; `take` reports it.
    lost: Option<usize>,
}

impl LostFlags {
    pub(super) fn new<'a>(
        patterns: &(impl Iterator<Item = &'a Pattern> + Clone),
        schema: &Schema,
    ) -> Self {
        let is_flag = |column: &usize| {
            let cell = &schema.cells[*column];
            let mut uses = (patterns.clone())
                .flat_map(|pattern| &pattern.columns)
                .filter(|used| used.source == *column)
                .peekable();
            let is_bool = cell.dtype == DType::Bool && cell.elements() == 1;
            is_bool && uses.peek().is_some() && uses.all(|used| used.last() < -1)
        };
        Self {
            columns: (0..schema.cells.len()).filter(is_flag).collect(),
            lost: None,
        }
    }

    /// Checks the last step of an environment's episode of `steps` steps. `last` is the step's index in the open
    /// chunks.
    pub(super) fn check_last_step(
        &mut self,
        open: &OpenBatch,
        (env, last): (usize, usize),
        steps: u64,
    ) {
        if steps < 2 || last < 1 {
            return;
        }
        let is_true = |column: usize, step: usize| open.cell(column, env, step) != [0];
        let is_lost = |column: &&usize| is_true(**column, last) && !is_true(**column, last - 1);
        self.lost = self.lost.or(self.columns.iter().find(is_lost).copied());
    }

    /// Returns the column to report, if there is one. Each column is reported once.
    pub(super) fn take(&mut self) -> Option<usize> {
        let lost = self.lost.take()?;
        self.columns.retain(|column| *column != lost);
        Some(lost)
    }
}
