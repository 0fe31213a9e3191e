//! Valid messages of dm-reverb's protocol.

use engram_reverb::pb;
use engram_reverb::pb::flat_trajectory::{ChunkSlice, Column};
use engram_reverb::pb::tensorflow::{
    ChunkTensor, DataType, TensorShapeProto, tensor_shape_proto::Dim,
};
use prost::Message as _;

/// A tensor of this dtype and shape.
#[must_use]
pub fn tensor(dtype: DataType, sizes: &[i64], content: Vec<u8>) -> ChunkTensor {
    let dim = sizes.iter().map(|size| Dim {
        size: *size,
        name: String::new(),
    });
    ChunkTensor {
        dtype: dtype.into(),
        tensor_shape: Some(TensorShapeProto {
            dim: dim.collect(),
            unknown_rank: false,
        }),
        tensor_content: content.into(),
    }
}

fn snappy(raw: &[u8]) -> Vec<u8> {
    snap::raw::Encoder::new().compress_vec(raw).unwrap()
}

/// A chunk with a tensor per column; it claims to be delta-encoded if its key is even.
#[must_use]
pub fn chunk(key: u64, tensors: Vec<ChunkTensor>) -> pb::ChunkData {
    pb::ChunkData {
        chunk_key: key,
        sequence_range: Some(pb::SequenceRange {
            episode_id: 7,
            start: 2,
            end: 4,
            sparse: false,
        }),
        delta_encoded: key.is_multiple_of(2),
        data: Some(pb::chunk_data::Data { tensors }),
        ..pb::ChunkData::default()
    }
}

/// An item. Each slice of a column is given as chunk key, offset, length and index of the chunk's tensor.
#[must_use]
pub fn item(key: u64, columns: &[&[[i64; 4]]]) -> pb::PrioritizedItem {
    let narrow = |number: i64| i32::try_from(number).unwrap();
    let columns = columns.iter().map(|slices| Column {
        chunk_slices: slices
            .iter()
            .map(|[key, offset, length, index]| ChunkSlice {
                chunk_key: key.cast_unsigned(),
                offset: narrow(*offset),
                length: narrow(*length),
                index: narrow(*index),
            })
            .collect(),
        squeeze: slices.len() == 1 && slices[0][2] == 1,
    });
    pb::PrioritizedItem {
        key,
        table: "table".into(),
        priority: 1.0,
        flat_trajectory: Some(pb::FlatTrajectory {
            columns: columns.collect(),
        }),
        ..pb::PrioritizedItem::default()
    }
}

/// Encoded requests of insert streams: one in the current format with three items, one in the deprecated format with
/// one.
#[must_use]
pub fn insert_requests() -> Vec<Vec<u8>> {
    let floats = tensor(DataType::DtFloat, &[3, 2], snappy(&[1; 24]));
    let wide = tensor(DataType::DtInt64, &[3, 2], snappy(&[3; 48]));
    let bytes = tensor(DataType::DtUint8, &[3, 500], snappy(&[9; 1500]));
    let texts = tensor(DataType::DtString, &[3, 1], b"\x01\x00\x05ahello".to_vec());
    let empty = tensor(DataType::DtHalf, &[3, 0, 4], snappy(&[]));
    let current = pb::InsertStreamRequest {
        chunks: vec![
            chunk(1, vec![floats.clone(), bytes.clone(), texts.clone()]),
            chunk(2, vec![wide.clone()]),
            chunk(3, vec![empty, texts]),
        ],
        items: vec![
            item(11, &[&[[1, 0, 3, 0]], &[[1, 0, 3, 1]], &[[1, 0, 3, 2]]]),
            item(12, &[&[[2, 1, 1, 0]], &[[1, 2, 1, 1], [1, 0, 2, 1]]]),
            item(13, &[&[[3, 0, 2, 0]], &[[3, 1, 1, 1]]]),
        ],
        keep_chunk_keys: vec![1],
    };
    let deprecated = pb::InsertStreamRequest {
        chunks: vec![
            pb::ChunkData {
                chunk_key: 4,
                deprecated_data: vec![floats, wide],
                ..pb::ChunkData::default()
            },
            pb::ChunkData {
                chunk_key: 5,
                deprecated_data: vec![bytes.clone(), bytes],
                ..pb::ChunkData::default()
            },
        ],
        items: vec![pb::PrioritizedItem {
            key: u64::MAX,
            table: "table".into(),
            deprecated_chunk_keys: vec![4],
            deprecated_sequence_range: Some(pb::SliceRange {
                offset: 1,
                length: 2,
            }),
            ..pb::PrioritizedItem::default()
        }],
        keep_chunk_keys: vec![4, 5],
    };
    vec![current.encode_to_vec(), deprecated.encode_to_vec()]
}
