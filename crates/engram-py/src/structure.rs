//! Nests of Python containers: flattening in dm-tree's order, serialization of structures, unflattening.
//!
//! Mappings are ordered by key, sequences and namedtuples by position. A node type that is registered with optree, in
//! the namespace `engram` or globally as `deque` is, is treated as a mapping from path entries to children, in optree's
//! order. Everything else, including `None`, is a leaf.

mod array_hint;
mod explore;
mod text;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use engram_core::Layout;
use engram_core::text::count;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyTuple, PyType};
use serde_json::Value;

use crate::errors;
use crate::history::TrajectoryColumn;
pub(crate) use array_hint::{
    with_array_hint, with_array_hint_for, with_array_hint_of, with_history_hint,
};
use explore::{explore, list_of, registered_children};
use text::node_from_json;
pub(crate) use text::{merge, prune};

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

/// Structure of a step, an item or a signature.
#[derive(Debug)]
pub(crate) struct Structure {
    pub(crate) root: Node,
    /// Path of each leaf, such as `obs/pixels`. Paths are unique.
    pub(crate) names: Vec<String>,
    /// Serialized structure, as it is stored with the data.
    pub(crate) text: String,
}

/// Cache of parsed structures, by text.
static PARSED: Mutex<Option<HashMap<String, Arc<Structure>>>> = Mutex::new(None);

/// Clears the cache of parsed structures. Called after a namedtuple class was redefined, as in notebooks, so that nests
/// built later are instances of the new class.
fn clear_structure_cache() {
    let parsed = PARSED.lock().unwrap_or_else(PoisonError::into_inner).take();
    drop(parsed);
}

/// Returns the layout of columns with these names and this serialized structure.
pub(crate) fn layout_of(names: &[String], structure: &str) -> Arc<Layout> {
    Arc::new(Layout {
        names: names.iter().map(|name| name.as_str().into()).collect(),
        structure: structure.into(),
    })
}

/// The leaves of a nest, in order.
pub(crate) type Leaves<'py> = Vec<Bound<'py, PyAny>>;

impl Structure {
    /// Returns the structure of a nest, and its leaves.
    pub(crate) fn of<'py>(tree: &Bound<'py, PyAny>) -> PyResult<(Self, Leaves<'py>)> {
        let mut leaves = Vec::new();
        let mut names = Vec::new();
        let (root, value) = explore(tree, "", 0, &mut leaves, &mut names)?;
        Ok((
            Self {
                root,
                names,
                text: value.to_string(),
            },
            leaves,
        ))
    }

    /// Returns the layout of data with this structure.
    pub(crate) fn layout(&self) -> Arc<Layout> {
        layout_of(&self.names, &self.text)
    }

    /// Appends the leaves of a nest of this structure. Returns false if its structure differs; some leaves may have
    /// been appended then.
    pub(crate) fn flatten<'py>(
        &self,
        tree: &Bound<'py, PyAny>,
        leaves: &mut Leaves<'py>,
    ) -> PyResult<bool> {
        self.root.flatten(tree, leaves)
    }

    /// Appends the leaves of a nest that may lack leaves of this structure, which become `None`. Returns false if the
    /// nest has other leaves; some leaves may have been appended then.
    pub(crate) fn flatten_part<'py>(
        &self,
        tree: &Bound<'py, PyAny>,
        leaves: &mut Leaves<'py>,
    ) -> PyResult<bool> {
        self.root.flatten_part(Some(tree), tree.py(), leaves)
    }

    /// Builds a nest of this structure from its leaves.
    pub(crate) fn unflatten<'py>(
        &self,
        py: Python<'py>,
        leaves: Leaves<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if leaves.len() != self.names.len() {
            let (expected, given) = (count(self.names.len(), "column"), leaves.len());
            let text = format!(
                "the structure {:?} describes {expected}, got {given}",
                self.text
            );
            return Err(errors::signature(py, text));
        }
        self.root.build(py, &mut leaves.into_iter())
    }

    /// Parses a serialized structure.
    pub(crate) fn parse(py: Python<'_>, text: &str) -> PyResult<Arc<Self>> {
        if let Some(cached) = PARSED
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .and_then(|cache| cache.get(text))
        {
            return Ok(Arc::clone(cached));
        }
        let value: Value =
            serde_json::from_str(text).map_err(|error| unreadable(py, text, &error.to_string()))?;
        let mut names = Vec::new();
        let root = node_from_json(py, &value, "", &mut names).map_err(|error| {
            errors::replace_ordinary_error(py, error.clone_ref(py), || {
                let cause = error.value(py);
                let why = errors::class_name(cause)
                    .and_then(|class| Ok(format!("{class}: {}", errors::str(cause)?)));
                why.map_or_else(|raised| raised, |why| unreadable(py, text, &why))
            })
        })?;
        let parsed = Arc::new(Self {
            root,
            names,
            text: value.to_string(), // as `of` writes it
        });
        let mut cache = PARSED.lock().unwrap_or_else(PoisonError::into_inner);
        let cache = cache.get_or_insert_default();
        // Programs have few structures. One that creates thousands would not benefit from the cache.
        if cache.len() < 1024 {
            cache.insert(text.into(), Arc::clone(&parsed));
        }
        Ok(parsed)
    }
}

