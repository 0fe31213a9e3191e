//! Encodes a table's signature as the nested structure that dm-reverb's clients read.
//!
//! Tables that Engram's compatibility package created, or that were imported from a checkpoint, have the original
//! signature as JSON in their note; other tables may have a signature of Engram's own kind.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use engram_core::{ColumnSpec, DType, Signature};
use serde_json::Value;

use crate::dtypes::to_tensorflow;
use crate::pb::tensorflow::structured_value::Kind;
use crate::pb::tensorflow::tensor_shape_proto::Dim;
use crate::pb::tensorflow::{
    BoundedTensorSpecProto, DictValue, ListValue, NamedTupleValue, PairValue, StructuredValue,
    TensorProto, TensorShapeProto, TensorSpecProto, TupleValue,
};

/// Deepest nesting that is sent: protobuf's readers have a limit.
const MAX_DEPTH: usize = 24;

/// The content of a note that the compatibility package or an import wrote.
#[derive(Debug, Default)]
pub(crate) struct ReverbNote {
    /// The `max_times_sampled` that was passed to dm-reverb's API, which may be negative. `None` if the note has none.
    pub(crate) max_times_sampled: Option<i32>,
    /// `None` if the table has none, or one that cannot be encoded.
    pub(crate) signature: Option<StructuredValue>,
}

/// Decodes a note; `None` if neither the compatibility package nor an import wrote it.
pub(crate) fn decode_note(note: &str) -> Option<ReverbNote> {
    let note: Value = serde_json::from_str(note).ok()?;
    let reverb = note.get("reverb")?;
    let times = reverb.get("max_times_sampled").and_then(Value::as_i64);
    let signature = reverb.get("signature").filter(|nest| !nest.is_null());
    Some(ReverbNote {
        max_times_sampled: times.and_then(|times| i32::try_from(times).ok()),
        signature: signature.and_then(|nest| decode_nest(nest, MAX_DEPTH)),
    })
}

fn value(kind: Kind) -> StructuredValue {
    StructuredValue { kind: Some(kind) }
}

/// Converts a nest from the JSON of a note. `None` if it is invalid, or nested more than `depth` deep.
fn decode_nest(nest: &Value, depth: usize) -> Option<StructuredValue> {
    let depth = depth.checked_sub(1)?;
    let (kind, content) = nest.as_object()?.iter().next()?;
    let values = |content: &Value| -> Option<Vec<StructuredValue>> {
        let values = content.as_array()?.iter();
        values.map(|value| decode_nest(value, depth)).collect()
    };
    Some(value(match kind.as_str() {
        "list" => Kind::ListValue(ListValue {
            values: values(content)?,
        }),
        "tuple" => Kind::TupleValue(TupleValue {
            values: values(content)?,
        }),
        "dict" => {
            let fields = content.as_object()?.iter();
            let fields = fields.map(|(key, nest)| Some((key.clone(), decode_nest(nest, depth)?)));
            Kind::DictValue(DictValue {
                fields: fields.collect::<Option<_>>()?,
            })
        }
        "namedtuple" => {
            let fields = content.get("fields")?.as_array()?.iter();
            let fields = fields.map(|pair| {
                Some(PairValue {
                    key: pair.get(0)?.as_str()?.to_owned(),
                    value: Some(decode_nest(pair.get(1)?, depth)?),
                })
            });
            Kind::NamedTupleValue(NamedTupleValue {
                name: content.get("name")?.as_str()?.to_owned(),
                values: fields.collect::<Option<_>>()?,
            })
        }
        "spec" => decode_spec(content)?,
        // dm-reverb's clients reject everything else, also `None`.
        _ => return None,
    }))
}

