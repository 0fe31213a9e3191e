//! The columns of a vector recorder's rows.

use std::sync::Arc;

use super::rule::{ItemKind, ItemRule, ItemSource};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::schema::{CellSpec, Layout, Schema, Shape};

/// The columns of the rows, in this order: those that the caller gives; the reward and the flags, as far as rules use
/// them; a return and a discount for each rule of transitions.
pub(super) struct RowColumns {
    pub(super) schema: Arc<Schema>,
    /// The columns of the reward and the flags.
    pub(super) extra_columns: Vec<ItemSource>,
    /// Per rule, the numbers of the columns of its return and its discount; zeros for a rule of sequences.
    pub(super) return_columns: Vec<[usize; 2]>,
}

impl RowColumns {
    /// Returns the columns of the rows. `given` has those that the caller gives.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for strings.
    pub(super) fn new(given: &Schema, rules: &[ItemRule]) -> Result<Self> {
        let mut names = given.layout.names.to_vec();
        let mut cells = given.cells.to_vec();
        if let Some(text) = cells.iter().position(|cell| cell.dtype.is_string()) {
            return Err(Error::InvalidArgument(format!(
                "column `{}` has text, which a writer of vector environments does not store; encode it as numbers",
                names[text]
            )));
        }
        let mut add = |name: &str, dtype| {
            names.push(name.into());
            cells.push(CellSpec {
                dtype,
                shape: Shape::new(),
            });
            names.len() - 1
        };
        let is_used = |source| {
            let mut columns = rules.iter().flat_map(|rule| &rule.columns);
            columns.any(|column| column.source == source)
        };
        let mut extra_columns = Vec::new();
        for (source, name, dtype) in [
            (ItemSource::Reward, "reward", DType::Float32),
            (ItemSource::Terminated, "terminated", DType::Bool),
            (ItemSource::Truncated, "truncated", DType::Bool),
            (ItemSource::Valid, "valid", DType::Bool),
        ] {
            if is_used(source) {
                add(name, dtype);
                extra_columns.push(source);
            }
        }
        let return_columns = (rules.iter().enumerate())
            .map(|(number, rule)| match rule.kind {
                ItemKind::Transitions { .. } => ["return", "discount"]
                    .map(|name| add(&format!("{name} of rule {number}"), DType::Float32)),
                ItemKind::Sequences { .. } => [0; 2],
            })
            .collect();
        let layout = Layout {
            // A list of columns. Items have structures of their own.
            structure: format!("{{\"l\":[{}]}}", vec!["0"; names.len()].join(",")).into(),
            names: names.into(),
        };
        Ok(Self {
            schema: Arc::new(Schema {
                layout: Arc::new(layout),
                cells: cells.into(),
            }),
            extra_columns,
            return_columns,
        })
    }
}
