//! Checks a structure, the text that describes how columns are nested, and displays the nest in error texts.
//!
//! A leaf is `0`; a mapping `{"d": [[key, node], ...]}`; a list `{"l": [node, ...]}`; a tuple
//! `{"t": [node, ...]}`; a namedtuple `{"n": name, "f": [[field, node], ...]}`. A key is text or a signed
//! 64-bit integer, and occurs once in its container.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, IgnoredAny, Unexpected};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::text::count;

/// Checks that a structure can be read and has one leaf per column. Error texts begin with `the structure of
/// {owner}`.
pub(crate) fn check_structure(owner: &str, structure: &str, columns: usize) -> Result<()> {
    let invalid = |problem| Error::Signature(format!("the structure of {owner} {problem}"));
    let leaves =
        count_leaves(structure).map_err(|error| invalid(format!("cannot be read: {error}")))?;
    if leaves == columns {
        return Ok(());
    }
    Err(invalid(format!(
        "describes {}, expected {columns}; it needs one leaf per column",
        count(leaves, "column")
    )))
}

/// Returns the number of leaves of a structure.
fn count_leaves(structure: &str) -> serde_json::Result<usize> {
    let mut reader = serde_json::Deserializer::from_str(structure);
    let leaves = Node.deserialize(&mut reader)?;
    reader.end()?;
    Ok(leaves)
}

/// Reads a node and returns the number of its leaves.
struct Node;