fn decode_spec(spec: &Value) -> Option<Kind> {
    let dtype = DType::from_name(spec.get("dtype")?.as_str()?).and_then(to_tensorflow)? as i32;
    let name = spec.get("name").and_then(Value::as_str).unwrap_or_default();
    let axes = match spec.get("shape")? {
        Value::Null => TensorShapeProto {
            unknown_rank: true,
            ..TensorShapeProto::default()
        },
        sizes => {
            let axes = sizes.as_array()?.iter();
            shape(axes.map(|axis| axis.as_i64().unwrap_or(-1)))
        }
    };
    let bound = |bound: &Value| -> Option<TensorProto> {
        let axes = bound.get("shape")?.as_array()?.iter();
        let data = STANDARD.decode(bound.get("data")?.as_str()?).ok()?;
        Some(TensorProto {
            dtype,
            tensor_shape: Some(shape(axes.map(|axis| axis.as_i64().unwrap_or(0)))),
            tensor_content: data.into(),
            ..TensorProto::default()
        })
    };
    let name = name.to_owned();
    Some(match (spec.get("minimum"), spec.get("maximum")) {
        (Some(minimum), Some(maximum)) => Kind::BoundedTensorSpecValue(BoundedTensorSpecProto {
            name,
            shape: Some(axes),
            dtype,
            minimum: Some(bound(minimum)?),
            maximum: Some(bound(maximum)?),
        }),
        _ => Kind::TensorSpecValue(TensorSpecProto {
            name,
            shape: Some(axes),
            dtype,
        }),
    })
}

fn shape(axes: impl Iterator<Item = i64>) -> TensorShapeProto {
    let dim = axes.map(|size| Dim {
        size,
        name: String::new(),
    });
    TensorShapeProto {
        dim: dim.collect(),
        unknown_rank: false,
    }
}

/// Encodes a table's own signature. `None` if dm-reverb cannot represent it: dm-reverb's mappings have only text as
/// keys, and it has no float8 types.
pub(crate) fn encode_signature(signature: &Signature) -> Option<StructuredValue> {
    let structure: Value = serde_json::from_str(&signature.structure).ok()?;
    let mut columns = signature.columns.iter();
    let nest = encode_structure(&structure, &mut columns, MAX_DEPTH)?;
    columns.next().is_none().then_some(nest)
}

/// Converts a structure from Engram's JSON. Its leaves are the next of `columns`.
fn encode_structure<'a>(
    structure: &Value,
    columns: &mut impl Iterator<Item = &'a ColumnSpec>,
    depth: usize,
) -> Option<StructuredValue> {
    let depth = depth.checked_sub(1)?;
    if structure.as_i64() == Some(0) {
        return encode_spec(columns.next()?);
    }
    let array = |key: &str| structure.get(key).and_then(Value::as_array);
    let mut values = |nests: &[Value]| -> Option<Vec<StructuredValue>> {
        nests
            .iter()
            .map(|nest| encode_structure(nest, columns, depth))
            .collect()
    };
    if let Some(nests) = array("l") {
        return Some(value(Kind::ListValue(ListValue {
            values: values(nests)?,
        })));
    }
    if let Some(nests) = array("t") {
        return Some(value(Kind::TupleValue(TupleValue {
            values: values(nests)?,
        })));
    }
    let pairs = array("d").or_else(|| array("f"))?;
    let keys = pairs.iter().map(|pair| pair.get(0)?.as_str());
    let keys: Vec<String> = keys
        .map(|key| key.map(str::to_owned))
        .collect::<Option<_>>()?;
    let nests: Vec<Value> = pairs
        .iter()
        .map(|pair| pair.get(1).cloned())
        .collect::<Option<_>>()?;
    let fields = keys.into_iter().zip(values(&nests)?);
    Some(value(match structure.get("n").and_then(Value::as_str) {
        Some(name) => Kind::NamedTupleValue(NamedTupleValue {
            name: name.to_owned(),
            values: fields
                .map(|(key, value)| PairValue {
                    key,
                    value: Some(value),
                })
                .collect(),
        }),
        None => Kind::DictValue(DictValue {
            fields: fields.collect(),
        }),
    }))
}

fn encode_spec(column: &ColumnSpec) -> Option<StructuredValue> {
    let axes = column
        .shape
        .iter()
        .map(|axis| axis.map_or(-1, |axis| i64::try_from(axis).unwrap_or(i64::MAX)));
    Some(value(Kind::TensorSpecValue(TensorSpecProto {
        name: column.name.to_string(),
        shape: Some(shape(axes)),
        dtype: to_tensorflow(column.dtype)? as i32,
    })))
}
