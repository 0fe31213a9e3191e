//! Random items of a chunk, valid or not.

use std::sync::Arc;

use engram_core::{Chunk, Layout, Slice, SpanColumn, Spans, Trajectory, WindowShape};
use proptest::prelude::*;

use crate::untrusted::parts::{low_32_bits, number};

/// Parts of an item, valid or not.
#[derive(Clone, Debug)]
pub(crate) struct ItemSpec {
    /// 0: rows, 1: window, 2: spans.
    kind: usize,
    offset: u32,
    len: u32,
    squeeze: bool,
    columns: Vec<SpanColumn>,
    slices: Vec<Slice>,
}

/// Mostly valid items with one or two slices per column.
pub(crate) fn item() -> impl Strategy<Value = ItemSpec> {
    let small = || prop_oneof![20 => 0..3_u64, 1 => number()].prop_map(low_32_bits);
    let slice = (small(), 1..3_u32, small(), any::<u8>());
    let columns = prop::collection::vec((prop::collection::vec(slice, 1..3), small()), 0..4);
    let numbers = (0..3_usize, small(), small(), prop::bool::weighted(0.2));
    (numbers, columns).prop_map(|((kind, offset, len, squeeze), columns)| {
        let (mut spans, mut slices) = (Vec::new(), Vec::<Slice>::new());
        for (index, (column_slices, random)) in columns.iter().enumerate() {
            let first_slice = slices.len();
            let index = u32::try_from(index).unwrap();
            slices.extend(
                column_slices
                    .iter()
                    // A few slices refer to a random chunk or column.
                    .map(|(offset, len, random, choice)| Slice {
                        chunk: if *choice < 20 { *random } else { 0 },
                        column: if *choice % 16 == 1 { *random } else { index },
                        offset: *offset,
                        len: *len,
                    }),
            );
            let sum = slices[first_slice..].iter().map(|slice| slice.len).sum();
            let first_slice = u32::try_from(first_slice).unwrap();
            spans.push(SpanColumn {
                first_slice: if random % 8 == 7 {
                    *random
                } else {
                    first_slice
                },
                len: if random % 8 == 6 { *random } else { sum },
                squeeze: squeeze && sum == 1,
            });
        }
        ItemSpec {
            kind,
            offset,
            len,
            squeeze: squeeze && len == 1,
            columns: spans,
            slices,
        }
    })
}

impl ItemSpec {
    /// Returns the item. It refers to cells of `chunk` and, if it consists of spans, of `other`.
    pub(crate) fn build(&self, chunk: &Arc<Chunk>, other: &Arc<Chunk>) -> Trajectory {
        let names = (0..self.columns.len()).map(|index| format!("c{index}").into());
        let layout = Arc::new(Layout {
            names: names.collect(),
            structure: "".into(),
        });
        let (columns, slices): (Box<[SpanColumn]>, _) =
            (self.columns.clone().into(), self.slices.clone().into());
        match self.kind {
            0 => Trajectory::Rows {
                chunk: Arc::clone(chunk),
                offset: self.offset,
                len: self.len,
                squeeze: self.squeeze,
            },
            1 => Trajectory::Window {
                chunk: Arc::clone(chunk),
                offset: self.offset,
                shape: Arc::new(WindowShape {
                    layout,
                    columns,
                    slices,
                }),
            },
            _ => Trajectory::Spans(Arc::new(Spans {
                layout,
                chunks: [Arc::clone(chunk), Arc::clone(other)].into(),
                columns: columns.into(),
                slices,
            })),
        }
    }
}
