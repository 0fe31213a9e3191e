//! Patterns as Python compiles them.

use std::sync::Arc;

use engram_core::Layout;
use engram_core::writer::{
    Comparison, Condition, ConditionInput, Pattern, PatternColumn, PriorityRule,
};
use pyo3::prelude::*;

use crate::errors;
use crate::sender::Sender;

/// One compiled pattern: all columns of the last `num_steps` steps, or column by column.
#[derive(Debug, FromPyObject)]
pub(crate) struct PatternConfig {
    table: String,
    names: Vec<String>,
    structure: String,
    /// Source leaf, start, stop, step, squeeze.
    columns: Vec<(usize, i64, i64, i64, bool)>,
    /// Subject, leaf, comparison, two operands, inverse.
    conditions: Vec<(String, usize, String, i64, i64, bool)>,
    priority: PriorityConfig,
}

/// How the priorities of its items are found.
#[derive(Debug, FromPyObject)]
enum PriorityConfig {
    Constant(f64),
    /// The item's column of TD errors, and what the largest of them weighs.
    TdError((usize, f64)),
}

impl PatternConfig {
    /// Steps that it looks back.
    pub(crate) fn history(&self) -> u64 {
        let starts = self.columns.iter().map(|column| column.1.unsigned_abs());
        starts.max().unwrap_or(1)
    }

    /// The engine's form; `column` maps leaves to the writer's columns. None while one that it
    /// needs has had no value yet.
    pub(crate) fn compile(
        self,
        py: Python<'_>,
        sender: &mut Sender,
        column: impl Fn(usize) -> Option<usize>,
    ) -> PyResult<Option<Pattern>> {
        let wrong = |error| errors::to_py(py, &error);
        let number = sender.table_number(py, &self.table)?;
        let priority = match self.priority {
            PriorityConfig::Constant(priority) => {
                let options = sender.options(number);
                options.check_priority(priority).map_err(wrong)?;
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
            .map(|(input, leaf, comparison, a, b, inverse)| {
                let input = match input.as_str() {
                    "step_index" => ConditionInput::StepIndex,
                    "steps_since_applied" => ConditionInput::StepsSinceApplied,
                    "history_length" => ConditionInput::HistoryLength,
                    "end_of_episode" => ConditionInput::EndOfEpisode,
                    _ => ConditionInput::Column(column(*leaf)?),
                };
                let comparison = match comparison.as_str() {
                    "eq" => Comparison::Eq(*a),
                    "ge" => Comparison::Ge(*a),
                    _ => Comparison::Mod {
                        divisor: *a,
                        remainder: *b,
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
        let names = self.names.iter().map(|name| name.as_str().into()).collect();
        let layout = Arc::new(Layout {
            names,
            structure: self.structure.as_str().into(),
        });
        Pattern::new(number, layout, columns, conditions, priority)
            .map(Some)
            .map_err(wrong)
    }
}

/// Checks a pattern's items against the signature of their table, before there are any.
pub(crate) fn check(
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
