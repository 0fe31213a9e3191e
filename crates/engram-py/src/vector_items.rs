//! The items of a vector writer, as Python compiles them.

use engram_core::writer::{AtEnd, ItemColumn, ItemKind, ItemRule, ItemSource, Part};
use pyo3::prelude::*;

use crate::errors;
use crate::sender::Sender;
use crate::structure::layout_of;

/// An `engram.gymnasium.items.CompiledItems`.
#[derive(Debug, FromPyObject)]
pub(crate) struct VectorItemsConfig {
    table: String,
    priority: f64,
    names: Vec<String>,
    structure: String,
    /// Source, its leaf, part.
    columns: Vec<(String, usize, String)>,
    /// Discount per transition; `None` for sequences.
    discount: Option<f64>,
    /// Number of transitions of an item; for items that are transitions, the maximum (`n_step`).
    length: u64,
    /// Number of transitions from the start of a sequence to the start of the next.
    period: u64,
    at_end: String,
}

impl VectorItemsConfig {
    /// Returns the engine's rule, after checking its priority for its table.
    pub(crate) fn compile(self, py: Python<'_>, sender: &mut Sender) -> PyResult<ItemRule> {
        let table = sender.table_number(py, &self.table)?;
        let options = sender.options(table);
        options
            .check_priority(self.priority)
            .map_err(|error| errors::to_py(py, &error))?;
        let columns = self.columns.iter().map(|(source, leaf, part)| ItemColumn {
            source: match source.as_str() {
                "observation" => ItemSource::Observation(*leaf),
                "reward" => ItemSource::Reward,
                "terminated" => ItemSource::Terminated,
                "truncated" => ItemSource::Truncated,
                "valid" => ItemSource::Valid,
                "return" => ItemSource::Return,
                "discount" => ItemSource::Discount,
                _ => ItemSource::Step(*leaf),
            },
            part: match part.as_str() {
                "first" => Part::First,
                "last" => Part::Last,
                _ => Part::All,
            },
        });
        let kind = match self.discount {
            Some(discount) => ItemKind::Transitions {
                n_step: self.length,
                discount,
            },
            None => ItemKind::Sequences {
                length: self.length,
                period: self.period,
                at_end: match self.at_end.as_str() {
                    "drop" => AtEnd::Drop,
                    "cut" => AtEnd::Cut,
                    _ => AtEnd::Pad,
                },
            },
        };
        Ok(ItemRule {
            table,
            priority: self.priority,
            columns: columns.collect(),
            kind,
            layout: layout_of(&self.names, &self.structure),
        })
    }
}
