//! Determines the structure of a nest.

use std::collections::HashSet;

use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};
use serde_json::{Value, json};

use super::classes::remember_class;
use super::containers::{Leaves, is_mapping, list_of, registered_entries};
use super::node::{Node, child_path};
use crate::errors;

/// Maximum number of levels; a deeper nest probably contains itself. One level of a nest is three levels of JSON, and
/// `serde_json` reads at most 128.
const MAX_DEPTH: usize = 32;

/// Returns the node of a nest and its serialized form. Appends its leaves to `leaves`, and their paths to `names`. The
/// nest is at `path` in the whole nest, `depth` levels below its root.
pub(super) fn explore<'py>(
    tree: &Bound<'py, PyAny>,
    path: &str,
    depth: usize,
    leaves: &mut Leaves<'py>,
    names: &mut Vec<String>,
) -> PyResult<(Node, Value)> {
    if depth > MAX_DEPTH {
        let text = format!("nests must have at most {MAX_DEPTH} levels; got more");
        return Err(errors::signature(tree.py(), text));
    }
    let mut sequence = |items: Vec<Bound<'py, PyAny>>| -> PyResult<(Vec<Node>, Vec<Value>)> {
        let mut nodes = Vec::new();
        let mut values = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let (node, value) = explore(
                item,
                &child_path(path, &index.to_string()),
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
        let Some(fields) = class.getattr_opt("_fields")? else {
            let (nodes, values) = sequence(tuple.iter().collect())?;
            return Ok((Node::Tuple(nodes), json!({ "t": values })));
        };
        let fields: Vec<String> = fields.extract()?;
        let mut nodes = Vec::new();
        let mut values = Vec::new();
        for (field, item) in fields.iter().zip(tuple.iter()) {
            let (node, value) = explore(&item, &child_path(path, field), depth + 1, leaves, names)?;
            nodes.push(node);
            values.push(json!([field, value]));
        }
        let name = class.name()?.to_str()?.to_owned();
        remember_class(&name, &fields, &class);
        return Ok((
            Node::Named(class.unbind(), nodes),
            json!({ "n": name, "f": values }),
        ));
    }
    let is_mapping = is_mapping(tree)?;
    let registered = if is_mapping {
        None
    } else {
        registered_entries(tree)?
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
        // The name is that of the stored key, not the key's repr: an enum member is stored as its value.
        let stored = stored_key(&key)?;
        let name = match &stored {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let (node, value) = explore(&item, &child_path(path, &name), depth + 1, leaves, names)?;
        nodes.push((key.unbind(), node));
        values.push(json!([stored, value]));
        if let Some(name) = entry_names.replace(name) {
            let class = errors::class_name(tree)?;
            let text =
                format!("the entries of a {class} must have different names; got `{name}` twice");
            return Err(errors::signature(tree.py(), text));
        }
    }
    let value = json!({ "d": values });
    Ok(match registered {
        Some(_) => (Node::Registered(tree.get_type().unbind(), nodes), value),
        None => (Node::Dict(nodes), value),
    })
}

/// Returns the keys and values of a mapping, sorted by key.
fn sorted_entries<'py>(
    mapping: &Bound<'py, PyAny>,
) -> PyResult<Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>> {
    let py = mapping.py();
    let keys = list_of(&mapping.call_method0("keys")?)?;
    keys.as_any().call_method0("sort").map_err(|error| {
        errors::replace_ordinary_error(py, error, || {
            let text = errors::repr(&keys).map(|shown| {
                format!("the keys of a mapping must be all str or all int; got {shown}")
            });
            errors::signature_about(py, text)
        })
    })?;
    keys.iter()
        .map(|key| mapping.get_item(&key).map(|value| (key, value)))
        .collect()
}

/// Returns the stored form of a mapping's key: a string or an integer.
fn stored_key(key: &Bound<'_, PyAny>) -> PyResult<Value> {
    let py = key.py();
    let value = match key.cast::<PyString>() {
        Ok(text) => text.to_str().map(|text| json!(text)),
        Err(_) => key.extract::<i64>().map(|number| json!(number)),
    };
    value.map_err(|error| {
        errors::replace_ordinary_error(py, error, || {
            let text = errors::repr(key)
                .map(|shown| format!("the keys of a mapping must be str or int; got {shown}"));
            errors::signature_about(py, text)
        })
    })
}
