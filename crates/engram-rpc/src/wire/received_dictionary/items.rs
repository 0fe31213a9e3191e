//! A message's items, out of the chunks and shapes that their stream has told of.

use std::collections::HashSet;
use std::sync::Arc;

use engram_core::{Chunk, NewItem, Slice, SpanColumn, Spans, Trajectory};

use super::{InsertStreamError, ReceivedDictionary, invalid};
use crate::pb;
use crate::pb::items::Trajectories;
use crate::wire::options::check_columns;
use crate::wire::{decode_f64s, decode_layout, decode_u32s, decode_u64s};

/// Slices that the items of one message may have in all, each counted for each item: checking
/// them takes time that a short message would not pay for.
pub(in crate::wire) const MAX_SLICES: usize = 1 << 26;

/// The columns of a shape or an item, and their slices.
type Columns = (Box<[SpanColumn]>, Box<[Slice]>);

impl ReceivedDictionary {
    /// The items of a message. Their parts are there; whether they fit together is not checked.
    ///
    /// # Errors
    /// [`InsertStreamError`].
    pub fn decode_items(&self, message: &pb::Items) -> Result<Vec<NewItem>, InsertStreamError> {
        let keys = decode_u64s("keys_le", &message.keys_le)?;
        let priorities = decode_f64s("priorities_le", &message.priorities_le)?;
        if priorities.len() != 1 && priorities.len() != keys.len() {
            return Err(invalid(format!(
                "{} priorities came for {} items; there is one for all or one each",
                priorities.len(),
                keys.len()
            )));
        }
        let trajectories = self.trajectories(message, keys.len())?;
        let priorities = priorities.iter().copied().cycle();
        let items = keys.into_iter().zip(trajectories).zip(priorities);
        let items = items.map(|((key, trajectory), priority)| NewItem {
            key,
            trajectory,
            priority,
        });
        Ok(items.collect())
    }

    fn trajectories(
        &self,
        message: &pb::Items,
        n: usize,
    ) -> Result<Vec<Trajectory>, InsertStreamError> {
        Ok(match &message.trajectories {
            Some(Trajectories::Rows(pb::Rows { len, squeeze })) => {
                let rows = self.places(message, n)?;
                rows.map(|place| {
                    place.map(|(chunk, offset)| Trajectory::Rows {
                        chunk: Arc::clone(chunk),
                        offset,
                        len: *len,
                        squeeze: *squeeze,
                    })
                })
                .collect::<Result<_, _>>()?
            }
            Some(Trajectories::WindowShape(id)) => {
                let shape = self.shapes.get("shape", *id)?;
                if n.saturating_mul(shape.slices.len()) > MAX_SLICES {
                    return Err(InsertStreamError::LimitExceeded(format!(
                        "{n} items of {} slices each came in one message; at most {MAX_SLICES} \
                         slices in all are allowed: send fewer at a time",
                        shape.slices.len()
                    )));
                }
                let windows = self.places(message, n)?;
                windows
                    .map(|place| {
                        place.map(|(chunk, offset)| Trajectory::Window {
                            chunk: Arc::clone(chunk),
                            offset,
                            shape: Arc::clone(shape),
                        })
                    })
                    .collect::<Result<_, _>>()?
            }
            Some(Trajectories::Spans(spans)) if n == 1 => vec![self.spans(spans)?],
            Some(Trajectories::Spans(_)) => {
                return Err(invalid(format!(
                    "{n} items came with the slices of one; there is one at a time"
                )));
            }
            None => {
                return Err(invalid(
                    "items of no form came; they are `rows`, of a `shape`, or `spans`".into(),
                ));
            }
        })
    }

    /// Each item's chunk and first row.
    fn places<'a>(
        &'a self,
        message: &pb::Items,
        n: usize,
    ) -> Result<
        impl Iterator<Item = Result<(&'a Arc<Chunk>, u32), InsertStreamError>>,
        InsertStreamError,
    > {
        let chunks = decode_u32s("chunks_le", &message.chunks_le)?;
        let offsets = decode_u32s("offsets_le", &message.offsets_le)?;
        if chunks.len() != n || offsets.len() != n {
            return Err(invalid(format!(
                "{} chunks and {} rows came for {n} items; there is one of each per item",
                chunks.len(),
                offsets.len()
            )));
        }
        // Items side by side are mostly of one chunk.
        let mut last: Option<(u32, &Arc<Chunk>)> = None;
        Ok(chunks.into_iter().zip(offsets).map(move |(id, offset)| {
            let chunk = match last {
                Some((last, chunk)) if last == id => chunk,
                _ => self.find_chunk(id)?,
            };
            last = Some((id, chunk));
            Ok((chunk, offset))
        }))
    }

    fn spans(&self, spans: &pb::Spans) -> Result<Trajectory, InsertStreamError> {
        let mut seen = HashSet::new();
        let chunks = spans.chunks.iter().map(|id| {
            if seen.insert(*id) {
                return self.find_chunk(*id).cloned();
            }
            Err(invalid(format!(
                "an item names chunk {id} twice; it names each once"
            )))
        });
        let chunks = chunks.collect::<Result<_, _>>()?;
        let (columns, slices) = columns(&spans.columns, &spans.slices)?;
        Ok(Trajectory::Spans(Arc::new(Spans {
            layout: Arc::new(decode_layout(spans.layout.clone())?),
            chunks,
            columns,
            slices,
        })))
    }
}

/// Columns and their slices, as many as they say.
pub(super) fn columns(
    columns: &[pb::SpanColumn],
    slices: &[pb::Slice],
) -> Result<Columns, InsertStreamError> {
    check_columns("an item or a shape", columns.len())?;
    let mut next = 0_usize;
    let columns = columns.iter().map(|column| {
        let first = next;
        next += column.slice_count as usize;
        let Some(own) = slices.get(first..next) else {
            return Err(miscounted(slices.len()));
        };
        let len = own.iter().map(|slice| u64::from(slice.len)).sum::<u64>();
        let narrow = |number: u64| {
            u32::try_from(number).map_err(|_| {
                invalid(format!(
                    "a column has {number} cells or slices; at most {} are allowed",
                    u32::MAX
                ))
            })
        };
        Ok(SpanColumn {
            first_slice: narrow(first as u64)?,
            len: narrow(len)?,
            squeeze: column.squeeze,
        })
    });
    let columns = columns.collect::<Result<_, _>>()?;
    if next != slices.len() {
        return Err(miscounted(slices.len()));
    }
    let slices = slices.iter().map(|slice| Slice {
        chunk: slice.chunk,
        column: slice.column,
        offset: slice.offset,
        len: slice.len,
    });
    Ok((columns, slices.collect()))
}

fn miscounted(slices: usize) -> InsertStreamError {
    invalid(format!(
        "{slices} slices came, which is not how many their columns say they have"
    ))
}
