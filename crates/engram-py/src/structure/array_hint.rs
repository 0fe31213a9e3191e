//! Hint to use an array, for errors that a list of numbers may have caused: each number of a list is a column of its
//! own.

use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt};

use super::{Leaves, Node, Structure};
use crate::errors;

/// Adds the hint to an error about a list of numbers in the nest.
#[cold]
pub(crate) fn with_array_hint(error: PyErr, nest: &Bound<'_, PyAny>) -> PyErr {
    with_array_hint_of(error, nest, Structure::of)
}

/// Like `with_array_hint`, for errors with other names of the columns: those that `parse` returns.
#[cold]
pub(crate) fn with_array_hint_of<'py>(
    error: PyErr,
    nest: &Bound<'py, PyAny>,
    parse: impl FnOnce(&Bound<'py, PyAny>) -> PyResult<(Structure, Leaves<'py>)>,
) -> PyErr {
    let py = nest.py();
    if !errors::is_about_columns(py, &error) {
        return error;
    }
    let (structure, leaves) = match parse(nest) {
        Ok(parsed) => parsed,
        Err(raised) => return errors::replace_ordinary_error(py, raised, || error),
    };
    let is_number = |leaf: usize| {
        leaves
            .get(leaf)
            .is_some_and(|value| value.cast::<PyFloat>().is_ok() || value.cast::<PyInt>().is_ok())
    };
    with_array_hint_for(py, error, &structure, is_number)
}

/// Adds the hint to an error about a trajectory that has a list of histories, each of one number of the steps.
#[cold]
pub(crate) fn with_history_hint(
    error: PyErr,
    trajectory: &Bound<'_, PyAny>,
    is_history: impl Fn(&Bound<'_, PyAny>) -> bool,
) -> PyErr {
    let py = trajectory.py();
    if !errors::is_about_columns(py, &error) {
        return error;
    }
    let (structure, leaves) = match Structure::of(trajectory) {
        Ok(parsed) => parsed,
        Err(raised) => return errors::replace_ordinary_error(py, raised, || error),
    };
    let is_history = |leaf: usize| leaves.get(leaf).is_some_and(&is_history);
    match list_of_numbers(py, &error, &structure, is_history) {
        Err(raised) => errors::replace_ordinary_error(py, raised, || error),
        Ok(None) => with_array_hint(error, trajectory),
        Ok(Some(_)) => {
            let hint = "; lists are nests: wrap the list in numpy.asarray in the steps, to store one array column";
            errors::append_text(py, error, hint)
        }
    }
}

/// Adds the hint to an error about a list of the structure whose leaves are all numbers. `is_number` returns whether
/// the leaf with an index is a number.
#[cold]
pub(crate) fn with_array_hint_for(
    py: Python<'_>,
    error: PyErr,
    structure: &Structure,
    is_number: impl Fn(usize) -> bool,
) -> PyErr {
    if !errors::is_about_columns(py, &error) {
        return error;
    }
    match list_of_numbers(py, &error, structure, is_number) {
        Err(raised) => errors::replace_ordinary_error(py, raised, || error),
        Ok(None) => error,
        Ok(Some(list)) => {
            let hint = format!(
                "; lists are nests: wrap {list} in numpy.asarray to store one array column"
            );
            errors::append_text(py, error, &hint)
        }
    }
}

/// The list of numbers that an error is about, as a text for the hint.
fn list_of_numbers(
    py: Python<'_>,
    error: &PyErr,
    structure: &Structure,
    is_number: impl Fn(usize) -> bool,
) -> PyResult<Option<String>> {
    let text = errors::str(error.value(py))?;
    let mut lists = Vec::new();
    structure
        .root
        .lists_of_numbers(&mut 0, &is_number, &mut lists);
    let mut paths = lists.into_iter().map(|(first_leaf, levels)| {
        // The name of its first column, without the indices in the list.
        let name = structure.names.get(first_leaf).map_or("", String::as_str);
        name.rsplitn(levels + 1, '/').nth(levels)
    });
    let list = paths.find(|path| is_about_list(&text, *path));
    Ok(list.map(|path| path.map_or("the list".into(), |path| format!("`{path}`"))))
}

/// True if an error text is about the list at this path: names a column of the list as a cause, or states that a value
/// is a list. The path is `None` if the whole nest is the list.
fn is_about_list(text: &str, path: Option<&str>) -> bool {
    // What follows these words is a list of all columns, not the cause.
    let cause = text
        .split_once("; signature: ")
        .or_else(|| text.split_once(" for a step with "))
        .map_or(text, |(cause, _)| cause);
    // Such as `got list` and `raised IndexError('list index out of range')`.
    if cause.contains("got list") || cause.contains("'list") {
        return true;
    }
    let quoted = cause.split('`').skip(1).step_by(2);
    let mut columns: Vec<&str> = quoted.filter(|name| is_element(name, path)).collect();
    columns.sort_unstable();
    // If two steps differ in their columns, the text lists the columns of both. A column that is listed twice is not
    // the cause.
    columns
        .chunk_by(|one, other| one == other)
        .any(|same| same.len() == 1)
}

/// True if the name of a column is that of an element of the list at this path, or below one.
fn is_element(name: &str, list: Option<&str>) -> bool {
    let index = match list {
        Some(path) => name
            .strip_prefix(path)
            .and_then(|rest| rest.strip_prefix('/')),
        None => Some(name),
    };
    index.is_some_and(|index| index.starts_with(|first: char| first.is_ascii_digit()))
}

impl Node {
    /// Appends the outermost lists whose leaves are all numbers: for each, the index of its first leaf, and how many
    /// levels that leaf is below the list. `leaf` is the index of this node's first leaf; it is set to the index after
    /// the node's last leaf.
    fn lists_of_numbers(
        &self,
        leaf: &mut usize,
        is_number: &impl Fn(usize) -> bool,
        lists: &mut Vec<(usize, usize)>,
    ) {
        let first = *leaf;
        if let Self::List(children) = self
            && let Some(leaves) = sequence_leaves(children)
            && (first..first + leaves).all(is_number)
            && let Some(levels) = self.levels_to_first_leaf()
        {
            *leaf += leaves;
            lists.push((first, levels));
            return;
        }
        if matches!(self, Self::Leaf) {
            *leaf += 1;
        }
        for child in self.children() {
            child.lists_of_numbers(leaf, is_number, lists);
        }
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
