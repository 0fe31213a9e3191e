//! Decodes the items of a message, which refer to the stream's chunks and window shapes.

use std::collections::HashSet;
use std::sync::Arc;

use engram_core::text::count;
use engram_core::{Chunk, NewItem, Spans, Trajectory};

use super::ReceivedDictionary;
use super::columns::decode_columns;
use super::insert_stream_error::{InsertStreamError, invalid};
use crate::pb;
use crate::pb::items::Trajectories;
use crate::wire::{decode_f64s, decode_u32s, decode_u64s};

/// Maximum number of slices of all items of one message, if they have a window shape: each item counts all slices of
/// the shape. Without a limit, a short message could take very long to check.
pub(in crate::wire) const MAX_SLICES: usize = 1 << 26;

impl ReceivedDictionary {
    /// Returns the items of a message. Checks that the chunks and shapes exist, but not that the
    /// slices fit their chunks.
    ///
    /// # Errors
    /// [`InsertStreamError`].
    pub fn decode_items(&mut self, message: &pb::Items) -> Result<Vec<NewItem>, InsertStreamError> {
        let keys = decode_u64s("keys_le", &message.keys_le)?;
        let priorities = decode_f64s("priorities_le", &message.priorities_le)?;
        if priorities.len() != 1 && priorities.len() != keys.len() {
            return Err(invalid(format!(
                "`priorities_le` has length {} for {}; expected one priority for all items or one each",
                priorities.len(),
                count(keys.len(), "item")
            )));
        }
        let trajectories = self.decode_trajectories(message, keys.len())?;
        let priorities = priorities.iter().copied().cycle();
        let items = keys.into_iter().zip(trajectories).zip(priorities);
        let items = items.map(|((key, trajectory), priority)| NewItem {
            key,
            trajectory,
            priority,
        });
        Ok(items.collect())
    }

    /// Decodes the trajectories of the `n` items of a message.
    fn decode_trajectories(
        &mut self,
        message: &pb::Items,
        n: usize,
    ) -> Result<Vec<Trajectory>, InsertStreamError> {
        Ok(match &message.trajectories {
            Some(Trajectories::Rows(pb::Rows { len, squeeze })) => {
                let rows = self.first_rows(message, n)?;
                rows.map(|first_row| {
                    first_row.map(|(chunk, offset)| Trajectory::Rows {
                        chunk: Arc::clone(chunk),
                        offset,
                        len: *len,
                        squeeze: *squeeze,
                    })
                })
                .collect::<Result<_, _>>()?
            }
            Some(Trajectories::WindowShape(id)) => {
                let shape = self.window_shapes.get("window shape", *id)?;
                if n.saturating_mul(shape.slices.len()) > MAX_SLICES {
                    return Err(InsertStreamError::LimitExceeded(format!(
                        "the message has {n} items of {} slices each; at most {MAX_SLICES} slices \
                         in total are allowed; send fewer items per message",
                        shape.slices.len()
                    )));
                }
                let windows = self.first_rows(message, n)?;
                windows
                    .map(|first_row| {
                        first_row.map(|(chunk, offset)| Trajectory::Window {
                            chunk: Arc::clone(chunk),
                            offset,
                            shape: Arc::clone(shape),
                        })
                    })
                    .collect::<Result<_, _>>()?
            }
            Some(Trajectories::Spans(spans)) if n == 1 => vec![self.decode_spans(spans)?],
            Some(Trajectories::Spans(_)) => {
                return Err(invalid(format!(
                    "`spans` must describe exactly 1 item; got {n} keys"
                )));
            }
            None => {
                return Err(invalid(
                    "the items have no trajectories; one of `rows`, `window_shape` and `spans` is \
                     required"
                        .into(),
                ));
            }
        })
    }

    /// Returns each item's chunk and first row.
    fn first_rows<'a>(
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
                "`chunks_le` has {} and `offsets_le` {} numbers for {}; expected one per item",
                chunks.len(),
                offsets.len(),
                count(n, "item")
            )));
        }
        // Neighbouring items are mostly in the same chunk.
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

    /// Decodes the trajectory of an item that consists of any slices.
    fn decode_spans(&mut self, spans: &pb::Spans) -> Result<Trajectory, InsertStreamError> {
        let mut listed = HashSet::new();
        let chunks = spans.chunks.iter().map(|id| {
            if listed.insert(*id) {
                return self.find_chunk(*id).cloned();
            }
            Err(invalid(format!(
                "`spans` lists chunk {id} twice; list each chunk once"
            )))
        });
        let chunks = chunks.collect::<Result<_, _>>()?;
        let (columns, slices) = decode_columns(&spans.columns, &spans.slices)?;
        Ok(Trajectory::Spans(Arc::new(Spans {
            layout: self.decode_layout(spans.layout.as_ref())?,
            chunks,
            columns: columns.into(),
            slices,
        })))
    }
}