impl<'de> DeserializeSeed<'de> for Node {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<usize, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0 or an object with the key `d`, `l` or `t`, or the keys `f` and `n`")
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<usize, E> {
        match number {
            0 => Ok(1),
            _ => Err(E::invalid_value(Unexpected::Unsigned(number), &self)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<usize, A::Error> {
        // `kinds` collects the object's keys, of one letter each.
        let (mut kinds, mut leaves) = (String::new(), 0);
        while let Some(kind) = object.next_key::<String>()? {
            match kind.as_str() {
                "n" => drop(object.next_value::<String>()?),
                "l" | "t" => leaves += object.next_value_seed(Children { have_keys: false })?,
                "d" | "f" => leaves += object.next_value_seed(Children { have_keys: true })?,
                _ => return Err(A::Error::invalid_value(Unexpected::Str(&kind), &self)),
            }
            kinds.push_str(&kind);
        }
        match kinds.as_str() {
            "d" | "l" | "t" | "fn" | "nf" => Ok(leaves),
            _ => Err(A::Error::invalid_value(Unexpected::Map, &self)),
        }
    }
}

/// Reads the children of a node and returns the number of their leaves.
struct Children {
    have_keys: bool,
}

impl<'de> DeserializeSeed<'de> for Children {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<usize, D::Error> {
        reader.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Children {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.have_keys {
            "an array of keys and nodes"
        } else {
            "an array of nodes"
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut children: A) -> Result<usize, A::Error> {
        let mut leaves = 0;
        if !self.have_keys {
            while let Some(child_leaves) = children.next_element_seed(Node)? {
                leaves += child_leaves;
            }
            return Ok(leaves);
        }
        let mut keys = HashSet::new();
        while let Some((key, child_leaves)) = children.next_element_seed(KeyAndNode)? {
            leaves += child_leaves;
            if let Some(key) = keys.replace(key) {
                return Err(A::Error::custom(format_args!("the key {key} occurs twice")));
            }
        }
        Ok(leaves)
    }
}

/// Reads an array of a key and a node; returns the key and the number of leaves of the node.
struct KeyAndNode;

impl<'de> DeserializeSeed<'de> for KeyAndNode {
    type Value = (Key, usize);

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for KeyAndNode {
    type Value = (Key, usize);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of a key and a node")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<Self::Value, A::Error> {
        let key = pair.next_element()?;
        let key = key.ok_or_else(|| A::Error::invalid_length(0, &self))?;
        let node = pair.next_element_seed(Node)?;
        let leaves = node.ok_or_else(|| A::Error::invalid_length(1, &self))?;
        match pair.next_element::<IgnoredAny>()? {
            None => Ok((key, leaves)),
            Some(_) => Err(A::Error::invalid_length(3, &self)),
        }
    }
}

/// A key of a container.
#[derive(PartialEq, Eq, Hash)]
enum Key {
    Text(String),
    Number(i64),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct KeyVisitor;

        impl Visitor<'_> for KeyVisitor {
            type Value = Key;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text or an integer of 64 bits")
            }

            fn visit_str<E>(self, text: &str) -> Result<Key, E> {
                Ok(Key::Text(text.into()))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Key, E> {
                Ok(Key::Number(number))
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Key, E> {
                let number = i64::try_from(number);
                number.map(Key::Number).map_err(|_| {
                    E::invalid_value(Unexpected::Other("an integer of 2^63 or more"), &self)
                })
            }
        }

        reader.deserialize_any(KeyVisitor)
    }
}

/// Returns the nest that a structure describes as Python writes it, with `*` for each leaf: `[*]`, `(*,)`, `{'a': *}`
/// or `Point(x=*, y=*)`. Returns the structure itself if it cannot be read.
pub(crate) fn nest_text(structure: &str) -> String {
    let node: Option<Value> = serde_json::from_str(structure).ok();
    let text = node.as_ref().and_then(node_text);
    text.unwrap_or_else(|| structure.into())
}

/// Returns the nest of a node as text; `None` if the node is invalid.
fn node_text(node: &Value) -> Option<String> {
    if node.as_u64() == Some(0) {
        return Some("*".into());
    }
    let object = node.as_object()?;
    let children = |kind: &str| object.get(kind).and_then(Value::as_array);
    if let Some(nodes) = children("l") {
        return Some(format!("[{}]", joined_texts(nodes, node_text)?));
    }
    if let Some(nodes) = children("t") {
        let comma = if nodes.len() == 1 { "," } else { "" };
        return Some(format!("({}{comma})", joined_texts(nodes, node_text)?));
    }
    if let Some(pairs) = children("d") {
        let entry_text = |pair: &Value| {
            let key = match pair.get(0)? {
                Value::String(key) => format!("'{key}'"),
                key => key.to_string(),
            };
            Some(format!("{key}: {}", node_text(pair.get(1)?)?))
        };
        return Some(format!("{{{}}}", joined_texts(pairs, entry_text)?));
    }
    let field_text = |pair: &Value| {
        let field = pair.get(0)?.as_str()?;
        Some(format!("{field}={}", node_text(pair.get(1)?)?))
    };
    let fields = joined_texts(children("f")?, field_text)?;
    Some(format!("{}({fields})", object.get("n")?.as_str()?))
}

/// Returns the texts of all values, separated by commas; `None` if one has no text.
fn joined_texts(values: &[Value], text: impl Fn(&Value) -> Option<String>) -> Option<String> {
    let texts: Option<Vec<String>> = values.iter().map(text).collect();
    Some(texts?.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nests_are_shown_as_python_writes_them() {
        for (structure, nest) in [
            ("0", "*"),
            (r#"{"l":[0,{"t":[0]}]}"#, "[*, (*,)]"),
            (r#"{"d":[["a",0],[1,{"t":[0,0]}]]}"#, "{'a': *, 1: (*, *)}"),
            (r#"{"f":[["x",0],["y",0]],"n":"Point"}"#, "Point(x=*, y=*)"),
            (r#"{"d":[["a"]]}"#, r#"{"d":[["a"]]}"#),
        ] {
            assert_eq!(nest_text(structure), nest);
        }
    }

    #[test]
    fn leaves_of_every_container_are_counted() {
        for (structure, leaves) in [
            ("0", 1),
            (r#"{"t":[]}"#, 0),
            (r#"{"l":[0,{"t":[0,0]}]}"#, 3),
            (r#"{"d":[["a",0],["b",{"l":[0]}],[-1,0],[1,0]]}"#, 4),
            (r#"{"f":[["x",0],["y",0]],"n":"Point"}"#, 2),
            (r#" {"n": "Point", "f": [["x", 0]]} "#, 1),
        ] {
            assert_eq!(
                check_structure("a layout", structure, leaves),
                Ok(()),
                "{structure}"
            );
        }
    }

    #[test]
    fn the_number_of_leaves_must_equal_the_number_of_columns() {
        let text = |structure, columns| {
            check_structure("a layout", structure, columns)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            text(r#"{"d":[["a",0]]}"#, 2),
            "the structure of a layout describes 1 column, expected 2; it needs one leaf per column"
        );
        assert_eq!(
            text(r#"{"t":[0,0]}"#, 1),
            "the structure of a layout describes 2 columns, expected 1; it needs one leaf per column"
        );
    }

    #[test]
    fn invalid_structures_are_rejected() {
        let node = "0 or an object with the key `d`, `l` or `t`, or the keys `f` and `n`";
        for (structure, problem) in [
            ("", "EOF while parsing a value".into()),
            ("{}", format!("invalid value: map, expected {node}")),
            ("1", format!("invalid value: integer `1`, expected {node}")),
            ("[0]", format!("invalid type: sequence, expected {node}")),
            (
                r#"{"x":[]}"#,
                format!("invalid value: string \"x\", expected {node}"),
            ),
            (
                r#"{"n":"P"}"#,
                format!("invalid value: map, expected {node}"),
            ),
            (
                r#"{"l":[0],"d":[]}"#,
                format!("invalid value: map, expected {node}"),
            ),
            (
                r#"{"d":[["a",0],["a",0]]}"#,
                r#"the key "a" occurs twice"#.into(),
            ),
            (
                r#"{"d":[["a"]]}"#,
                "invalid length 1, expected an array of a key and a node".into(),
            ),
            (
                r#"{"d":[["a",0,0]]}"#,
                "invalid length 3, expected an array of a key and a node".into(),
            ),
            (
                r#"{"d":[[1.5,0]]}"#,
                "invalid type: floating point `1.5`, expected text or an integer of 64 bits".into(),
            ),
            ("0 0", "trailing characters".into()),
        ] {
            let error = check_structure("a layout", structure, 1).unwrap_err();
            let expected = format!("the structure of a layout cannot be read: {problem}");
            let text = error.to_string();
            let (text, position) = text.rsplit_once(" at line ").unwrap();
            assert_eq!(text, expected, "{structure}");
            assert!(position.starts_with("1 column "), "{position}");
        }
        let deep = format!("{}0{}", r#"{"l":["#.repeat(200), "]}".repeat(200));
        let error = check_structure("a layout", &deep, 1)
            .unwrap_err()
            .to_string();
        assert!(error.contains("recursion limit exceeded"), "{error}");
    }
}
