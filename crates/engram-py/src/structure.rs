//! Nests of Python containers: flattening in dm-tree's order, serialization of structures, unflattening.
//!
//! Mappings are ordered by key, sequences and namedtuples by position. A node type that is registered with optree, in
//! the namespace `engram` or globally as `deque` is, is treated as a mapping from path entries to children, in optree's
//! order. Everything else, including `None`, is a leaf.

mod array_hint;
mod classes;
mod containers;
mod explore;
mod node;
mod text;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use engram_core::Layout;
use engram_core::text::count;
use pyo3::prelude::*;
use serde_json::Value;

use crate::errors;
pub(crate) use array_hint::{
    with_array_hint, with_array_hint_for, with_array_hint_of, with_history_hint,
};
use classes::replaced_classes;
pub(crate) use containers::Leaves;
use explore::explore;
pub(crate) use node::Node;
use text::node_from_json;
pub(crate) use text::{merge, prune};

/// Structure of a step, an item or a signature.
#[derive(Debug)]
pub(crate) struct Structure {
    pub(crate) root: Node,
    /// Path of each leaf, such as `obs/pixels`. Paths are unique.
    pub(crate) names: Vec<String>,
    /// Serialized structure, as it is stored with the data.
    pub(crate) text: String,
}

/// Cache of parsed structures.
static PARSED: Mutex<Parsed> = Mutex::new(Parsed {
    structures: None,
    replaced_classes: 0,
});

/// Parsed structures.
struct Parsed {
    /// By text.
    structures: Option<HashMap<String, Arc<Structure>>>,
    /// [`replaced_classes`] as of their parsing: they are parsed again if it has changed, to be of the new classes.
    replaced_classes: u64,
}

/// Returns the layout of columns with these names and this serialized structure.
pub(crate) fn layout_of(names: &[String], structure: &str) -> Arc<Layout> {
    Arc::new(Layout {
        names: names.iter().map(|name| name.as_str().into()).collect(),
        structure: structure.into(),
    })
}

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
        let replaced_classes = replaced_classes();
        let mut cache = PARSED.lock().unwrap_or_else(PoisonError::into_inner);
        let is_current = cache.replaced_classes == replaced_classes;
        let cached = cache
            .structures
            .as_ref()
            .and_then(|cached| cached.get(text));
        if let Some(cached) = cached.filter(|_| is_current) {
            return Ok(Arc::clone(cached));
        }
        let outdated = cache.structures.take_if(|_| !is_current);
        cache.replaced_classes = replaced_classes;
        // Dropping classes and parsing may run Python code, so the lock is released first.
        drop(cache);
        drop(outdated);
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
        let is_current = cache.replaced_classes == replaced_classes;
        let structures = cache.structures.get_or_insert_default();
        // Programs have few structures. One that creates thousands would not benefit from the cache.
        if is_current && structures.len() < 1024 {
            structures.insert(text.into(), Arc::clone(&parsed));
        }
        Ok(parsed)
    }
}

fn unreadable(py: Python<'_>, text: &str, why: &str) -> PyErr {
    errors::signature(
        py,
        format!("the stored structure {text:?} cannot be read: {why}"),
    )
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
