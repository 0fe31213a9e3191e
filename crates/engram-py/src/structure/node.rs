//! The nodes of a nest: flattening and building.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple, PyType};

use super::containers::{Leaves, is_container, is_mapping, registered_entries};
use crate::errors;

/// A node of a nest. Mappings have their keys, and namedtuples their class.
#[derive(Debug)]
pub(crate) enum Node {
    Leaf,
    Dict(Vec<(Py<PyAny>, Self)>),
    List(Vec<Self>),
    Tuple(Vec<Self>),
    Named(Py<PyType>, Vec<Self>),
    /// A node type registered with optree; unflattened as a mapping.
    Registered(Py<PyType>, Vec<(Py<PyAny>, Self)>),
}

impl Node {
    /// Appends the leaves of a nest of this structure. Returns false if its structure differs; some leaves may have
    /// been appended then.
    pub(crate) fn flatten<'py>(
        &self,
        tree: &Bound<'py, PyAny>,
        leaves: &mut Leaves<'py>,
    ) -> PyResult<bool> {
        match self {
            Self::Leaf => {
                leaves.push(tree.clone());
                Ok(!is_container(tree)?)
            }
            Self::Dict(children) => {
                if let Ok(dict) = tree.cast::<PyDict>() {
                    if dict.len() != children.len() {
                        return Ok(false);
                    }
                    for (key, child) in children {
                        match dict.get_item(key)? {
                            Some(value) if child.flatten(&value, leaves)? => {}
                            _ => return Ok(false),
                        }
                    }
                    return Ok(true);
                }
                if !is_mapping(tree)? {
                    // It is stored as a mapping, as which its structure was maybe read again.
                    return flatten_registered(children, tree, leaves);
                }
                if tree.len()? != children.len() {
                    return Ok(false);
                }
                for (key, child) in children {
                    if !tree.contains(key)? || !child.flatten(&tree.get_item(key)?, leaves)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Self::List(children) => match tree.cast::<PyList>() {
                Ok(list) if list.len() == children.len() => {
                    all_flatten(children, list.iter(), leaves)
                }
                _ => Ok(false),
            },
            Self::Tuple(children) => match tree.cast_exact::<PyTuple>() {
                Ok(tuple) if tuple.len() == children.len() => {
                    all_flatten(children, tuple.iter(), leaves)
                }
                _ => Ok(false),
            },
            Self::Named(class, children) => match tree.cast::<PyTuple>() {
                Ok(tuple) if tuple.get_type().is(class) => {
                    all_flatten(children, tuple.iter(), leaves)
                }
                _ => Ok(false),
            },
            Self::Registered(class, children) => {
                Ok(tree.get_type().is(class) && flatten_registered(children, tree, leaves)?)
            }
        }
    }

    /// See [`Structure::flatten_part`](super::Structure::flatten_part). `tree` is `None` for a missing node, whose leaves become `None`.
    pub(super) fn flatten_part<'py>(
        &self,
        tree: Option<&Bound<'py, PyAny>>,
        py: Python<'py>,
        leaves: &mut Leaves<'py>,
    ) -> PyResult<bool> {
        let Some(tree) = tree.filter(|tree| !tree.is_none()) else {
            for child in self.children() {
                child.flatten_part(None, py, leaves)?;
            }
            if matches!(self, Self::Leaf) {
                leaves.push(py.None().into_bound(py));
            }
            return Ok(true);
        };
        match self {
            Self::Dict(children) => {
                let entries = if is_mapping(tree)? {
                    None
                } else if let Some(entries) = registered_entries(tree)? {
                    Some(entries)
                } else {
                    return Ok(false);
                };
                let mut num_present = 0;
                for (key, child) in children {
                    let value = match &entries {
                        Some(entries) => find_entry(entries, key)?.cloned(),
                        None if tree.contains(key)? => Some(tree.get_item(key)?),
                        None => None,
                    };
                    num_present += usize::from(value.is_some());
                    if !child.flatten_part(value.as_ref(), py, leaves)? {
                        return Ok(false);
                    }
                }
                Ok(num_present
                    == entries.map_or_else(|| tree.len(), |entries| Ok(entries.len()))?)
            }
            Self::List(children) => match tree.cast::<PyList>() {
                Ok(list) => all_flatten_part(children, list.iter(), py, leaves),
                Err(_) => Ok(false),
            },
            Self::Tuple(children) => match tree.cast::<PyTuple>() {
                Ok(tuple) if tuple.get_type().getattr_opt("_fields")?.is_none() => {
                    all_flatten_part(children, tuple.iter(), py, leaves)
                }
                _ => Ok(false),
            },
            Self::Named(class, children) => match tree.cast::<PyTuple>() {
                Ok(tuple) if tuple.get_type().is(class) => {
                    for (child, value) in children.iter().zip(tuple.iter()) {
                        if !child.flatten_part(Some(&value), py, leaves)? {
                            return Ok(false);
                        }
                    }
                    Ok(true)
                }
                _ => Ok(false),
            },
            Self::Leaf | Self::Registered(..) => self.flatten(tree, leaves),
        }
    }

    pub(super) fn children(&self) -> Vec<&Self> {
        match self {
            Self::Leaf => Vec::new(),
            Self::Dict(children) | Self::Registered(_, children) => {
                children.iter().map(|(_, child)| child).collect()
            }
            Self::List(children) | Self::Tuple(children) | Self::Named(_, children) => {
                children.iter().collect()
            }
        }
    }

    pub(super) fn build<'py>(
        &self,
        py: Python<'py>,
        leaves: &mut impl Iterator<Item = Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Leaf => leaves.next().ok_or_else(|| {
                PyTypeError::new_err("the structure has more leaves than were given")
            }),
            Self::Dict(children) | Self::Registered(_, children) => {
                let dict = PyDict::new(py);
                for (key, child) in children {
                    dict.set_item(key, child.build(py, leaves)?)?;
                }
                Ok(dict.into_any())
            }
            Self::List(children) => {
                Ok(PyList::new(py, build_all(children, py, leaves)?)?.into_any())
            }
            Self::Tuple(children) => {
                Ok(PyTuple::new(py, build_all(children, py, leaves)?)?.into_any())
            }
            Self::Named(class, children) => class
                .bind(py)
                .call1(PyTuple::new(py, build_all(children, py, leaves)?)?),
        }
    }
}

