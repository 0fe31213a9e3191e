//! Decodes dm-reverb's chunks.

use std::collections::HashMap;
use std::sync::Arc;

use engram_core::{
    CellSpec, Chunk, ChunkBuilder, Compression, Compressor, Layout, Origin, Schema, Signature,
    TableOptions,
};
use tonic::Status;

use crate::pb::tensorflow::ChunkTensor;
use crate::pb::{ChunkData, SequenceRange};
use crate::status::{invalid, status};
use crate::tensor_decoder::{TensorHeader, check_tensor, tensor_decode_work};

/// Maximum number of columns of a chunk or item.
pub(crate) const MAX_COLUMNS: usize = 16_384;

/// Maximum number of rows without elements in a chunk's string tensors, in addition to one row per byte of the chunk.
/// Such rows take no bytes on the wire, but memory once decoded.
const MAX_EMPTY_STRING_ROWS: usize = 256;

/// Maximum number of cached schemas; the cache is cleared when full.
const MAX_SCHEMAS: usize = 1024;

/// Maximum number of cached layouts; the cache is cleared when full.
const MAX_LAYOUTS: usize = 256;

/// Maximum number of columns of all cached schemas, and of all cached layouts.
const MAX_CACHED_COLUMNS: usize = 1 << 16;

/// Decodes the chunks of one stream or file; caches the schemas and layouts that they share.
#[derive(Debug, Default)]
pub struct ChunkDecoder {
    schemas: HashMap<Vec<CellSpec>, CachedSchema>,
    /// Layouts of plain tuples, by number of columns.
    layouts: HashMap<usize, Arc<Layout>>,
    /// The last signature used for the layout of an item, and that layout.
    signature_layout: Option<(Arc<Signature>, Arc<Layout>)>,
}

#[derive(Debug)]
struct CachedSchema {
    schema: Arc<Schema>,
    compressor: Compressor,
}

impl ChunkDecoder {
    /// Decodes a chunk.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an invalid chunk, `RESOURCE_EXHAUSTED` if memory for it cannot be allocated.
    pub fn decode(&mut self, message: &ChunkData) -> Result<Chunk, Status> {
        let tensors = tensors(message);
        if tensors.is_empty() || tensors.len() > MAX_COLUMNS {
            return Err(invalid(format!(
                "chunk {} must have 1 to {MAX_COLUMNS} tensors; got {}",
                message.chunk_key,
                tensors.len()
            )));
        }
        let headers: Vec<TensorHeader<'_>> =
            tensors.iter().map(check_tensor).collect::<Result<_, _>>()?;
        let rows = headers.first().map_or(0, |header| header.rows);
        if let Some(other) = headers.iter().find(|header| header.rows != rows) {
            return Err(invalid(format!(
                "chunk {} has tensors of {rows} and of {} rows; all must have the same number",
                message.chunk_key, other.rows
            )));
        }
        check_empty_rows(message.chunk_key, &headers)?;
        let cells: Vec<CellSpec> = headers.iter().map(|header| header.cell.clone()).collect();
        let layout = self.tuple_layout(cells.len());
        if !self.schemas.contains_key(&cells) {
            let columns: usize = self.schemas.keys().map(Vec::len).sum();
            if self.schemas.len() >= MAX_SCHEMAS || columns + cells.len() > MAX_CACHED_COLUMNS {
                self.schemas.clear();
            }
        }
        let cached = self
            .schemas
            .entry(cells)
            .or_insert_with_key(|cells| CachedSchema {
                schema: Arc::new(Schema {
                    layout,
                    cells: cells.as_slice().into(),
                }),
                compressor: Compressor::new(Compression::Auto),
            });
        let mut builder = ChunkBuilder::new(Arc::clone(&cached.schema), rows as usize)
            .map_err(|error| status(&error))?;
        for (column, header) in headers.iter().enumerate() {
            if header.cell.dtype.is_string() {
                header.read_strings(|row| {
                    builder
                        .push_string(column, row)
                        .map_err(|error| status(&error))
                })?;
                continue;
            }
            header.decompress(builder.column_mut(column))?;
            if message.delta_encoded {
                header.undo_delta(builder.column_mut(column));
            }
            builder.set_rows(column, rows);
        }
        let origin = origin(message.chunk_key, message.sequence_range.as_ref(), rows);
        builder
            .seal(origin, &mut cached.compressor)
            .map_err(|error| status(&error))
    }

