//! Shared helpers: generate cells, and read items back.

use std::collections::HashSet;
use std::sync::Arc;

use engram_core::chunk::string_cells;
use engram_core::{
    AlignedBytes, CellSpec, Chunk, Compression, DType, Layout, NewItem, Schema, Shape,
};

use engram_core::writer::WriterOptions;

/// Bytes of one cell. Strings are encoded.
pub(crate) type Cell = Vec<u8>;

/// The contents of an item: per column, whether it is squeezed, and its cells.
pub(crate) type Item = Vec<(bool, Vec<Cell>)>;

pub(crate) fn options(history: u64, chunk_length: Option<usize>) -> WriterOptions {
    WriterOptions {
        history,
        chunk_length,
        compression: Compression::Auto,
        shard: engram_core::writer::ShardId::default(),
    }
}

pub(crate) fn layout(names: &[String]) -> Arc<Layout> {
    Arc::new(Layout {
        names: names.iter().map(|name| name.as_str().into()).collect(),
        structure: "test".into(),
    })
}

pub(crate) fn schema(cells: &[CellSpec]) -> Arc<Schema> {
    let names: Vec<String> = (0..cells.len()).map(|i| format!("c{i}")).collect();
    Arc::new(Schema {
        layout: layout(&names),
        cells: cells.into(),
    })
}

pub(crate) fn spec(dtype: DType, shape: &[usize]) -> CellSpec {
    CellSpec {
        dtype,
        shape: Shape::from_slice(shape),
    }
}

/// Returns a cell derived from `number`. Distinct numbers give distinct cells if the cell is large
/// enough.
pub(crate) fn cell_value(spec: &CellSpec, number: u64) -> Cell {
    if spec.dtype.is_string() {
        let text = format!("text {number}{}", "x".repeat(number as usize % 5));
        let element = [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
        return element.repeat(spec.elements());
    }
    let mut bytes_of_hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    bytes_of_hash.reverse();
    let is_number = spec.elements() == 1 && spec.dtype == DType::Int64;
    let bytes = if is_number {
        number.to_le_bytes()
    } else {
        bytes_of_hash
    };
    bytes.into_iter().cycle().take(spec.bytes()).collect()
}

/// Reads an item's cells, and checks that the item is well formed.
pub(crate) fn read(item: &NewItem) -> Item {
    let trajectory = &item.trajectory;
    assert!(item.key < 1 << 63);
    assert_eq!(trajectory.layout().names.len(), trajectory.column_count());
    let mut used_chunks = HashSet::new();
    let columns = (0..trajectory.column_count())
        .map(|column| {
            let expected = trajectory.column(column);
            let mut cells = Vec::new();
            trajectory
                .for_each_slice(column, |chunk, chunk_column, first, len| {
                    used_chunks.insert(Arc::as_ptr(chunk));
                    assert_eq!(chunk.schema().cells[chunk_column], *expected.cell);
                    assert!(len > 0 && first + len <= chunk.extents()[chunk_column].rows as usize);
                    let bytes = expected.cell.bytes();
                    for row in first..first + len {
                        cells.push(if expected.cell.dtype.is_string() {
                            let raw = chunk.raw(chunk_column).unwrap();
                            let rows = chunk.extents()[chunk_column].rows as usize;
                            string_cells(raw, rows, row, 1)?.to_vec()
                        } else {
                            chunk.unpack(chunk_column)?[row * bytes..][..bytes].to_vec()
                        });
                    }
                    Ok(())
                })
                .unwrap();
            assert_eq!(cells.len(), expected.len);
            assert!(!expected.squeeze || cells.len() == 1);
            (expected.squeeze, cells)
        })
        .collect();
    // The item lists exactly the chunks that it uses, each once.
    assert_eq!(used_chunks.len(), trajectory.chunks().len());
    // The checks for items from outside the process accept the writers' own items.
    trajectory.check_parts().unwrap();
    trajectory
        .chunks()
        .iter()
        .for_each(|chunk| check_chunk(chunk));
    columns
}

/// Checks that [`Chunk::from_parts`] accepts the parts of this chunk.
fn check_chunk(chunk: &Chunk) {
    let mut payload = AlignedBytes::zeroed(chunk.payload().len()).unwrap();
    payload.copy_from_slice(chunk.payload());
    let (origin, schema) = (chunk.origin().clone(), Arc::clone(chunk.schema()));
    Chunk::from_parts(origin, schema, chunk.extents().into(), payload).unwrap();
}
