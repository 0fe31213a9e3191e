//! Hint to use an array, for errors that a list of numbers may have caused: each number becomes a column of its own.

use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt};

use super::{Node, Structure};
use crate::errors;
use crate::history::ColumnHistory;

/// Adds the hint to an error about columns if the nest contains a list of numbers.
#[cold]
pub(crate) fn with_list_hint(error: PyErr, nest: &Bound<'_, PyAny>) -> PyErr {
    let py = nest.py();
    if !errors::is_about_columns(py, &error) {
        return error;
    }
    let (structure, leaves) = match Structure::of(nest) {
        Ok(parsed) => parsed,
        Err(raised) => return errors::replace_rejection(py, raised, || error),
    };
    // In a trajectory, a history stands for a number: that of each step.
    let is_number = |leaf: usize| {
        leaves.get(leaf).is_some_and(|value| {
            value.cast::<PyFloat>().is_ok()
                || value.cast::<PyInt>().is_ok()
                || value.cast::<ColumnHistory>().is_ok()
        })
    };
    with_list_hint_for(py, error, &structure, is_number)
}

/// Adds the hint to an error about columns if the structure contains a list whose leaves are all numbers.
#[cold]
pub(crate) fn with_list_hint_for(
    py: Python<'_>,
    error: PyErr,
    structure: &Structure,
    is_number: impl Fn(usize) -> bool,
) -> PyErr {
    if !errors::is_about_columns(py, &error) {
        return error;
    }
    let Some((first_leaf, levels)) = structure.root.list_of_numbers(&mut 0, &is_number) else {
        return error;
    };
    // The name of its first column, without the indices in the list.
    let name = structure.names.get(first_leaf).map_or("", String::as_str);
    let list = match name.rsplitn(levels + 1, '/').nth(levels) {
        Some(path) => format!("`{path}`"),
        None => "the list".into(),
    };
    let hint = format!("; lists are nests: wrap {list} in numpy.asarray to store one array column");
    errors::append_text(py, error, &hint)
}

impl Node {
    /// Finds the first, outermost list whose leaves are all numbers. Returns the index of its first leaf, and how many
    /// levels that leaf is below it. `leaf` is the index of the node's first leaf, and becomes the index after its last.
    fn list_of_numbers(
        &self,
        leaf: &mut usize,
        is_number: &impl Fn(usize) -> bool,
    ) -> Option<(usize, usize)> {
        let first = *leaf;
        if let Self::List(children) = self
            && let Some(leaves) = sequence_leaves(children)
            && (first..first + leaves).all(is_number)
            && let Some(levels) = self.levels_to_first_leaf()
        {
            return Some((first, levels));
        }
        if matches!(self, Self::Leaf) {
            *leaf += 1;
        }
        let mut children = self.children().into_iter();
        children.find_map(|child| child.list_of_numbers(leaf, is_number))
    }

    fn levels_to_first_leaf(&self) -> Option<usize> {
        if matches!(self, Self::Leaf) {
            return Some(0);
        }
        let mut children = self.children().into_iter();
        let levels = children.find_map(Self::levels_to_first_leaf)?;
        Some(levels + 1)
    }
}

/// Number of leaves of nested lists and tuples; `None` if they contain other nodes.
fn sequence_leaves(children: &[Node]) -> Option<usize> {
    children
        .iter()
        .map(|child| match child {
            Node::Leaf => Some(1),
            Node::List(children) | Node::Tuple(children) => sequence_leaves(children),
            _ => None,
        })
        .sum()
}