    /// The layout of an item with this number of columns: that of the table's signature if the signature has as many
    /// columns, otherwise a plain tuple.
    pub(crate) fn item_layout(&mut self, table: &TableOptions, columns: usize) -> Arc<Layout> {
        let signature = table.signature.as_ref();
        let Some(signature) = signature.filter(|signature| signature.columns.len() == columns)
        else {
            return self.tuple_layout(columns);
        };
        match &self.signature_layout {
            Some((last, layout)) if Arc::ptr_eq(last, signature) => Arc::clone(layout),
            _ => {
                let names = signature.columns.iter();
                let layout = Arc::new(Layout {
                    names: names.map(|column| column.name.clone()).collect(),
                    structure: signature.structure.clone(),
                });
                self.signature_layout = Some((Arc::clone(signature), Arc::clone(&layout)));
                layout
            }
        }
    }

    /// The layout of a plain tuple.
    pub(crate) fn tuple_layout(&mut self, columns: usize) -> Arc<Layout> {
        if !self.layouts.contains_key(&columns) {
            let cached: usize = self.layouts.keys().sum();
            if self.layouts.len() >= MAX_LAYOUTS || cached + columns > MAX_CACHED_COLUMNS {
                self.layouts.clear();
            }
        }
        let layout = self.layouts.entry(columns);
        Arc::clone(layout.or_insert_with(|| Arc::new(tuple(columns))))
    }
}

fn tensors(message: &ChunkData) -> &[ChunkTensor] {
    match &message.data {
        Some(data) => &data.tensors,
        None => &message.deprecated_data,
    }
}

/// Bytes of memory of a chunk and its schema. A schema that several chunks share counts for each of them.
pub(crate) fn memory_bytes(chunk: &Chunk) -> usize {
    let (extents, cells) = (chunk.extents(), &chunk.schema().cells);
    let shapes = cells.iter().map(|cell| size_of_val(&*cell.shape));
    chunk.footprint() + size_of_val(extents) + size_of_val(&**cells) + shapes.sum::<usize>()
}

/// Estimated work of decoding a chunk, in bytes, from its declared sizes.
pub(crate) fn chunk_decode_work(message: &ChunkData) -> usize {
    let tensors = tensors(message).iter();
    tensors
        .map(tensor_decode_work)
        .fold(0, usize::saturating_add)
}

/// Rejects chunks with too many rows that take no bytes on the wire.
fn check_empty_rows(key: u64, headers: &[TensorHeader<'_>]) -> Result<(), Status> {
    let empty: usize = headers.iter().map(TensorHeader::empty_string_rows).sum();
    let stored: usize = headers.iter().map(TensorHeader::stored).sum();
    if empty <= MAX_EMPTY_STRING_ROWS.saturating_add(stored) {
        return Ok(());
    }
    Err(invalid(format!(
        "chunk {key} has {empty} empty string rows in {stored} bytes; at most {MAX_EMPTY_STRING_ROWS} plus one per \
         byte are allowed"
    )))
}

/// The layout of a plain tuple, with the structure encoded as Engram's Python client does.
fn tuple(columns: usize) -> Layout {
    Layout {
        names: (0..columns)
            .map(|column| column.to_string().into())
            .collect(),
        structure: format!(r#"{{"t":[{}]}}"#, vec!["0"; columns].join(",")).into(),
    }
}

/// The origin of a chunk. Replaces negative step numbers by 0, and a number of steps below `rows` by `rows`.
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
    use engram_core::DType;

    use super::*;
    use crate::pb::chunk_data::Data;
    use crate::tensor_encoder::encode_tensor;

    #[test]
    fn caches_are_bounded_by_columns() {
        let mut decoder = ChunkDecoder::default();
        for width in 0..10 {
            let cell = CellSpec {
                dtype: DType::Bool,
                shape: smallvec::smallvec![width],
            };
            let tensor = encode_tensor(&cell, 1, &vec![0; width]).unwrap();
            let message = ChunkData {
                data: Some(Data {
                    tensors: vec![tensor; MAX_COLUMNS - width],
                }),
                ..ChunkData::default()
            };
            decoder.decode(&message).unwrap();
            let schemas: usize = decoder.schemas.keys().map(Vec::len).sum();
            let layouts: usize = decoder.layouts.keys().sum();
            assert!(schemas <= MAX_CACHED_COLUMNS, "{schemas}");
            assert!(layouts <= MAX_CACHED_COLUMNS, "{layouts}");
        }
        // The caches have room for the widest chunk and others.
        assert!(decoder.schemas.len() > 1);
    }
}
