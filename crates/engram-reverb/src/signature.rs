//! Signatures: from what a table has, to the nests that dm-reverb's clients read.
//!
//! Engram's compatible Python part keeps a table's signature as it was given in the table's note; other
//! tables may have one of Engram's own.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use engram_core::{ColumnSpec, DType, Signature};
use serde_json::Value;

use crate::dtypes::dtype_out;
use crate::pb::tensorflow::structured_value::Kind;
use crate::pb::tensorflow::tensor_shape_proto::Dim;
use crate::pb::tensorflow::{
    Bound, BoundedTensorSpecProto, DictValue, ListValue, NamedTupleValue, PairValue,
    StructuredValue, TensorShapeProto, TensorSpecProto, TupleValue,
};

/// Nests deeper than this are not told: readers' protobuf goes no deeper.
const MAX_DEPTH: usize = 24;

/// What a note says of a table.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    /// As it was given, which may be below 0.
    pub(crate) max_times_sampled: Option<i32>,
    /// `None` where it has none, or none that can be told.
    pub(crate) signature: Option<StructuredValue>,
}

/// What a note says, if it is one of the compatible Python part's.
pub(crate) fn noted(note: &str) -> Option<Noted> {
    let note: Value = serde_json::from_str(note).ok()?;
    let reverb = note.get("reverb")?;
    let times = reverb.get("max_times_sampled").and_then(Value::as_i64);
    let signature = reverb.get("signature").filter(|nest| !nest.is_null());
    Some(Noted {
        max_times_sampled: times.and_then(|times| i32::try_from(times).ok()),
        signature: signature.and_then(|nest| of_note(nest, MAX_DEPTH)),
    })
}

fn value(kind: Kind) -> StructuredValue {
    StructuredValue { kind: Some(kind) }
}

fn of_note(nest: &Value, depth: usize) -> Option<StructuredValue> {
    let depth = depth.checked_sub(1)?;
    let (kind, content) = nest.as_object()?.iter().next()?;
    let values = |content: &Value| -> Option<Vec<StructuredValue>> {
        let values = content.as_array()?.iter();
        values.map(|value| of_note(value, depth)).collect()
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
            let fields = fields.map(|(key, nest)| Some((key.clone(), of_note(nest, depth)?)));
            Kind::DictValue(DictValue {
                fields: fields.collect::<Option<_>>()?,
            })
        }
        "namedtuple" => {
            let fields = content.get("fields")?.as_array()?.iter();
            let fields = fields.map(|pair| {
                Some(PairValue {
                    key: pair.get(0)?.as_str()?.to_owned(),
                    value: Some(of_note(pair.get(1)?, depth)?),
                })
            });
            Kind::NamedTupleValue(NamedTupleValue {
                name: content.get("name")?.as_str()?.to_owned(),
                values: fields.collect::<Option<_>>()?,
            })
        }
        "spec" => spec_of_note(content)?,
        // Their clients refuse everything else, `None` too.
        _ => return None,
    }))
}

fn spec_of_note(spec: &Value) -> Option<Kind> {
    let dtype = DType::from_name(spec.get("dtype")?.as_str()?).and_then(dtype_out)? as i32;
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
    let bound = |bound: &Value| -> Option<Bound> {
        let axes = bound.get("shape")?.as_array()?.iter();
        let data = STANDARD.decode(bound.get("data")?.as_str()?).ok()?;
        Some(Bound {
            dtype,
            tensor_shape: Some(shape(axes.map(|axis| axis.as_i64().unwrap_or(0)))),
            tensor_content: data.into(),
            ..Bound::default()
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

/// A signature of Engram's own, where dm-reverb has words for it: mappings by text, and no type of 8
/// bits.
pub(crate) fn native(signature: &Signature) -> Option<StructuredValue> {
    let structure: Value = serde_json::from_str(&signature.structure).ok()?;
    let mut columns = signature.columns.iter();
    let nest = of_structure(&structure, &mut columns, MAX_DEPTH)?;
    columns.next().is_none().then_some(nest)
}

fn of_structure<'a>(
    structure: &Value,
    columns: &mut impl Iterator<Item = &'a ColumnSpec>,
    depth: usize,
) -> Option<StructuredValue> {
    let depth = depth.checked_sub(1)?;
    if structure.as_i64() == Some(0) {
        return spec(columns.next()?);
    }
    let array = |key: &str| structure.get(key).and_then(Value::as_array);
    let mut values = |nests: &[Value]| -> Option<Vec<StructuredValue>> {
        nests
            .iter()
            .map(|nest| of_structure(nest, columns, depth))
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

fn spec(column: &ColumnSpec) -> Option<StructuredValue> {
    let axes = column
        .shape
        .iter()
        .map(|axis| axis.map_or(-1, |axis| i64::try_from(axis).unwrap_or(i64::MAX)));
    Some(value(Kind::TensorSpecValue(TensorSpecProto {
        name: column.name.to_string(),
        shape: Some(shape(axes)),
        dtype: dtype_out(column.dtype)? as i32,
    })))
}
