//! Patterns, as Python compiles them.

use engram_core::writer::{
    Comparison, Condition, ConditionInput, Pattern, PatternColumn, PriorityRule,
};
use pyo3::prelude::*;

use crate::errors;
use crate::sender::Sender;
use crate::structure::layout_of;

/// An `engram.patterns._CompiledPattern`. Leaves are numbered in the order of the step's structure.
#[derive(Debug, FromPyObject)]
pub(crate) struct PatternConfig {
    table: String,
    names: Vec<String>,
    structure: String,
    /// Source leaf, start, stop, step, squeeze.
    columns: Vec<(usize, i64, i64, i64, bool)>,
    /// Input, its leaf, comparison, two operands, and whether the comparison is inverted.
    conditions: Vec<(String, usize, String, i64, i64, bool)>,
    priority: PriorityConfig,
}

/// How the priorities of a pattern's items are computed.
#[derive(Debug, FromPyObject)]
enum PriorityConfig {
    Constant(f64),
    /// The item's column of TD errors, and the weight of the largest; the mean has the remaining weight.
    TdError((usize, f64)),
}

impl PatternConfig {
    /// Number of last steps that its items can refer to.
    pub(crate) fn lookback(&self) -> u64 {
        let starts = self.columns.iter().map(|column| column.1.unsigned_abs());
        starts.max().unwrap_or(1)
    }

    /// Returns the engine's pattern; `None` while a column that its items or conditions use has had no value. `column`
    /// maps leaves to the writer's columns.
    pub(crate) fn compile(
        self,
        py: Python<'_>,
        sender: &mut Sender,
        column: impl Fn(usize) -> Option<usize>,
    ) -> PyResult<Option<Pattern>> {
        let to_py = |error| errors::to_py(py, &error);
        let number = sender.table_number(py, &self.table)?;
        let priority = match self.priority {
            PriorityConfig::Constant(priority) => {
                let options = sender.options(number);
                options.check_priority(priority).map_err(to_py)?;
                PriorityRule::Constant(priority)
            }
            PriorityConfig::TdError((column, max_weight)) => {
                PriorityRule::TdError { column, max_weight }
            }
        };
        let columns = self
            .columns
            .iter()
            .map(|&(leaf, start, stop, step, squeeze)| {
                Some(PatternColumn {
                    source: column(leaf)?,
                    start,
                    stop,
                    step,
                    squeeze,
                })
            })
            .collect::<Option<_>>();
        let conditions = self
            .conditions
            .iter()
            .map(|(input, leaf, comparison, first, second, inverse)| {
                let input = match input.as_str() {
                    "step_index" => ConditionInput::StepIndex,
                    "steps_since_applied" => ConditionInput::StepsSinceApplied,
                    "history_length" => ConditionInput::HistoryLength,
                    "end_of_episode" => ConditionInput::EndOfEpisode,
                    _ => ConditionInput::Column(column(*leaf)?),
                };
                let comparison = match comparison.as_str() {
                    "eq" => Comparison::Eq(*first),
                    "ge" => Comparison::Ge(*first),
                    _ => Comparison::Mod {
                        divisor: *first,
                        remainder: *second,
                    },
                };
                Some(Condition {
                    input,
                    comparison,
                    inverse: *inverse,
                })
            })
            .collect::<Option<_>>();
        let (Some(columns), Some(conditions)) = (columns, conditions) else {
            return Ok(None);
        };
        let layout = layout_of(&self.names, &self.structure);
        Pattern::new(number, layout, columns, conditions, priority)
            .map(Some)
            .map_err(to_py)
    }
}

/// Checks the items that a pattern would create against the signature of their table.
pub(crate) fn check_signature(
    py: Python<'_>,
    pattern: &Pattern,
    sender: &Sender,
    schema: &engram_core::Schema,
) -> PyResult<()> {
    let options = sender.options(pattern.table());
    let Some(signature) = &options.signature else {
        return Ok(());
    };
    signature
        .check(&options.name, pattern.item_columns(schema))
        .map_err(|error| errors::to_py(py, &error))
}
