//! Columns as dm-reverb's clients read them.

use bytes::Bytes;
use engram_core::{CellSpec, DType, Error, Result};
use prost::encoding::encode_varint;

use crate::dtypes::dtype_out;
use crate::pb::tensorflow::{TensorProto, TensorShapeProto, tensor_shape_proto::Dim};

/// A tensor of so many rows, compressed: of the engine's bytes, or its encoded strings.
///
/// # Errors
/// [`Error::InvalidArgument`] for a type that dm-reverb does not have, [`Error::OutOfMemory`] for more
/// bytes than its compression counts.
pub fn compress(cell: &CellSpec, rows: usize, raw: &[u8]) -> Result<TensorProto> {
    let dtype = dtype_out(cell.dtype).ok_or_else(|| {
        Error::InvalidArgument(format!(
            "a column is of {}, which dm-reverb's clients do not know: read it with Engram's client",
            cell.dtype
        ))
    })?;
    let content = match cell.dtype {
        DType::String => strings(raw),
        _ => snap::raw::Encoder::new()
            .compress_vec(raw)
            .map_err(|_| Error::out_of_memory("a column for a dm-reverb client", None))?,
    };
    let axes = std::iter::once(rows).chain(cell.shape.iter().copied());
    Ok(TensorProto {
        dtype: dtype.into(),
        tensor_shape: Some(TensorShapeProto {
            dim: axes.map(dim).collect(),
            unknown_rank: false,
        }),
        tensor_content: Bytes::from(content),
    })
}

fn dim(size: usize) -> Dim {
    Dim {
        size: i64::try_from(size).unwrap_or(i64::MAX),
        name: String::new(),
    }
}

/// From `u32 length, bytes` each to all lengths, then all bytes.
fn strings(encoded: &[u8]) -> Vec<u8> {
    let (mut lengths, mut bytes) = (Vec::new(), Vec::new());
    let mut rest = encoded;
    while let Some((head, later)) = rest.split_first_chunk::<4>() {
        let len = u32::from_le_bytes(*head) as usize;
        let (string, later) = later.split_at(len.min(later.len()));
        encode_varint(string.len() as u64, &mut lengths);
        bytes.extend_from_slice(string);
        rest = later;
    }
    lengths.append(&mut bytes);
    lengths
}
