//! Estimates the bytes of a batch before it is gathered.

use std::sync::Arc;

use super::alike::are_alike;
use super::columns::{AsTrajectory, Columns, LengthPolicy};
use super::gather_compared;
use crate::chunk::string_cells;
use crate::dtype::DType;
use crate::error::Result;
use crate::pool::Pool;
use crate::trajectory::Trajectory;

/// What is known of a batch before it is gathered.
#[derive(Clone, Copy, Debug)]
pub struct Estimate {
    /// Bytes of its columns.
    pub bytes: usize,
    length_policy: LengthPolicy,
    /// The result of [`are_alike`] for its items.
    alike: bool,
}

/// Estimates the bytes of a batch.
#[must_use]
pub fn estimate<T: AsTrajectory>(items: &[T], length_policy: LengthPolicy) -> Estimate {
    let alike = are_alike(items);
    let first = items.first().map(AsTrajectory::trajectory);
    let columns = first.iter().flat_map(|first| {
        (0..first.column_count())
            .map(|index| batch_column_bytes(items, index, length_policy, alike))
    });
    Estimate {
        bytes: columns.fold(0, usize::saturating_add),
        length_policy,
        alike,
    }
}

impl Estimate {
    /// Gathers the batch as [`gather`](super::gather) does. `items` must be those that were estimated.
    ///
    /// # Errors
    /// Those of [`gather`](super::gather).
    pub fn gather<T: AsTrajectory>(&self, items: &[T], pool: &Arc<Pool>) -> Result<Columns> {
        gather_compared(items, self.alike, self.length_policy, pool)
    }
}

/// Bytes of a column of a batch, which has at least one item. Items without this column count as empty.
fn batch_column_bytes<T: AsTrajectory>(
    items: &[T],
    index: usize,
    length_policy: LengthPolicy,
    alike: bool,
) -> usize {
    let cell = items[0].trajectory().column(index).cell;
    let columns = || {
        let items = items.iter().map(AsTrajectory::trajectory);
        items.filter(|item| index < item.column_count())
    };
    if alike && !cell.dtype.is_string() {
        let len = items[0].trajectory().column(index).len;
        return len.saturating_mul(cell.bytes()).saturating_mul(items.len());
    }
    let bytes = columns().map(|item| column_bytes(item, index));
    let bytes = bytes.fold(0, usize::saturating_add);
    if length_policy == LengthPolicy::Ragged {
        return bytes;
    }
    let lengths = columns().map(|item| item.column(index).len);
    let (longest, sum) = lengths.fold((0_usize, 0_usize), |(longest, sum), len| {
        (longest.max(len), sum.saturating_add(len))
    });
    // Strings are padded with empty ones.
    let cell_bytes = match cell.dtype {
        DType::Bytes | DType::Text => cell.elements().saturating_mul(size_of::<u32>()),
        _ => cell.bytes(),
    };
    let padding = longest.saturating_mul(items.len()).saturating_sub(sum);
    bytes.saturating_add(padding.saturating_mul(cell_bytes))
}

/// Bytes of an item's column.
fn column_bytes(item: &Trajectory, index: usize) -> usize {
    let column = item.column(index);
    if !column.cell.dtype.is_string() {
        return column.len.saturating_mul(column.cell.bytes());
    }
    let mut bytes = 0_usize;
    // Does not fail: the offsets of strings were checked when the chunk was made.
    let _ = item.for_each_slice(index, |chunk, column, first, len| {
        let rows = chunk.extents()[column].rows as usize;
        let cells = string_cells(chunk.stored(column), rows, first, len)?;
        bytes = bytes.saturating_add(cells.len());
        Ok(())
    });
    bytes
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;
    use crate::gather::ColumnData;
    use crate::{CellSpec, ChunkBuilder, Compression, Compressor, Layout, Origin, Schema};

    /// Items of these lengths, which begin at the first row of a chunk. Each row has three numbers of 4 bytes, and a
    /// string: `abcdef`, or 1,000 bytes in the last row.
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
                dtype: DType::Bytes,
                shape: smallvec![],
            },
        ]);
        let mut builder = ChunkBuilder::new(Arc::new(Schema { layout, cells }), 10).unwrap();
        for row in 0..10 {
            let text = if row < 9 {
                &b"abcdef"[..]
            } else {
                &[b'x'; 1_000]
            };
            let len = u32::try_from(text.len()).unwrap();
            let text = [&len.to_le_bytes()[..], text].concat();
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
    fn the_bytes_of_items_of_any_lengths_are_exact() {
        // Bytes in one row. A string has its length and its content; a padding string has only its length.
        let (numbers, text, padding) = (12, 4 + 6, 4);
        for (lens, policy, bytes) in [
            (&[][..], LengthPolicy::Ragged, 0),
            (&[2, 2, 2], LengthPolicy::Ragged, 6 * (numbers + text)),
            (&[1, 4], LengthPolicy::Ragged, 5 * (numbers + text)),
            (
                &[1, 4],
                LengthPolicy::Pad,
                8 * numbers + 5 * text + 3 * padding,
            ),
            // Only an item of all 10 rows has the long string.
            (
                &[1, 10],
                LengthPolicy::Ragged,
                11 * numbers + 10 * text + 1_004,
            ),
        ] {
            let items = items(lens);
            let estimate = estimate(&items, policy);
            assert_eq!(estimate.bytes, bytes, "{lens:?} {policy:?}");
            if let Ok(batch) = estimate.gather(&items, &Arc::default()) {
                let columns = batch.columns.iter().map(|column| match &column.data {
                    ColumnData::Bytes(bytes) => bytes.len(),
                    ColumnData::Strings(bytes) => bytes.len(),
                });
                assert_eq!(columns.sum::<usize>(), bytes);
            }
        }
    }
}
