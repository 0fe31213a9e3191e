//! Hint for errors that a list of numbers may have caused, because each number became a column of its own.

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
    let Ok((structure, leaves)) = Structure::of(nest) else {
        return error;
    };
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
    match structure.root.list_of_numbers("", &mut 0, &is_number) {
        Some(path) => {
            let list = if path.is_empty() {
                "the list".into()
            } else {
                format!("`{path}`")
            };
            let hint = format!(
                "; lists are nests: wrap {list} in numpy.asarray to store one array column"
            );
            errors::append_text(py, error, &hint)
        }
        None => error,
    }
}

impl Node {
    /// Path of the first, outermost list whose leaves are all numbers. `leaf` is the index of the node's first leaf,
    /// and becomes the index after its last.
    fn list_of_numbers(
        &self,
        path: &str,
        leaf: &mut usize,
        is_number: &impl Fn(usize) -> bool,
    ) -> Option<String> {
        let first = *leaf;
        if let Self::List(children) = self
            && let Some(leaves) = sequence_leaves(children)
            && leaves > 0
            && (first..first + leaves).all(is_number)
        {
            return Some(path.into());
        }
        let children: Vec<(String, &Self)> = match self {
            Self::Leaf => {
                *leaf += 1;
                return None;
            }
            Self::Dict(children) | Self::Registered(_, children) => children
                .iter()
                .map(|(key, child)| (key.to_string(), child))
                .collect(),
            Self::List(children) | Self::Tuple(children) | Self::Named(_, children) => children
                .iter()
                .enumerate()
                .map(|(index, child)| (index.to_string(), child))
                .collect(),
        };
        children.into_iter().find_map(|(entry, child)| {
            child.list_of_numbers(&super::child_path(path, &entry), leaf, is_number)
        })
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
