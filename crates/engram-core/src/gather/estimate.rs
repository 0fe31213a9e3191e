//! Estimates the bytes of a batch before it is gathered.

use super::{AsTrajectory, LengthPolicy, is_alike};
use crate::dtype::DType;
use crate::trajectory::Trajectory;

/// Estimates the bytes of a batch. Exact except for strings: all strings of a chunk's column count as equally long.
#[must_use]
pub fn estimate_bytes<T: AsTrajectory>(items: &[T], length_policy: LengthPolicy) -> usize {
    let Some(first) = items.first().map(AsTrajectory::trajectory) else {
        return 0;
    };
    let alike = items.iter().all(|item| is_alike(first, item.trajectory()));
    let columns = (0..first.columns()).map(|index| {
        if alike && first.column(index).cell.dtype != DType::String {
            return column_bytes(first, index).saturating_mul(items.len());
        }
        let bytes = items
            .iter()
            .map(|item| column_bytes(item.trajectory(), index));
        match length_policy {
            LengthPolicy::Ragged => bytes.fold(0, usize::saturating_add),
            LengthPolicy::Pad => bytes.max().unwrap_or(0).saturating_mul(items.len()),
        }
    });
    columns.fold(0, usize::saturating_add)
}

/// Estimates the bytes of an item's column; 0 if it has no column of this index.
fn column_bytes(item: &Trajectory, index: usize) -> usize {
    if index >= item.columns() {
        return 0;
    }
    let column = item.column(index);
    if column.cell.dtype != DType::String {
        return column.len.saturating_mul(column.cell.bytes());
    }
    let mut bytes = 0_usize;
    // The visitor does not fail.
    let _ = item.for_each_slice(index, |chunk, column, _, len| {
        let extent = &chunk.extents()[column];
        let row_bytes = extent.stored as usize / (extent.rows as usize).max(1);
        bytes = bytes.saturating_add(row_bytes.saturating_mul(len));
        Ok(())
    });
    bytes
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use smallvec::smallvec;

    use super::*;
    use crate::{CellSpec, ChunkBuilder, Compression, Compressor, Layout, Origin, Schema};

    /// Items of these numbers of rows. A row has three 4-byte numbers and a string.
    fn items(lens: &[u32]) -> Vec<Trajectory> {
        let layout = Arc::new(Layout {
            names: Box::new(["number".into(), "text".into()]),
            structure: "".into(),
        });
        let cells = Box::new([
            CellSpec {
                dtype: DType::Int32,
                shape: smallvec![3],
            },
            CellSpec {
                dtype: DType::String,
                shape: smallvec![],
            },
        ]);
        let mut builder = ChunkBuilder::new(Arc::new(Schema { layout, cells }), 10).unwrap();
        for _ in 0..10 {
            let text = [&6_u32.to_le_bytes()[..], b"abcdef"].concat();
            builder.push_string(1, &text).unwrap();
        }
        builder.set_rows(0, 10);
        let mut compressor = Compressor::new(Compression::Off);
        let chunk = Arc::new(builder.seal(Origin::default(), &mut compressor).unwrap());
        let rows = |len: &u32| Trajectory::Rows {
            chunk: Arc::clone(&chunk),
            offset: 0,
            len: *len,
            squeeze: false,
        };
        lens.iter().map(rows).collect()
    }

    #[test]
    fn items_of_any_lengths_are_estimated() {
        // Its offset in the column, its length and its content.
        let text_bytes = 4 + 4 + 6;
        for (lens, policy, rows) in [
            (&[][..], LengthPolicy::Ragged, 0),
            (&[2, 2, 2], LengthPolicy::Ragged, 6),
            (&[1, 4], LengthPolicy::Ragged, 5),
            (&[1, 4], LengthPolicy::Pad, 8),
        ] {
            let bytes = estimate_bytes(&items(lens), policy);
            assert_eq!(bytes, rows * (12 + text_bytes), "{lens:?} {policy:?}");
        }
    }
}
