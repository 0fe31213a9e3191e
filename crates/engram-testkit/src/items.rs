//! Chunks and items.

use std::sync::Arc;

use engram_core::{
    CellSpec, Chunk, ChunkBuilder, Compression, Compressor, DType, Layout, NewItem, Origin, Schema,
    Trajectory,
};
use smallvec::smallvec;

/// A chunk of one column of bytes, `[rows, size]`; each byte is the key's lowest byte.
#[must_use]
pub fn byte_chunk(key: u64, rows: u32, size: usize) -> Arc<Chunk> {
    let schema = Arc::new(Schema {
        layout: Arc::new(Layout {
            names: Box::new(["obs".into()]),
            structure: r#"{"d":[["obs",0]]}"#.into(),
        }),
        cells: Box::new([CellSpec {
            dtype: DType::Uint8,
            shape: smallvec![size],
        }]),
    });
    let mut builder = ChunkBuilder::new(schema, rows as usize).unwrap();
    for row in 0..rows {
        builder.cell_mut(0, row as usize).fill(key.to_le_bytes()[0]);
        builder.commit(0);
    }
    let origin = Origin {
        key,
        episodes: smallvec![key],
        first_step: 0,
        steps: rows,
    };
    let compressor = &mut Compressor::new(Compression::Off);
    Arc::new(builder.seal(origin, compressor).unwrap())
}

/// An item with a chunk of its own: `size` bytes, without a time axis.
#[must_use]
pub fn byte_item(key: u64, priority: f64, size: usize) -> NewItem {
    NewItem {
        key,
        trajectory: Trajectory::Rows {
            chunk: byte_chunk(key, 1, size),
            offset: 0,
            len: 1,
            squeeze: true,
        },
        priority,
    }
}
