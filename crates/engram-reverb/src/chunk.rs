//! dm-reverb's chunks as the engine's, those of one stream or file.

use std::collections::HashMap;
use std::sync::Arc;

use engram_core::{
    CellSpec, Chunk, ChunkBuilder, Compression, Compressor, DType, Layout, Origin, Schema,
    Signature, TableOptions,
};
use tonic::Status;

use crate::bytes_in::{Claim, claim, work};
use crate::pb::tensorflow::TensorProto;
use crate::pb::{ChunkData, SequenceRange};
use crate::status::{invalid, status};

/// Columns that a chunk or an item may have.
pub(crate) const MAX_COLUMNS: usize = 16_384;

/// Rows of strings of no elements that the tensors of a chunk may have together, beside as many as it has bytes: they
/// cost their sender nothing.
const MAX_FREE: usize = 256;

/// Kinds of chunks that are remembered; beyond, all are made anew.
const REMEMBERED: usize = 1024;

/// Layouts by their number of columns, that are remembered.
const LAYOUTS: usize = 256;

/// Columns of all kinds, or of all layouts, that are remembered.
const REMEMBERED_COLUMNS: usize = 1 << 16;

/// Makes chunks, and shares what many of them have in common.
#[derive(Debug, Default)]
pub struct Chunks {
    kinds: HashMap<Vec<CellSpec>, Kind>,
    layouts: HashMap<usize, Arc<Layout>>,
    /// The last table's signature that named columns, and their names.
    named: Option<(Arc<Signature>, Arc<Layout>)>,
}

#[derive(Debug)]
struct Kind {
    schema: Arc<Schema>,
    compressor: Compressor,
}

impl Chunks {
    /// The chunk that a message describes.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` where it makes no sense, `RESOURCE_EXHAUSTED` where there is no memory.
    pub fn make(&mut self, message: &ChunkData) -> Result<Chunk, Status> {
        let tensors = tensors(message);
        if tensors.is_empty() || tensors.len() > MAX_COLUMNS {
            return Err(invalid(format!(
                "chunk {} has {} tensors; it has 1 to {MAX_COLUMNS}",
                message.chunk_key,
                tensors.len()
            )));
        }
        let claims: Vec<Claim<'_>> = tensors.iter().map(claim).collect::<Result<_, _>>()?;
        let rows = claims.first().map_or(0, |claim| claim.rows);
        if let Some(other) = claims.iter().find(|claim| claim.rows != rows) {
            return Err(invalid(format!(
                "chunk {} has tensors of {rows} rows and of {}; all have the same",
                message.chunk_key, other.rows
            )));
        }
        check_free(message.chunk_key, &claims)?;
        let cells: Vec<CellSpec> = claims.iter().map(|claim| claim.cell.clone()).collect();
        let layout = self.layout(cells.len());
        if !self.kinds.contains_key(&cells) {
            let columns: usize = self.kinds.keys().map(Vec::len).sum();
            if self.kinds.len() >= REMEMBERED || columns + cells.len() > REMEMBERED_COLUMNS {
                self.kinds.clear();
            }
        }
        let kind = self.kinds.entry(cells).or_insert_with_key(|cells| Kind {
            schema: Arc::new(Schema {
                layout,
                cells: cells.as_slice().into(),
            }),
            compressor: Compressor::new(Compression::Auto),
        });
        let mut builder = ChunkBuilder::new(Arc::clone(&kind.schema), rows as usize)
            .map_err(|error| status(&error))?;
        for (column, claim) in claims.iter().enumerate() {
            if claim.cell.dtype == DType::String {
                claim.read_strings(|row| {
                    builder
                        .push_string(column, row)
                        .map_err(|error| status(&error))
                })?;
                continue;
            }
            claim.read(builder.column_mut(column))?;
            if message.delta_encoded {
                claim.undo_delta(builder.column_mut(column));
            }
            builder.set_rows(column, rows);
        }
        let origin = origin(message.chunk_key, message.sequence_range.as_ref(), rows);
        builder
            .seal(origin, &mut kind.compressor)
            .map_err(|error| status(&error))
    }

