//! The parts of chunks, and random corruptions of them.

use std::sync::Arc;

use engram_core::chunk::Extent;
use engram_core::codec::Codec;
use engram_core::{
    AlignedBytes, CellSpec, Chunk, ChunkBuilder, Compression, Compressor, DType, Layout, Origin,
    Result, Schema, Shape,
};
use proptest::prelude::*;
use smallvec::{SmallVec, smallvec};

/// The parts that a chunk is sent or stored as.
#[derive(Clone, Debug)]
pub(crate) struct ChunkParts {
    pub(crate) origin: Origin,
    pub(crate) names: Vec<Box<str>>,
    pub(crate) cells: Vec<CellSpec>,
    pub(crate) extents: SmallVec<[Extent; 4]>,
    pub(crate) payload: Vec<u8>,
}

impl ChunkParts {
    pub(crate) fn of(chunk: &Chunk) -> Self {
        Self {
            origin: chunk.origin().clone(),
            names: chunk.schema().layout.names.to_vec(),
            cells: chunk.schema().cells.to_vec(),
            extents: chunk.extents().into(),
            payload: chunk.payload().to_vec(),
        }
    }

    pub(crate) fn build(self) -> Result<Chunk> {
        let layout = Layout {
            names: self.names.into(),
            structure: "".into(),
        };
        let schema = Schema {
            layout: Arc::new(layout),
            cells: self.cells.into(),
        };
        let mut payload = AlignedBytes::zeroed(self.payload.len()).unwrap();
        payload.copy_from_slice(&self.payload);
        Chunk::from_parts(self.origin, Arc::new(schema), self.extents, payload)
    }
}

/// A column of a random chunk. All bytes of a `flat` column are equal, so it can be compressed; in a flat
/// column of strings, only the lengths are equal.
#[derive(Clone, Debug)]
pub(crate) struct RandomColumn {
    cell: CellSpec,
    flat: bool,
}

fn column() -> impl Strategy<Value = RandomColumn> {
    let dtype = prop_oneof![
        Just(DType::Uint8),
        Just(DType::Float32),
        Just(DType::Complex128),
        Just(DType::Bytes),
        Just(DType::Text),
    ];
    let shape = prop_oneof![
        3 => Just(Shape::new()),
        3 => (0..4_usize).prop_map(|size| smallvec![size]),
        1 => Just(smallvec![2, 3]),
        2 => Just(smallvec![2000]),
    ];
    (dtype, shape, any::<bool>()).prop_map(|(dtype, mut shape, flat)| {
        if dtype.is_string() {
            shape.retain(|size| *size < 10);
        }
        RandomColumn {
            cell: CellSpec { dtype, shape },
            flat,
        }
    })
}

/// Random chunks of one or several environments.
pub(crate) fn chunk() -> impl Strategy<Value = Chunk> {
    let columns = prop::collection::vec(column(), 1..4);
    (columns, 1..5_u32, 1..4_usize, any::<u8>())
        .prop_map(|(columns, steps, envs, seed)| build_chunk(&columns, steps, envs, seed))
}

fn build_chunk(columns: &[RandomColumn], steps: u32, envs: usize, seed: u8) -> Chunk {
    let names: Vec<Box<str>> = (0..columns.len())
        .map(|column| format!("c{column}").into())
        .collect();
    let schema = Schema {
        layout: Arc::new(Layout {
            names: names.into(),
            structure: "".into(),
        }),
        cells: columns.iter().map(|column| column.cell.clone()).collect(),
    };
    let rows = steps as usize * envs;
    let mut builder = ChunkBuilder::new(Arc::new(schema), rows).unwrap();
    let mut noise = seed;
    let mut next_byte = move |flat: bool| {
        noise = noise.wrapping_mul(77).wrapping_add(u8::from(!flat) * 31);
        if flat { seed } else { noise }
    };
    for (index, column) in columns.iter().enumerate() {
        for row in 0..rows {
            if column.cell.dtype.is_string() {
                let mut encoded = Vec::new();
                for _ in 0..column.cell.elements() {
                    let len = next_byte(column.flat) % 5;
                    encoded.extend_from_slice(&u32::from(len).to_le_bytes());
                    encoded.extend((0..len).map(|_| next_byte(false)));
                }
                builder.push_string(index, &encoded).unwrap();
            } else {
                let bytes = builder.cell_mut(index, row);
                bytes.fill_with(|| next_byte(column.flat));
                builder.commit(index);
            }
        }
    }
    let origin = Origin {
        key: 1,
        episodes: (0..envs as u64).collect(),
        first_step: u64::from(seed),
        steps,
    };
    let mut compressor = Compressor::new(Compression::Auto);
    builder.seal(origin, &mut compressor).unwrap()
}

/// A change of one part of a chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Corruption {
    /// Number of the field to change; see [`Corruption::apply`].
    field: usize,
    /// Selects the column, or the word of the payload.
    index: usize,
    /// The new value, or what it is derived from.
    value: u64,
}

/// Random numbers: small ones, aligned ones, ones near limits, or any.
pub(crate) fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..6_u64,
        2 => (0..200_u64).prop_map(|n| n * 64),
        1 => (0..4_u64).prop_map(|n| u64::from(u32::MAX) - n),
        1 => (0..4_u64).prop_map(|n| u64::MAX - n),
        1 => (0..64_u32).prop_map(|bit| 1 << bit),
        1 => any::<u64>(),
    ]
}

pub(crate) fn corruption() -> impl Strategy<Value = Corruption> {
    (0..13_usize, any::<usize>(), number()).prop_map(|(field, index, value)| Corruption {
        field,
        index,
        value,
    })
}

/// The low 32 bits of a number.
pub(crate) fn low_32_bits(value: u64) -> u32 {
    u32::try_from(value & u64::from(u32::MAX)).unwrap()
}

impl Corruption {
    /// Changes one field of the parts.
    pub(crate) fn apply(self, parts: &mut ChunkParts) {
        let Self {
            field,
            index,
            value,
        } = self;
        let column = index % parts.cells.len().max(1);
        let size = usize::try_from(value).unwrap();
        match field {
            // Offset, stored bytes, rows or codec of a column.
            0..=3 => {
                let Some(extent) = parts.extents.get_mut(column) else {
                    return;
                };
                match field {
                    0 => extent.offset = low_32_bits(value),
                    1 => extent.stored = low_32_bits(value),
                    2 => extent.rows = low_32_bits(value),
                    _ if extent.codec == Codec::Raw => extent.codec = Codec::Lz4,
                    _ => extent.codec = Codec::Raw,
                }
            }
            4 => parts.origin.steps = low_32_bits(value),
            5 => parts.origin.first_step = value,
            6 => parts.origin.episodes.truncate(size % 3),
            // Dtype, number of axes, or first axis of a column.
            7 => parts.cells[column].dtype = DType::ALL[size % DType::ALL.len()],
            8 => parts.cells[column].shape.push(size),
            9 => {
                if let Some(axis) = parts.cells[column].shape.first_mut() {
                    *axis = size;
                }
            }
            10 => {
                // A word of the payload, which may be an offset or length of strings.
                let words = parts.payload.len() / 4;
                if let Some(word_index) = index.checked_rem(words) {
                    let word = &mut parts.payload[word_index * 4..][..4];
                    word.copy_from_slice(&low_32_bits(value).to_le_bytes());
                }
            }
            11 => parts.payload.truncate(size),
            // More or fewer extents or names than columns.
            _ => match size % 3 {
                0 => parts.extents.truncate(column),
                1 => parts.names.push("more".into()),
                _ => parts.extents.extend(parts.extents.clone()),
            },
        }
    }
}
