//! What one step of many environments is handed over as.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::schema::Schema;
use crate::shared_bytes::SharedBytes;

/// One column of one step of all environments.
#[derive(Clone, Copy, Debug)]
pub enum BatchColumn<'a> {
    /// Cells of fixed size, environment after environment.
    Cells(SharedBytes<'a>),
    /// One encoded cell per environment: per element a little-endian `u32` length and the bytes.
    Strings(&'a [Vec<u8>]),
}

impl<'a> BatchColumn<'a> {
    /// Cells of fixed size that nobody writes to.
    #[must_use]
    pub fn cells(bytes: &'a [u8]) -> Self {
        Self::Cells(bytes.into())
    }

    /// Bytes that its strings will take, their offsets included.
    pub(super) fn string_bytes(&self) -> usize {
        match self {
            Self::Cells(_) => 0,
            Self::Strings(cells) => cells.iter().map(|cell| cell.len() + 4).sum(),
        }
    }
}

/// Checks that a batch fits the schema of `count` environments.
pub(super) fn check(
    columns: &[BatchColumn<'_>],
    episode_ends: Option<&[bool]>,
    schema: &Schema,
    count: usize,
) -> Result<()> {
    if columns.len() != schema.cells.len() {
        return Err(Error::Signature(format!(
            "batch has {} columns; its steps have {}",
            columns.len(),
            schema.cells.len()
        )));
    }
    let named = schema.cells.iter().zip(&schema.layout.names);
    for (column, (cell, name)) in columns.iter().zip(named) {
        let (found, asked, unit) = match (column, cell.dtype) {
            (BatchColumn::Strings(cells), DType::String) => (cells.len(), count, "cells"),
            (BatchColumn::Cells(_), DType::String) => (0, count, "string cells"),
            (BatchColumn::Strings(_), _) => (0, count * cell.bytes(), "bytes"),
            (BatchColumn::Cells(bytes), _) => (bytes.len(), count * cell.bytes(), "bytes"),
        };
        if found != asked {
            return Err(Error::Signature(format!(
                "column `{name}` of the batch has {found} {unit}; {count} environments have {asked}"
            )));
        }
    }
    match episode_ends {
        Some(ends) if ends.len() != count => Err(Error::InvalidArgument(format!(
            "episode_ends has {} entries; there are {count} environments",
            ends.len()
        ))),
        _ => Ok(()),
    }
}
