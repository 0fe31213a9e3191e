//! Errors for chunks that would be too large.

use crate::aligned::align_up;
use crate::error::Error;
use crate::schema::Schema;
use crate::text::count;

/// Maximum bytes of a chunk's payload: offsets within a chunk have 32 bits.
pub const MAX_CHUNK_BYTES: usize = u32::MAX as usize;

/// The error for a chunk of `rows` rows.
pub(super) fn too_large(schema: &Schema, rows: usize) -> Error {
    let step_bytes: usize = schema
        .cells
        .iter()
        .map(crate::schema::CellSpec::bytes)
        .sum();
    Error::InvalidArgument(format!(
        "a chunk of {} of {step_bytes} bytes is too large: a chunk has at most {MAX_CHUNK_BYTES} bytes; \
         {}",
        count(rows, "step"),
        advice(rows, padded_bytes(schema))
    ))
}

/// Bytes of the fixed-size cells of a chunk with one row, with the padding of each column.
pub(super) fn padded_bytes(schema: &Schema) -> usize {
    let cells = schema.cells.iter();
    cells
        .map(|cell| align_up(cell.bytes().min(MAX_CHUNK_BYTES + 1)))
        .sum()
}

/// What to do if a chunk of `rows` rows is too large. `row_bytes` is the size of a chunk with only one of these rows.
pub(super) fn advice(rows: usize, row_bytes: usize) -> &'static str {
    if rows == 1 || row_bytes > MAX_CHUNK_BYTES {
        "write smaller steps"
    } else {
        "use fewer steps per chunk: lower `chunk_length`, or call `insert` with fewer steps"
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::chunk::ChunkBuilder;
    use crate::dtype::DType;
    use crate::schema::{CellSpec, Layout};

    fn schema(dtype: DType, shape: &[usize]) -> Arc<Schema> {
        let cell = CellSpec {
            dtype,
            shape: shape.into(),
        };
        let layout = Arc::new(Layout {
            names: Box::new(["x".into()]),
            structure: "".into(),
        });
        let cells = Box::new([cell]);
        Arc::new(Schema { layout, cells })
    }

    #[test]
    fn a_chunk_that_is_too_large_may_need_fewer_or_smaller_steps() {
        for (bytes, rows, advice) in [
            (
                1 << 31,
                2,
                "; use fewer steps per chunk: lower `chunk_length`, or call `insert` with fewer steps",
            ),
            (MAX_CHUNK_BYTES + 1, 2, "; write smaller steps"),
            (MAX_CHUNK_BYTES + 1, 1, "; write smaller steps"),
        ] {
            let error = ChunkBuilder::new(schema(DType::Int8, &[bytes]), rows).unwrap_err();
            assert!(error.to_string().ends_with(advice), "{error}");
        }
    }

    #[test]
    fn a_string_that_is_too_large_may_need_fewer_or_smaller_steps() {
        for (capacity, advice) in [
            (
                2,
                "; use fewer steps per chunk: lower `chunk_length`, or call `insert` with fewer steps",
            ),
            (1, "; write smaller steps"),
        ] {
            let mut builder = ChunkBuilder::new(schema(DType::Bytes, &[]), capacity).unwrap();
            builder.string_bytes = MAX_CHUNK_BYTES;
            let error = builder.stage_string(0, &[0; 4]).unwrap_err().to_string();
            assert!(error.ends_with(advice), "{error}");
        }
    }
}
