//! Decodes the columns and slices of items and window shapes.

use engram_core::{Slice, SpanColumn};

use super::insert_stream_error::{InsertStreamError, invalid};
use crate::pb;
use crate::wire::options::check_column_count;

/// The columns of a window shape or an item, and their slices.
type Columns = (Box<[SpanColumn]>, Box<[Slice]>);

/// Decodes columns and slices, and checks the slice counts.
pub(super) fn decode_columns(
    columns: &[pb::SpanColumn],
    slices: &[pb::Slice],
) -> Result<Columns, InsertStreamError> {
    check_column_count("an item or a window shape", columns.len())?;
    let mut end = 0_usize;
    let columns = columns.iter().map(|column| {
        let start = end;
        end += column.slice_count as usize;
        let Some(column_slices) = slices.get(start..end) else {
            return Err(wrong_slice_count(slices.len()));
        };
        let len = column_slices
            .iter()
            .map(|slice| u64::from(slice.len))
            .sum::<u64>();
        let to_u32 = |number: u64| {
            u32::try_from(number).map_err(|_| {
                invalid(format!(
                    "a column has {number} cells or slices; at most {} are allowed",
                    u32::MAX
                ))
            })
        };
        Ok(SpanColumn {
            first_slice: to_u32(start as u64)?,
            len: to_u32(len)?,
            squeeze: column.squeeze,
        })
    });
    let columns = columns.collect::<Result<_, _>>()?;
    if end != slices.len() {
        return Err(wrong_slice_count(slices.len()));
    }
    let slices = slices.iter().map(|slice| Slice {
        chunk: slice.chunk,
        column: slice.column,
        offset: slice.offset,
        len: slice.len,
    });
    Ok((columns, slices.collect()))
}

fn wrong_slice_count(slices: usize) -> InsertStreamError {
    invalid(format!(
        "the `slice_count`s of the columns do not add up to the {slices} slices"
    ))
}
