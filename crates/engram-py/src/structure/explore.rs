//! Looking at a nest for the first time.

use std::collections::HashSet;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyTuple};
use serde_json::{Value, json};

use super::text::remember_class;
use super::{Leaves, Node, below, forget_parsed, is_mapping};
use crate::errors;

/// Where node types are registered with optree, which knows none without a namespace.
const NAMESPACE: &str = "engram";

/// A nest of more levels is taken for one that contains itself. The text of one level takes three
/// of the 128 that a JSON reader allows.
const DEEPEST: usize = 32;

/// The node of a nest and its text; its leaves and their paths are added to the lists.
pub(super) fn explore<'py>(
    tree: &Bound<'py, PyAny>,
    path: &str,
    depth: usize,
    leaves: &mut Leaves<'py>,
    names: &mut Vec<String>,
) -> PyResult<(Node, Value)> {
    if depth > DEEPEST {
        let text =
            format!("a nest has more than {DEEPEST} levels; at most that many are supported");
        return Err(errors::signature(tree.py(), text));
    }
    let mut sequence = |items: Vec<Bound<'py, PyAny>>| -> PyResult<(Vec<Node>, Vec<Value>)> {
        let mut nodes = Vec::new();
        let mut values = Vec::new();
        for (at, item) in items.iter().enumerate() {
            let (node, value) = explore(
                item,
                &below(path, &at.to_string()),
                depth + 1,
                leaves,
                names,
            )?;
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
            let (node, value) = explore(&item, &below(path, field), depth + 1, leaves, names)?;
            nodes.push(node);
            values.push(json!([field, value]));
        }
        let name = class.name()?.to_string();
        if remember_class(&name, &fields, &class) {
            forget_parsed();
        }
        return Ok((
            Node::Named(class.unbind(), nodes),
            json!({ "n": name, "f": values }),
        ));
    }
    let is_mapping = is_mapping(tree)?;
    let registered = if is_mapping {
        None
    } else {
        registered_children(tree)?
    };
    let entries = match &registered {
        Some(children) => children.clone(),
        None if is_mapping => sorted_entries(tree)?,
        None => {
            leaves.push(tree.clone());
            names.push(path.into());
            return Ok((Node::Leaf, json!(0)));
        }
    };
    let mut nodes = Vec::new();
    let mut values = Vec::new();
    let mut entry_names = HashSet::new();
    for (key, item) in entries {
        // What the key is once it was stored, not how it shows: an enum's member is its value.
        let stored = key_text(&key)?;
        let name = match &stored {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let (node, value) = explore(&item, &below(path, &name), depth + 1, leaves, names)?;
        nodes.push((key.unbind(), node));
        values.push(json!([stored, value]));
        if let Some(name) = entry_names.replace(name) {
            let class = tree.get_type().name()?.to_string();
            let text = format!("two entries of a {class} are both called `{name}`");
            return Err(errors::signature(tree.py(), text));
        }
    }
    let value = json!({ "d": values });
    Ok(match registered {
        Some(_) => (Node::Registered(tree.get_type().unbind(), nodes), value),
        None => (Node::Dict(nodes), value),
    })
}

fn sorted_entries<'py>(
    mapping: &Bound<'py, PyAny>,
) -> PyResult<Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>> {
    let py = mapping.py();
    let keys = mapping.call_method0("keys")?.try_iter()?;
    let keys = PyList::new(py, keys.collect::<PyResult<Vec<_>>>()?)?;
    let shown = keys.repr()?.to_string();
    keys.as_any().call_method0("sort").map_err(|error| {
        errors::instead(py, error, || {
            let text = format!(
                "keys {shown} have no common order; a mapping's keys must be all text or all integers"
            );
            errors::signature(py, text)
        })
    })?;
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
pub(super) fn registered_children<'py>(
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
    options.set_item("namespace", NAMESPACE)?;
    let flat = match flatten.bind(py).call((tree,), Some(&options)) {
        Ok(flat) => flat,
        Err(error) if errors::is_refusal(py, &error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let (children, _, entries): (
        Vec<Bound<'py, PyAny>>,
        Bound<'py, PyAny>,
        Vec<Bound<'py, PyAny>>,
    ) = flat.cast::<PyTuple>()?.get_slice(0, 3).extract()?;
    Ok(Some(entries.into_iter().zip(children).collect()))
}
