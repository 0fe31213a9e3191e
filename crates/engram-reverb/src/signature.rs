//! Signatures: from what a table has, to the nests that dm-reverb's clients read.
//!
//! Engram's compatible Python part keeps a table's signature as it was given in the table's note; other
//! tables may have one of Engram's own.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use engram_core::{ColumnSpec, DType, Signature};
use serde_json::{Map, Value, json};

use crate::dtypes::{dtype_in, dtype_out};
use crate::pb::tensorflow::structured_value::Kind;
use crate::pb::tensorflow::tensor_shape_proto::Dim;
use crate::pb::tensorflow::{
    Bound, BoundedTensorSpecProto, DictValue, ListValue, NamedTupleValue, PairValue,
    StructuredValue, TensorShapeProto, TensorSpecProto, TupleValue,
};

/// Nests deeper than this are not told: readers' protobuf goes no deeper.
const MAX_DEPTH: usize = 24;

/// Bytes of a bound: larger ones are not kept.
const MAX_BOUND: usize = 1 << 20;

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
        (Some(minimum), Some(maximum)) => {
            Kind::BoundedTensorSpecValue(Box::new(BoundedTensorSpecProto {
                name,
                shape: Some(axes),
                dtype,
                minimum: Some(bound(minimum)?),
                maximum: Some(bound(maximum)?),
            }))
        }
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

/// The note of a table that dm-reverb had; `None` where its signature has a type that we do not have, or no spec
/// where one belongs.
pub(crate) fn note(max_times_sampled: i32, signature: Option<&StructuredValue>) -> Option<String> {
    let signature = match signature {
        Some(nest) => to_note(nest, MAX_DEPTH)?,
        None => Value::Null,
    };
    let told = json!({ "max_times_sampled": max_times_sampled, "signature": signature });
    Some(json!({ "reverb": told }).to_string())
}

fn to_note(nest: &StructuredValue, depth: usize) -> Option<Value> {
    let depth = depth.checked_sub(1)?;
    let values = |values: &[StructuredValue]| -> Option<Vec<Value>> {
        values.iter().map(|value| to_note(value, depth)).collect()
    };
    Some(match nest.kind.as_ref()? {
        Kind::NoneValue(_) => json!({ "none": true }),
        Kind::ListValue(list) => json!({ "list": values(&list.values)? }),
        Kind::TupleValue(tuple) => json!({ "tuple": values(&tuple.values)? }),
        Kind::DictValue(dict) => {
            let fields = dict.fields.iter();
            let fields = fields.map(|(key, value)| Some((key.clone(), to_note(value, depth)?)));
            json!({ "dict": fields.collect::<Option<Map<String, Value>>>()? })
        }
        Kind::NamedTupleValue(named) => {
            let fields = named.values.iter().map(|pair| {
                let value = to_note(pair.value.as_ref()?, depth)?;
                Some(json!([pair.key, value]))
            });
            let fields = fields.collect::<Option<Vec<Value>>>()?;
            json!({ "namedtuple": { "name": named.name, "fields": fields } })
        }
        Kind::TensorSpecValue(spec) => {
            let spec = spec_to_note(&spec.name, spec.dtype, spec.shape.as_ref())?;
            json!({ "spec": spec })
        }
        Kind::BoundedTensorSpecValue(spec) => {
            let bound = |bound: Option<&Bound>| -> Option<Value> {
                let dims = bound?.tensor_shape.iter().flat_map(|shape| &shape.dim);
                let shape: Vec<i64> = dims.map(|dim| dim.size).collect();
                let data = bound_bytes(bound?, spec.dtype, &shape)?;
                Some(json!({ "shape": shape, "data": STANDARD.encode(data) }))
            };
            let mut told = spec_to_note(&spec.name, spec.dtype, spec.shape.as_ref())?;
            told.insert("minimum".into(), bound(spec.minimum.as_ref())?);
            told.insert("maximum".into(), bound(spec.maximum.as_ref())?);
            json!({ "spec": told })
        }
    })
}

/// The values of a bound, however they are written.
fn bound_bytes(bound: &Bound, dtype: i32, shape: &[i64]) -> Option<Vec<u8>> {
    let size = dtype_in(dtype)?.size();
    let mut axes = shape.iter().map(|size| usize::try_from(*size).ok());
    let elements = axes.try_fold(1_usize, |all, size| all.checked_mul(size?))?;
    let bytes = elements
        .checked_mul(size)
        .filter(|bytes| *bytes <= MAX_BOUND)?;
    if !bound.tensor_content.is_empty() {
        return (bound.tensor_content.len() == bytes).then(|| bound.tensor_content.to_vec());
    }
    // Integers are written in as many bytes as they have here: their low ones.
    let mut values: Vec<[u8; 8]> = Vec::new();
    values.extend(bound.float_val.iter().map(|value| low(value.to_le_bytes())));
    values.extend(bound.double_val.iter().map(|value| value.to_le_bytes()));
    let ints = bound.int_val.iter().chain(&bound.half_val);
    values.extend(ints.map(|value| i64::from(*value).to_le_bytes()));
    values.extend(bound.int64_val.iter().map(|value| value.to_le_bytes()));
    values.extend(
        bound
            .bool_val
            .iter()
            .map(|value| u64::from(*value).to_le_bytes()),
    );
    values.extend(
        bound
            .uint32_val
            .iter()
            .map(|value| u64::from(*value).to_le_bytes()),
    );
    values.extend(bound.uint64_val.iter().map(|value| value.to_le_bytes()));
    let last = values.last().copied().unwrap_or_default();
    let values = values.iter().chain(std::iter::repeat(&last));
    let values = values.take(elements);
    Some(
        values
            .flat_map(|value| value.iter().take(size))
            .copied()
            .collect(),
    )
}

/// Four bytes as the first of eight.
fn low(bytes: [u8; 4]) -> [u8; 8] {
    u64::from(u32::from_le_bytes(bytes)).to_le_bytes()
}

fn spec_to_note(
    name: &str,
    dtype: i32,
    shape: Option<&TensorShapeProto>,
) -> Option<Map<String, Value>> {
    let mut spec = Map::new();
    let name = Some(name).filter(|name| !name.is_empty());
    let shape = shape.filter(|shape| !shape.unknown_rank).map(|shape| {
        let axes = shape.dim.iter();
        axes.map(|axis| Some(axis.size).filter(|size| *size >= 0))
            .collect::<Vec<Option<i64>>>()
    });
    spec.insert("name".into(), json!(name));
    spec.insert("dtype".into(), json!(dtype_in(dtype)?.name()));
    spec.insert("shape".into(), json!(shape));
    Some(spec)
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
