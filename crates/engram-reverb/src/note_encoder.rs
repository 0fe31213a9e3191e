//! Encodes dm-reverb's signatures as JSON in a table's note, in the form of the compatibility package
//! (`python/engram/compat/reverb/_table_note.py`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use engram_core::DType;
use engram_core::table::MAX_NOTE_BYTES;
use serde_json::{Value, json};

use crate::dtypes::from_tensorflow;
use crate::pb::tensorflow::structured_value::Kind;
use crate::pb::tensorflow::{StructuredValue, TensorProto, TensorShapeProto};

/// Deepest nesting that is stored.
const MAX_DEPTH: usize = 64;

/// Returns the note of a table, and the part of the signature that the note lacks, as the object of a sentence; `None`
/// if the note contains the whole signature, or the table has none. If the note would be too large, bounds of more than
/// 8 bytes are left out; if it is still too large, the whole signature. A signature that is nested too deeply, or has
/// types or bounds that Engram does not know, is left out too.
pub(crate) fn encode_note(
    max_times_sampled: i32,
    signature: Option<&StructuredValue>,
) -> (String, Option<&'static str>) {
    let note_with = |signature: Value| {
        let reverb = json!({"max_times_sampled": max_times_sampled, "signature": signature});
        json!({ "reverb": reverb }).to_string()
    };
    let Some(signature) = signature else {
        return (note_with(Value::Null), None);
    };
    let whole = encode_nest(signature, MAX_DEPTH, usize::MAX).map(note_with);
    let is_small = |note: &String| note.len() <= MAX_NOTE_BYTES;
    if let Some(note) = whole.filter(is_small) {
        return (note, None);
    }
    let without_arrays = encode_nest(signature, MAX_DEPTH, 8).map(note_with);
    match without_arrays.filter(is_small) {
        Some(note) => (note, Some("array bounds of its signature")),
        None => (note_with(Value::Null), Some("its signature")),
    }
}

/// Encodes a nested value. Leaves out bounds of more than `max_bound_bytes`. `None` if it is nested too deeply, or has
/// types or bounds that Engram does not know.
fn encode_nest(value: &StructuredValue, depth: usize, max_bound_bytes: usize) -> Option<Value> {
    let depth = depth.checked_sub(1)?;
    let nests = |values: &[StructuredValue]| -> Option<Vec<Value>> {
        values
            .iter()
            .map(|value| encode_nest(value, depth, max_bound_bytes))
            .collect()
    };
    Some(match value.kind.as_ref()? {
        Kind::NoneValue(_) => json!({"none": true}),
        Kind::ListValue(list) => json!({"list": nests(&list.values)?}),
        Kind::TupleValue(tuple) => json!({"tuple": nests(&tuple.values)?}),
        Kind::DictValue(dict) => {
            let fields = dict.fields.iter();
            let fields = fields.map(|(key, value)| {
                Some((key.clone(), encode_nest(value, depth, max_bound_bytes)?))
            });
            json!({"dict": fields.collect::<Option<serde_json::Map<_, _>>>()?})
        }
        Kind::NamedTupleValue(tuple) => {
            let fields = tuple.values.iter();
            let fields = fields.map(|pair| {
                Some(json!([
                    pair.key,
                    encode_nest(pair.value.as_ref()?, depth, max_bound_bytes)?
                ]))
            });
            let fields = fields.collect::<Option<Vec<_>>>()?;
            json!({"namedtuple": {"name": tuple.name, "fields": fields}})
        }
        Kind::TensorSpecValue(spec) => {
            json!({"spec": encode_spec(&spec.name, spec.shape.as_ref(), spec.dtype)?})
        }
        Kind::BoundedTensorSpecValue(spec) => {
            let mut encoded = encode_spec(&spec.name, spec.shape.as_ref(), spec.dtype)?;
            let (low, high) = (spec.minimum.as_ref()?, spec.maximum.as_ref()?);
            if low.tensor_content.len().max(high.tensor_content.len()) <= max_bound_bytes {
                encoded["minimum"] = encode_bound(low)?;
                encoded["maximum"] = encode_bound(high)?;
            }
            json!({ "spec": encoded })
        }
    })
}

fn encode_spec(name: &str, shape: Option<&TensorShapeProto>, dtype: i32) -> Option<Value> {
    let name = (!name.is_empty()).then_some(name);
    let shape = match shape {
        Some(shape) if !shape.unknown_rank => sizes(shape),
        _ => Value::Null,
    };
    Some(json!({"name": name, "dtype": from_tensorflow(dtype)?.name(), "shape": shape}))
}

fn sizes(shape: &TensorShapeProto) -> Value {
    let sizes = shape.dim.iter();
    sizes
        .map(|dim| (dim.size >= 0).then_some(dim.size))
        .collect::<Vec<_>>()
        .into()
}

/// Encodes a bound as raw bytes and a shape. TensorFlow stores a single number in the field of its type.
fn encode_bound(bound: &TensorProto) -> Option<Value> {
    let shape = bound.tensor_shape.as_ref().map_or(json!([]), sizes);
    let data = if bound.tensor_content.is_empty() {
        single_number(bound)?
    } else {
        bound.tensor_content.to_vec()
    };
    Some(json!({"shape": shape, "data": STANDARD.encode(data)}))
}

/// The bytes of a bound that consists of a single number; `None` for any other.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "TensorFlow stores narrow integers in wide fields"
)]
fn single_number(bound: &TensorProto) -> Option<Vec<u8>> {
    let fields = [
        bound.float_val.len(),
        bound.double_val.len(),
        bound.int_val.len(),
        bound.int64_val.len(),
        bound.bool_val.len(),
        bound.half_val.len(),
        bound.uint32_val.len(),
        bound.uint64_val.len(),
    ];
    if fields.iter().sum::<usize>() != 1 {
        return None;
    }
    let int = bound.int_val.first().copied();
    let half = bound.half_val.first().copied();
    Some(match from_tensorflow(bound.dtype)? {
        DType::Float32 => bound.float_val.first()?.to_le_bytes().to_vec(),
        DType::Float64 => bound.double_val.first()?.to_le_bytes().to_vec(),
        DType::Int32 => int?.to_le_bytes().to_vec(),
        DType::Int16 | DType::Uint16 => (int? as u16).to_le_bytes().to_vec(),
        DType::Int8 | DType::Uint8 => vec![int? as u8],
        DType::Int64 => bound.int64_val.first()?.to_le_bytes().to_vec(),
        DType::Uint32 => bound.uint32_val.first()?.to_le_bytes().to_vec(),
        DType::Uint64 => bound.uint64_val.first()?.to_le_bytes().to_vec(),
        DType::Bool => vec![u8::from(*bound.bool_val.first()?)],
        DType::Float16 | DType::Bfloat16 => (half? as u16).to_le_bytes().to_vec(),
        _ => return None,
    })
}
