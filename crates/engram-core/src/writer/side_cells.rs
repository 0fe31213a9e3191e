//! Cells that belong to no row of the open chunks: first observations, and returns of an episode's last transitions.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::aligned::{AlignedBytes, align_up};
use crate::chunk::{Chunk, Extent, Origin};
use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::schema::Schema;

/// The side cells of the open chunks. They are sealed together with the open chunks, as one more chunk, in which
/// columns have different numbers of rows.
#[derive(Debug)]
pub(super) struct SideCells {
    schema: Arc<Schema>,
    /// Per column, its cells end to end.
    columns: Vec<Vec<u8>>,
    /// Per column, the number of its cells.
    rows: Vec<u32>,
    /// Id of the first cell's episode, the only one that the sealed chunk lists; `None` while there are no cells.
    episode: Option<u64>,
}

impl SideCells {
    pub(super) fn new(schema: Arc<Schema>) -> Self {
        Self {
            columns: vec![Vec::new(); schema.cells.len()],
            rows: vec![0; schema.cells.len()],
            episode: None,
            schema,
        }
    }

    /// Adds a cell of a fixed-size column, and returns its row. `episode` is the id of its episode.
    pub(super) fn push(&mut self, column: usize, cell: &[u8], episode: u64) -> u32 {
        self.episode.get_or_insert(episode);
        self.columns[column].extend_from_slice(cell);
        self.rows[column] += 1;
        self.rows[column] - 1
    }

    /// Number of bytes of all cells.
    pub(super) fn bytes(&self) -> usize {
        self.columns.iter().map(Vec::len).sum()
    }

    /// Returns the chunk of all cells; `None` without cells. `first_step` is the first step of the open chunks.
    ///
    /// # Errors
    /// Those of [`build_chunk`].
    pub(super) fn seal(&self, key: u64, first_step: u64) -> Result<Option<Arc<Chunk>>> {
        let Some(episode) = self.episode else {
            return Ok(None);
        };
        let columns = self.columns.iter().zip(&self.rows);
        let columns = columns.map(|(cells, rows)| (cells.as_slice(), cells.len(), *rows));
        let origin = Origin {
            key,
            episodes: smallvec![episode],
            first_step,
            steps: self.rows.iter().copied().max().unwrap_or(0),
        };
        build_chunk(&self.schema, origin, columns).map(Some)
    }
}

/// Returns a chunk of `rows` rows of zeros, which pad items.
///
/// # Errors
/// Those of [`build_chunk`].
pub(super) fn zero_chunk(
    schema: &Arc<Schema>,
    rows: u32,
    key: u64,
    episode: u64,
) -> Result<Arc<Chunk>> {
    let columns = (schema.cells.iter()).map(|cell| (&[][..], cell.bytes() * rows as usize, rows));
    let origin = Origin {
        key,
        episodes: smallvec![episode],
        first_step: 0,
        steps: rows,
    };
    build_chunk(schema, origin, columns)
}

/// Builds a chunk of fixed-size columns. Each of `columns` has the first bytes of a column, the number of all its
/// bytes, of which the others are zeros, and its number of rows.
///
/// # Errors
/// [`Error::InvalidArgument`] if the chunk would be too large, [`Error::OutOfMemory`].
fn build_chunk<'a>(
    schema: &Arc<Schema>,
    origin: Origin,
    columns: impl Iterator<Item = (&'a [u8], usize, u32)> + Clone,
) -> Result<Arc<Chunk>> {
    let bytes = columns.clone().map(|(_, bytes, _)| align_up(bytes)).sum();
    let mut payload = AlignedBytes::zeroed(bytes)
        .ok_or_else(|| Error::out_of_memory(format_args!("a chunk"), Some(bytes)))?;
    let mut extents = SmallVec::new();
    let mut offset = 0;
    for (cells, bytes, rows) in columns {
        payload[offset..offset + cells.len()].copy_from_slice(cells);
        // A number that does not fit makes `from_parts` reject the chunk as too large.
        let to_u32 = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        extents.push(Extent {
            offset: to_u32(offset),
            stored: to_u32(bytes),
            rows,
            codec: Codec::Raw,
        });
        offset += align_up(bytes);
    }
    Chunk::from_parts(origin, Arc::clone(schema), extents, payload).map(Arc::new)
}
