//! Nests of Python containers: flattened in dm-tree's order, described as text, built again.
//!
//! Mappings go by sorted key, sequences and namedtuples by position, `None` is a leaf, and so is
//! everything else, but for node types registered with optree: those count as mappings of their
//! path entries.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyMapping, PyTuple, PyType};
use serde_json::{Value, json};

use crate::errors;

/// One place in a nest.
#[derive(Debug)]
pub(crate) enum Node {
    Leaf,
    Dict(Vec<(Py<PyAny>, Self)>),
    List(Vec<Self>),
    Tuple(Vec<Self>),
    Named(Py<PyType>, Vec<Self>),
    /// A node type registered with optree; comes back as a mapping.
    Registered(Py<PyType>, Vec<(Py<PyAny>, Self)>),
}

/// How a step, an item or a signature nests.
#[derive(Debug)]
pub(crate) struct Structure {
    pub(crate) root: Node,
    /// One path per leaf, such as `obs/pixels`.
    pub(crate) names: Vec<String>,
    /// The same as text: what is stored beside the data.
    pub(crate) text: String,
}

/// The leaves of a nest, in order.
pub(crate) type Leaves<'py> = Vec<Bound<'py, PyAny>>;

impl Structure {
    /// Looks at a nest for the first time; returns its leaves as well.
    pub(crate) fn of<'py>(tree: &Bound<'py, PyAny>) -> PyResult<(Self, Leaves<'py>)> {
        let mut leaves = Vec::new();
        let mut names = Vec::new();
        let (root, value) = explore(tree, "", &mut leaves, &mut names)?;
        Ok((
            Self {
                root,
                names,
                text: value.to_string(),
            },
            leaves,
        ))
    }

    /// Flattens a nest that should look like this one; false when it does not.
    pub(crate) fn flatten<'py>(
        &self,
        tree: &Bound<'py, PyAny>,
        leaves: &mut Leaves<'py>,
    ) -> PyResult<bool> {
        self.root.flatten(tree, leaves)
    }

    /// Builds a nest of this shape from its leaves.
    pub(crate) fn unflatten<'py>(
        &self,
        py: Python<'py>,
        leaves: Leaves<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.root.build(py, &mut leaves.into_iter())
    }

    /// The structure that a text describes.
    pub(crate) fn parse(py: Python<'_>, text: &str) -> PyResult<Arc<Self>> {
        static KNOWN: Mutex<Option<HashMap<String, Arc<Structure>>>> = Mutex::new(None);
        if let Some(found) = KNOWN
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .and_then(|k| k.get(text))
        {
            return Ok(Arc::clone(found));
        }
        let value: Value =
            serde_json::from_str(text).map_err(|error| damaged(py, text, &error.to_string()))?;
        let mut names = Vec::new();
        let root = revive(py, &value, "", &mut names)
            .map_err(|error| damaged(py, text, &error.to_string()))?;
        let parsed = Arc::new(Self {
            root,
            names,
            text: text.into(),
        });
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get_or_insert_default();
        // Structures are few; whoever makes thousands of them gets no faster by our keeping them.
        if known.len() < 1024 {
            known.insert(text.into(), Arc::clone(&parsed));
        }
        Ok(parsed)
    }
}

fn damaged(py: Python<'_>, text: &str, why: &str) -> PyErr {
    errors::signature(py, format!("structure text {text:?} cannot be read: {why}"))
}

