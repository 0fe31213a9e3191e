//! Serialization of structures as JSON.
//!
//! A leaf is `0`; a mapping `{"d": [[key, node], ...]}`; a list `{"l": [node, ...]}`; a tuple
//! `{"t": [node, ...]}`; a namedtuple `{"n": name, "f": [[field, node], ...]}`.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use serde_json::{Value, json};

use super::classes::named_class;
use super::node::{Node, child_path};
use crate::errors;

/// Returns the node of a serialized structure. Appends the paths of its leaves to `names`.
///
/// # Errors
/// `TypeError` if it is not a valid structure.
pub(super) fn node_from_json(
    py: Python<'_>,
    value: &Value,
    path: &str,
    names: &mut Vec<String>,
) -> PyResult<Node> {
    let invalid = || PyTypeError::new_err(format!("{value} is not a node"));
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
            let children = items.iter().enumerate().map(|(index, item)| {
                node_from_json(py, item, &child_path(path, &index.to_string()), names)
            });
            return Ok(make(children.collect::<PyResult<_>>()?));
        }
    }
    let pairs = items("d").or_else(|| items("f")).ok_or_else(invalid)?;
    let mut children = Vec::new();
    for pair in pairs {
        let [key, child] = pair.as_array().map(Vec::as_slice).unwrap_or_default() else {
            return Err(invalid());
        };
        let (object, text) = match key {
            Value::String(text) => (text.into_pyobject(py)?.into_any().unbind(), text.clone()),
            Value::Number(number) => (
                number.as_i64().into_pyobject(py)?.into_any().unbind(),
                number.to_string(),
            ),
            _ => return Err(invalid()),
        };
        children.push((
            object,
            text.clone(),
            node_from_json(py, child, &child_path(path, &text), names)?,
        ));
    }
    if let Some(name) = value.get("n").and_then(Value::as_str) {
        let fields: Vec<String> = children.iter().map(|(_, field, _)| field.clone()).collect();
        match named_class(py, name, &fields) {
            Ok(class) => {
                let nodes = children.into_iter().map(|(_, _, node)| node).collect();
                return Ok(Node::Named(class, nodes));
            }
            // Another program wrote a name that is not a Python identifier. The fields become a mapping.
            Err(error) if errors::is_ordinary_error(py, &error) => {}
            Err(error) => return Err(error),
        }
    }
    let children = children.into_iter().map(|(key, _, node)| (key, node));
    Ok(Node::Dict(children.collect()))
}

/// Merges two serialized structures into one with the leaves of both: mappings gain keys, sequences grow at the end.
/// Returns `None` if nodes at the same place differ in kind, if one has str keys and the other int keys, or if
/// namedtuples differ in their name or number of fields.
pub(crate) fn merge(old: &Value, new: &Value) -> Option<Value> {
    if old == new {
        return Some(old.clone());
    }
    for key in ["l", "t"] {
        if let (Some(old), Some(new)) = (array(old, key), array(new, key)) {
            let longest = old.len().max(new.len());
            let merged = (0..longest).map(|index| match (old.get(index), new.get(index)) {
                (Some(old), Some(new)) => merge(old, new),
                (one, other) => one.or(other).cloned(),
            });
            return Some(json!({ key: merged.collect::<Option<Vec<_>>>()? }));
        }
    }
    if let (Some(before), Some(now)) = (array(old, "f"), array(new, "f")) {
        if old.get("n") != new.get("n") || before.len() != now.len() {
            return None;
        }
        let merged = before
            .iter()
            .zip(now)
            .map(|(old, new)| Some(json!([old.get(0)?, merge(old.get(1)?, new.get(1)?)?])));
        return Some(json!({ "n": old.get("n")?, "f": merged.collect::<Option<Vec<_>>>()? }));
    }
    let (before, now) = (array(old, "d")?, array(new, "d")?);
    let is_text = |pair: &Value| pair.get(0).is_some_and(Value::is_string);
    let mut kinds = before.iter().chain(now).map(is_text);
    if kinds
        .next()
        .is_some_and(|first| kinds.any(|kind| kind != first))
    {
        return None;
    }
    let mut pairs = before.clone();
    for pair in now {
        let index = pairs.iter().position(|other| other.get(0) == pair.get(0));
        match index {
            Some(index) => {
                pairs[index] = json!([pair.get(0)?, merge(pairs[index].get(1)?, pair.get(1)?)?]);
            }
            None => pairs.push(pair.clone()),
        }
    }
    let text = |pair: &Value| pair.get(0).and_then(Value::as_str).map(String::from);
    let number = |pair: &Value| pair.get(0).and_then(Value::as_i64);
    pairs.sort_by(|a, b| {
        number(a)
            .cmp(&number(b))
            .then_with(|| text(a).cmp(&text(b)))
    });
    Some(json!({ "d": pairs }))
}

/// True if a serialized structure has a leaf.
fn has_leaves(value: &Value) -> bool {
    let child = |pair: &Value| pair.get(1).is_some_and(has_leaves);
    let has_any = |key| array(value, key).is_some_and(|items| items.iter().any(has_leaves));
    let has_pair = |key| array(value, key).is_some_and(|pairs| pairs.iter().any(child));
    value == &json!(0) || has_any("l") || has_any("t") || has_pair("d") || has_pair("f")
}

/// Removes leaves, and containers without leaves, from a serialized structure. `keep` yields for each leaf whether it
/// stays. Returns `None` if no leaf remains.
pub(crate) fn prune(value: &Value, keep: &mut impl Iterator<Item = bool>) -> Option<Value> {
    if value == &json!(0) {
        return keep.next().filter(|keep| *keep).map(|_| value.clone());
    }
    for key in ["l", "t"] {
        if let Some(items) = array(value, key) {
            let kept = items.iter().enumerate();
            let kept: Vec<(usize, Value)> = kept
                .filter_map(|(index, item)| Some((index, prune(item, keep)?)))
                .collect();
            // Without elements before the last one that remains, a list becomes a mapping, which keeps their indices.
            let (last, _) = kept.last()?;
            let with_leaves = items[..=*last].iter().filter(|item| has_leaves(item));
            return Some(if with_leaves.count() == kept.len() {
                let items = kept.into_iter().map(|(_, item)| item);
                json!({ key: items.collect::<Vec<_>>() })
            } else {
                json!({ "d": kept })
            });
        }
    }
    let pairs = array(value, "d").or_else(|| array(value, "f"))?;
    let kept: Vec<Value> = pairs
        .iter()
        .filter_map(|pair| Some(json!([pair.get(0)?, prune(pair.get(1)?, keep)?])))
        .collect();
    // A namedtuple without some of its fields becomes a mapping.
    let complete = kept.len() == pairs.len();
    (!kept.is_empty()).then(|| match value.get("n") {
        Some(name) if complete => json!({ "n": name, "f": kept }),
        _ => json!({ "d": kept }),
    })
}

fn array<'a>(value: &'a Value, key: &str) -> Option<&'a Vec<Value>> {
    value.get(key)?.as_array()
}