/// Path of an entry of the container at `path`. Paths are unique: a slash in a key is written `\/`, a backslash `\\`,
/// and an empty key `\0`.
fn child_path(path: &str, entry: &str) -> String {
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

fn unreadable(py: Python<'_>, text: &str, why: &str) -> PyErr {
    errors::signature(
        py,
        format!("the stored structure {text:?} cannot be read: {why}"),
    )
}

impl Node {
    /// See [`Structure::flatten`].
    fn flatten<'py>(&self, tree: &Bound<'py, PyAny>, leaves: &mut Leaves<'py>) -> PyResult<bool> {
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
                if !is_mapping(tree)? || tree.len()? != children.len() {
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
                if !tree.get_type().is(class) {
                    return Ok(false);
                }
                let entries = registered_children(tree)?.unwrap_or_default();
                if entries.len() != children.len() {
                    return Ok(false);
                }
                for (entry, node) in children {
                    match find_entry(&entries, entry)? {
                        Some(value) if node.flatten(value, leaves)? => {}
                        _ => return Ok(false),
                    }
                }
                Ok(true)
            }
        }
    }

    /// See [`Structure::flatten_part`]. `tree` is `None` for a missing node, whose leaves become `None`.
    fn flatten_part<'py>(
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
                if !is_mapping(tree)? {
                    return Ok(false);
                }
                let mut num_present = 0;
                for (key, child) in children {
                    let value = if tree.contains(key)? {
                        Some(tree.get_item(key)?)
                    } else {
                        None
                    };
                    num_present += usize::from(value.is_some());
                    if !child.flatten_part(value.as_ref(), py, leaves)? {
                        return Ok(false);
                    }
                }
                Ok(num_present == tree.len()?)
            }
            Self::List(children) | Self::Tuple(children) => {
                let values = match tree.try_iter() {
                    Ok(values) => values,
                    Err(error) if errors::is_ordinary_error(py, &error) => return Ok(false),
                    Err(error) => return Err(error),
                };
                let values = list_of(values.as_any())?;
                let mut present = values.iter();
                for child in children {
                    if !child.flatten_part(present.next().as_ref(), py, leaves)? {
                        return Ok(false);
                    }
                }
                Ok(values.len() <= children.len() && is_container(tree)?)
            }
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

    fn children(&self) -> Vec<&Self> {
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

    fn build<'py>(
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

/// True for a list, a tuple, a dict or another mapping. Fast for arrays and slices of a history, which are none of
/// these.
///
/// # Errors
/// Those of [`is_mapping`].
fn is_container(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    if value.cast::<PyDict>().is_ok()
        || value.cast::<PyList>().is_ok()
        || value.cast::<PyTuple>().is_ok()
    {
        return Ok(true);
    }
    if value.cast::<numpy::PyUntypedArray>().is_ok() || value.cast::<TrajectoryColumn>().is_ok() {
        return Ok(false);
    }
    is_mapping(value)
}

/// True for a `collections.abc.Mapping`.
///
/// # Errors
/// Any exception that the check raises, such as Ctrl-C. A cast to `PyMapping` would lose it.
fn is_mapping(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    static MAPPING: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if value.cast::<PyDict>().is_ok() {
        return Ok(true);
    }
    let py = value.py();
    let class = MAPPING.get_or_try_init(py, || {
        py.import("collections.abc")?
            .getattr("Mapping")
            .map(Bound::unbind)
    })?;
    value.is_instance(class.bind(py))
}

/// Flattens a nest. Returns its leaves, their paths, and the serialized structure.
#[pyfunction]
pub(crate) fn flatten<'py>(
    tree: &Bound<'py, PyAny>,
) -> PyResult<(Leaves<'py>, Vec<String>, String)> {
    let (structure, leaves) = Structure::of(tree)?;
    Ok((leaves, structure.names, structure.text))
}

/// Builds a nest from a serialized structure and its leaves.
#[pyfunction]
pub(crate) fn unflatten<'py>(
    py: Python<'py>,
    structure: &str,
    leaves: Leaves<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    Structure::parse(py, structure)?.unflatten(py, leaves)
}

/// Paths of the leaves of a serialized structure.
#[pyfunction]
pub(crate) fn names(py: Python<'_>, structure: &str) -> PyResult<Vec<String>> {
    Ok(Structure::parse(py, structure)?.names.clone())
}
