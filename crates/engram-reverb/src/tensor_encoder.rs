//! Encodes columns as the tensors of dm-reverb's chunks.

use bytes::Bytes;
use engram_core::{CellSpec, DType, Error, Result};
use prost::encoding::encode_varint;

use crate::dtypes::to_tensorflow;
use crate::pb::tensorflow::{ChunkTensor, TensorShapeProto, tensor_shape_proto::Dim};

/// Encodes `rows` rows of a column. `raw` has their bytes, or strings as the engine encodes them.
///
/// # Errors
/// [`Error::InvalidArgument`] for a dtype that dm-reverb lacks, or for more bytes than Snappy can compress.
pub fn encode_tensor(cell: &CellSpec, rows: usize, raw: &[u8]) -> Result<ChunkTensor> {
    let dtype = to_tensorflow(cell.dtype).ok_or_else(|| {
        Error::InvalidArgument(format!(
            "dtype {} is not supported by dm-reverb's clients; read it with Engram's client",
            cell.dtype
        ))
    })?;
    let content = match cell.dtype {
        DType::Bytes | DType::Text => encode_strings(raw),
        _ => snap::raw::Encoder::new()
            .compress_vec(raw)
            .map_err(|_| {
                Error::InvalidArgument(format!(
                    "a column of {} bytes is too large for dm-reverb's clients, whose columns are compressed with \
                     Snappy; read it with Engram's client",
                    raw.len()
                ))
            })?,
    };
    let axes = std::iter::once(rows).chain(cell.shape.iter().copied());
    Ok(ChunkTensor {
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

/// Converts strings from the engine's encoding, each a `u32` length and the bytes, to dm-reverb's: all
/// lengths, then all bytes.
fn encode_strings(encoded: &[u8]) -> Vec<u8> {
    let (mut lengths, mut bytes) = (Vec::new(), Vec::new());
    let mut rest = encoded;
    while let Some((prefix, later)) = rest.split_first_chunk::<4>() {
        let len = u32::from_le_bytes(*prefix) as usize;
        let (string, later) = later.split_at(len.min(later.len()));
        encode_varint(string.len() as u64, &mut lengths);
        bytes.extend_from_slice(string);
        rest = later;
    }
    lengths.append(&mut bytes);
    lengths
}