impl Node {
    fn flatten<'py>(&self, tree: &Bound<'py, PyAny>, leaves: &mut Leaves<'py>) -> PyResult<bool> {
        match self {
            Self::Leaf => {
                let leaf = !is_container(tree);
                leaves.push(tree.clone());
                Ok(leaf)
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
                let Ok(mapping) = tree.cast::<PyMapping>() else {
                    return Ok(false);
                };
                if mapping.len()? != children.len() {
                    return Ok(false);
                }
                for (key, child) in children {
                    if !mapping.contains(key)? || !child.flatten(&mapping.get_item(key)?, leaves)? {
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
                let found = registered_children(tree)?.unwrap_or_default();
                let (nodes, values): (Vec<_>, Vec<_>) = children
                    .iter()
                    .filter_map(|(entry, node)| {
                        let same = |other: &Bound<'_, PyAny>| other.eq(entry).unwrap_or(false);
                        found
                            .iter()
                            .find(|(entry, _)| same(entry))
                            .map(|(_, value)| (node, value))
                    })
                    .unzip();
                if nodes.len() != found.len() || nodes.len() != children.len() {
                    return Ok(false);
                }
                for (node, value) in nodes.into_iter().zip(values) {
                    if !node.flatten(value, leaves)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }

    fn build<'py>(
        &self,
        py: Python<'py>,
        leaves: &mut impl Iterator<Item = Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Leaf => leaves
                .next()
                .ok_or_else(|| PyTypeError::new_err("fewer leaves than the structure has")),
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

/// Containers we know natively; cheap for arrays and scalars, which are neither.
fn is_container(value: &Bound<'_, PyAny>) -> bool {
    if value.cast::<PyDict>().is_ok()
        || value.cast::<PyList>().is_ok()
        || value.cast::<PyTuple>().is_ok()
    {
        return true;
    }
    if value.cast::<numpy::PyUntypedArray>().is_ok() {
        return false;
    }
    value.cast::<PyMapping>().is_ok()
}

fn explore<'py>(
    tree: &Bound<'py, PyAny>,
    path: &str,
    leaves: &mut Leaves<'py>,
    names: &mut Vec<String>,
) -> PyResult<(Node, Value)> {
    let below = |entry: &str| {
        if path.is_empty() {
            entry.to_string()
        } else {
            format!("{path}/{entry}")
        }
    };
    let mut sequence = |items: Vec<Bound<'py, PyAny>>| -> PyResult<(Vec<Node>, Vec<Value>)> {
        let mut nodes = Vec::new();
        let mut values = Vec::new();
        for (at, item) in items.iter().enumerate() {
            let (node, value) = explore(item, &below(&at.to_string()), leaves, names)?;
            nodes.push(node);
            values.push(value);
        }
        Ok((nodes, values))
    };
    if let Ok(list) = tree.cast::<PyList>() {
        let (nodes, values) = sequence(list.iter().collect())?;
        return Ok((Node::List(nodes), json!({ "l": values })));
    }
    if let Ok(tuple) = tree.cast::<PyTuple>() {
        let class = tuple.get_type();
        let Ok(fields) = class.getattr("_fields") else {
            let (nodes, values) = sequence(tuple.iter().collect())?;
            return Ok((Node::Tuple(nodes), json!({ "t": values })));
        };
        let fields: Vec<String> = fields.extract()?;
        let mut nodes = Vec::new();
        let mut values = Vec::new();
        for (field, item) in fields.iter().zip(tuple.iter()) {
            let (node, value) = explore(&item, &below(field), leaves, names)?;
            nodes.push(node);
            values.push(json!([field, value]));
        }
        let name = class.name()?.to_string();
        remember_class(&name, &fields, &class);
        return Ok((
            Node::Named(class.unbind(), nodes),
            json!({ "n": name, "f": values }),
        ));
    }
    let registered = if tree.cast::<PyMapping>().is_ok() {
        None
    } else {
        registered_children(tree)?
    };
    let entries = match (tree.cast::<PyMapping>(), &registered) {
        (_, Some(children)) => children.clone(),
        (Ok(mapping), None) => sorted_entries(mapping)?,
        (Err(_), None) => {
            leaves.push(tree.clone());
            names.push(path.into());
            return Ok((Node::Leaf, json!(0)));
        }
    };
    let mut nodes = Vec::new();
    let mut values = Vec::new();
    for (key, item) in entries {
        let text = key_text(&key)?;
        let (node, value) = explore(&item, &below(key.str()?.to_str()?), leaves, names)?;
        nodes.push((key.unbind(), node));
        values.push(json!([text, value]));
    }
    let value = json!({ "d": values });
    Ok(match registered {
        Some(_) => (Node::Registered(tree.get_type().unbind(), nodes), value),
        None => (Node::Dict(nodes), value),
    })
}

fn sorted_entries<'py>(
    mapping: &Bound<'py, PyMapping>,
) -> PyResult<Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>> {
    let py = mapping.py();
    let keys = mapping.keys()?;
    let shown = keys.repr()?.to_string();
    if keys.as_any().call_method0("sort").is_err() {
        let text = format!(
            "keys {shown} have no common order; a mapping's keys must be all text or all integers"
        );
        return Err(errors::signature(py, text));
    }
    keys.iter()
        .map(|key| mapping.get_item(&key).map(|value| (key, value)))
        .collect()
}

fn key_text(key: &Bound<'_, PyAny>) -> PyResult<Value> {
    if let Ok(text) = key.extract::<String>() {
        return Ok(json!(text));
    }
    if let Ok(number) = key.extract::<i64>() {
        return Ok(json!(number));
    }
    let text = format!(
        "key {} of a mapping is neither text nor an integer",
        key.repr()?
    );
    Err(errors::signature(key.py(), text))
}

/// Path entries and children of a node type that is registered with optree.
#[expect(clippy::type_complexity, reason = "pairs, in order")]
fn registered_children<'py>(
    tree: &Bound<'py, PyAny>,
) -> PyResult<Option<Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>>> {
    static FLATTEN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = tree.py();
    // Arrays and scalars are by far the most common leaves, and optree knows none of them.
    if tree.cast::<numpy::PyUntypedArray>().is_ok() || tree.is_none() {
        return Ok(None);
    }
    let flatten = FLATTEN.get_or_try_init(py, || {
        py.import("optree")?
            .getattr("tree_flatten_one_level")
            .map(Bound::unbind)
    })?;
    let options = PyDict::new(py);
    options.set_item("none_is_leaf", true)?;
    let Ok(flat) = flatten.bind(py).call((tree,), Some(&options)) else {
        return Ok(None);
    };
    let (children, _, entries): (
        Vec<Bound<'py, PyAny>>,
        Bound<'py, PyAny>,
        Vec<Bound<'py, PyAny>>,
    ) = flat.cast::<PyTuple>()?.get_slice(0, 3).extract()?;
    Ok(Some(entries.into_iter().zip(children).collect()))
}

/// Namedtuple classes seen so far, so that what goes in as one comes back as the same.
static CLASSES: Mutex<Option<HashMap<(String, Vec<String>), Py<PyType>>>> = Mutex::new(None);

fn remember_class(name: &str, fields: &[String], class: &Bound<'_, PyType>) {
    let mut classes = CLASSES.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (name.to_string(), fields.to_vec());
    classes
        .get_or_insert_default()
        .insert(key, class.clone().unbind());
}

fn named_class(py: Python<'_>, name: &str, fields: &[String]) -> PyResult<Py<PyType>> {
    let key = (name.to_string(), fields.to_vec());
    let found = CLASSES
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .as_ref()
        .and_then(|c| c.get(&key).map(|c| c.clone_ref(py)));
    if let Some(class) = found {
        return Ok(class);
    }
    let class = py
        .import("collections")?
        .getattr("namedtuple")?
        .call1((name, fields.to_vec()))?;
    let class = class.cast_into::<PyType>()?;
    remember_class(name, fields, &class);
    Ok(class.unbind())
}

fn revive(py: Python<'_>, value: &Value, path: &str, names: &mut Vec<String>) -> PyResult<Node> {
    let bad = || PyTypeError::new_err(format!("{value} is no node"));
    let below = |entry: &str| {
        if path.is_empty() {
            entry.to_string()
        } else {
            format!("{path}/{entry}")
        }
    };
    if value == &json!(0) {
        names.push(path.into());
        return Ok(Node::Leaf);
    }
    let items = |key: &str| value.get(key).and_then(Value::as_array);
    for (key, make) in [
        ("l", Node::List as fn(Vec<Node>) -> Node),
        ("t", Node::Tuple),
    ] {
        if let Some(items) = items(key) {
            let children = items
                .iter()
                .enumerate()
                .map(|(at, item)| revive(py, item, &below(&at.to_string()), names));
            return Ok(make(children.collect::<PyResult<_>>()?));
        }
    }
    let pairs = items("d").or_else(|| items("f")).ok_or_else(bad)?;
    let mut children = Vec::new();
    for pair in pairs {
        let [key, child] = pair.as_array().map(Vec::as_slice).unwrap_or_default() else {
            return Err(bad());
        };
        let (object, text) = match key {
            Value::String(text) => (text.into_pyobject(py)?.into_any().unbind(), text.clone()),
            Value::Number(number) => (
                number.as_i64().into_pyobject(py)?.into_any().unbind(),
                number.to_string(),
            ),
            _ => return Err(bad()),
        };
        children.push((
            object,
            text.clone(),
            revive(py, child, &below(&text), names)?,
        ));
    }
    match value.get("n").and_then(Value::as_str) {
        Some(name) => {
            let fields: Vec<String> = children.iter().map(|(_, field, _)| field.clone()).collect();
            let nodes = children.into_iter().map(|(_, _, node)| node).collect();
            Ok(Node::Named(named_class(py, name, &fields)?, nodes))
        }
        None => Ok(Node::Dict(
            children
                .into_iter()
                .map(|(key, _, node)| (key, node))
                .collect(),
        )),
    }
}

/// Flattens a nest: its leaves, their paths, and the text that describes it.
#[pyfunction]
pub(crate) fn flatten<'py>(
    tree: &Bound<'py, PyAny>,
) -> PyResult<(Leaves<'py>, Vec<String>, String)> {
    let (structure, leaves) = Structure::of(tree)?;
    Ok((leaves, structure.names, structure.text))
}

/// Builds the nest that a text describes.
#[pyfunction]
pub(crate) fn unflatten<'py>(
    py: Python<'py>,
    structure: &str,
    leaves: Leaves<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    Structure::parse(py, structure)?.unflatten(py, leaves)
}