/// Flattens children with one value each; false if the structure of a value differs.
fn all_flatten<'py>(
    children: &[Node],
    values: impl Iterator<Item = Bound<'py, PyAny>>,
    leaves: &mut Leaves<'py>,
) -> PyResult<bool> {
    for (child, value) in children.iter().zip(values) {
        if !child.flatten(&value, leaves)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Flattens children with one value each, or none at the end, as [`Node::flatten_part`] does.
fn all_flatten_part<'py>(
    children: &[Node],
    mut values: impl Iterator<Item = Bound<'py, PyAny>>,
    py: Python<'py>,
    leaves: &mut Leaves<'py>,
) -> PyResult<bool> {
    for child in children {
        if !child.flatten_part(values.next().as_ref(), py, leaves)? {
            return Ok(false);
        }
    }
    Ok(values.next().is_none())
}

/// Flattens children, with their path entries, of a value whose type is registered with optree; false for others.
fn flatten_registered<'py>(
    children: &[(Py<PyAny>, Node)],
    tree: &Bound<'py, PyAny>,
    leaves: &mut Leaves<'py>,
) -> PyResult<bool> {
    let Some(entries) = registered_entries(tree)?.filter(|found| found.len() == children.len())
    else {
        return Ok(false);
    };
    for (entry, node) in children {
        match find_entry(&entries, entry)? {
            Some(value) if node.flatten(value, leaves)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// Returns the child of a registered node with this path entry.
fn find_entry<'a, 'py>(
    children: &'a [(Bound<'py, PyAny>, Bound<'py, PyAny>)],
    entry: &Py<PyAny>,
) -> PyResult<Option<&'a Bound<'py, PyAny>>> {
    for (other, value) in children {
        let same = other.eq(entry).or_else(|error| {
            if errors::is_ordinary_error(other.py(), &error) {
                Ok(false)
            } else {
                Err(error)
            }
        })?;
        if same {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

fn build_all<'py>(
    children: &[Node],
    py: Python<'py>,
    leaves: &mut impl Iterator<Item = Bound<'py, PyAny>>,
) -> PyResult<Leaves<'py>> {
    children
        .iter()
        .map(|child| child.build(py, leaves))
        .collect()
}

/// Path of an entry of the container at `path`. Paths are unique: a slash in a key is written `\/`, a backslash `\\`,
/// and an empty key `\0`.
pub(super) fn child_path(path: &str, entry: &str) -> String {
    let mut child = String::from(path);
    if !path.is_empty() {
        child.push('/');
    }
    if entry.is_empty() {
        child.push_str("\\0");
    }
    for character in entry.chars() {
        if matches!(character, '/' | '\\') {
            child.push('\\');
        }
        child.push(character);
    }
    child
}