    /// How an item of so many columns nests: as its table's signature does, where that has as many, and as a
    /// plain tuple otherwise.
    pub(crate) fn layout_in(&mut self, table: &TableOptions, columns: usize) -> Arc<Layout> {
        let signature = table.signature.as_ref();
        let Some(signature) = signature.filter(|asked| asked.columns.len() == columns) else {
            return self.layout(columns);
        };
        match &self.named {
            Some((known, layout)) if Arc::ptr_eq(known, signature) => Arc::clone(layout),
            _ => {
                let names = signature.columns.iter();
                let layout = Arc::new(Layout {
                    names: names.map(|column| column.name.clone()).collect(),
                    structure: signature.structure.clone(),
                });
                self.named = Some((Arc::clone(signature), Arc::clone(&layout)));
                layout
            }
        }
    }

    /// A plain tuple of so many columns.
    pub(crate) fn layout(&mut self, columns: usize) -> Arc<Layout> {
        if !self.layouts.contains_key(&columns) {
            let all: usize = self.layouts.keys().sum();
            if self.layouts.len() >= LAYOUTS || all + columns > REMEMBERED_COLUMNS {
                self.layouts.clear();
            }
        }
        let layout = self.layouts.entry(columns);
        Arc::clone(layout.or_insert_with(|| Arc::new(tuple(columns))))
    }
}

fn tensors(message: &ChunkData) -> &[TensorProto] {
    match &message.data {
        Some(data) => &data.tensors,
        None => &message.deprecated_data,
    }
}

/// Bytes that a chunk keeps, with its columns' descriptions. Those that several chunks share count for each.
pub(crate) fn weight(chunk: &Chunk) -> usize {
    let (extents, cells) = (chunk.extents(), &chunk.schema().cells);
    let shapes = cells.iter().map(|cell| size_of_val(&*cell.shape));
    chunk.footprint() + size_of_val(extents) + size_of_val(&**cells) + shapes.sum::<usize>()
}

/// About how much there is to do for a chunk, by what it says of itself.
pub(crate) fn work_of(message: &ChunkData) -> usize {
    let tensors = tensors(message).iter();
    tensors.map(work).fold(0, usize::saturating_add)
}

/// Rows that cost nothing are few.
fn check_free(key: u64, claims: &[Claim<'_>]) -> Result<(), Status> {
    let free: usize = claims.iter().map(Claim::free_rows).sum();
    let stored: usize = claims.iter().map(Claim::stored).sum();
    if free <= MAX_FREE.saturating_add(stored) {
        return Ok(());
    }
    Err(invalid(format!(
        "chunk {key} has {free} rows of strings of no elements in {stored} bytes; at most {MAX_FREE} and one for each \
         byte are allowed"
    )))
}

/// The layout of a plain tuple, in the words of Engram's Python part.
fn tuple(columns: usize) -> Layout {
    Layout {
        names: (0..columns).map(|at| at.to_string().into()).collect(),
        structure: format!(r#"{{"t":[{}]}}"#, vec!["0"; columns].join(",")).into(),
    }
}

/// Where a chunk's steps are from. Their numbers are believed as far as they can be true.
fn origin(key: u64, range: Option<&SequenceRange>, rows: u32) -> Origin {
    let (first, steps) = range.map_or((0, 0), |range| {
        let first = u64::try_from(range.start).unwrap_or(0);
        let last = u64::try_from(range.end).unwrap_or(0);
        (first, (last + 1).saturating_sub(first))
    });
    Origin {
        key,
        episodes: smallvec::smallvec![range.map_or(0, |range| range.episode_id)],
        first_step: first,
        steps: u32::try_from(steps).unwrap_or(0).max(rows),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes_out::compress;
    use crate::pb::chunk_data::Data;

    #[test]
    fn what_is_remembered_is_bounded_by_its_columns() {
        let mut chunks = Chunks::default();
        for width in 0..10 {
            let cell = CellSpec {
                dtype: DType::Bool,
                shape: smallvec::smallvec![width],
            };
            let tensor = compress(&cell, 1, &vec![0; width]).unwrap();
            let message = ChunkData {
                data: Some(Data {
                    tensors: vec![tensor; MAX_COLUMNS - width],
                }),
                ..ChunkData::default()
            };
            chunks.make(&message).unwrap();
            let kinds: usize = chunks.kinds.keys().map(Vec::len).sum();
            let layouts: usize = chunks.layouts.keys().sum();
            assert!(kinds <= REMEMBERED_COLUMNS, "{kinds}");
            assert!(layouts <= REMEMBERED_COLUMNS, "{layouts}");
        }
        // A chunk as wide as any, and others, have room.
        assert!(chunks.kinds.len() > 1);
    }
}
