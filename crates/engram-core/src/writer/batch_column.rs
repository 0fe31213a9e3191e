//! One step of many environments, column by column.

use super::column_text::column_of;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::schema::Schema;
use crate::shared_bytes::SharedBytes;
use crate::text::count;

/// One column of one step of all environments.
#[derive(Clone, Copy, Debug)]
pub enum BatchColumn<'a> {
    /// Cells of fixed size, environment after environment.
    Cells(SharedBytes<'a>),
    /// One encoded cell per environment: per element a little-endian `u32` length and the bytes.
    Strings(&'a [Vec<u8>]),
}

impl<'a> BatchColumn<'a> {
    /// Cells of fixed size in memory that is not modified while it is borrowed.
    #[must_use]
    pub fn cells(bytes: &'a [u8]) -> Self {
        Self::Cells(bytes.into())
    }

    /// Bytes that the strings take in a chunk, including their offsets. 0 for cells of fixed size.
    pub(super) fn string_bytes(&self) -> usize {
        match self {
            Self::Cells(_) => 0,
            Self::Strings(cells) => cells.iter().map(|cell| cell.len() + 4).sum(),
        }
    }
}

/// Checks one step of `envs` environments against the schema, and the length of `episode_ends`.
pub(super) fn check(
    columns: &[BatchColumn<'_>],
    episode_ends: Option<&[bool]>,
    schema: &Schema,
    envs: usize,
) -> Result<()> {
    if columns.len() != schema.cells.len() {
        return Err(Error::Signature(format!(
            "the step must have {}; got {}",
            count(schema.cells.len(), "column"),
            columns.len()
        )));
    }
    let specs = schema.cells.iter().zip(&schema.layout.names);
    for (column, (cell, name)) in columns.iter().zip(specs) {
        let (got, expected, unit) = match (column, cell.dtype) {
            (BatchColumn::Strings(cells), DType::String | DType::Text) => {
                (cells.len(), envs, "cell")
            }
            (BatchColumn::Cells(_), DType::String | DType::Text) => (0, envs, "string cell"),
            (BatchColumn::Strings(_), _) => (0, envs * cell.bytes(), "byte"),
            (BatchColumn::Cells(bytes), _) => (bytes.len(), envs * cell.bytes(), "byte"),
        };
        if got != expected {
            return Err(Error::Signature(format!(
                "{} must have {} for {}; got {got}",
                column_of("the step", name),
                count(expected, unit),
                count(envs, "environment")
            )));
        }
    }
    match episode_ends {
        Some(episode_ends) if episode_ends.len() != envs => Err(Error::InvalidArgument(format!(
            "`episode_ends` must have one entry for each of {}; got {}",
            count(envs, "environment"),
            episode_ends.len()
        ))),
        _ => Ok(()),
    }
}
