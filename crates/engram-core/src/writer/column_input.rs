//! Steps passed to a writer, of one or many environments, column by column.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::schema::Schema;
use crate::shared_bytes::SharedBytes;
use crate::text::{column_of, count};

/// One column of the steps passed to a writer: one or more steps of one or more environments, environment after
/// environment.
#[derive(Clone, Copy, Debug)]
pub enum ColumnInput<'a> {
    /// Cells of fixed size, end to end.
    Cells(SharedBytes<'a>),
    /// Encoded cells: per element a little-endian `u32` length and the bytes.
    Strings(&'a [Vec<u8>]),
}

impl<'a> ColumnInput<'a> {
    /// Cells of fixed size in memory that is not modified while it is borrowed.
    #[must_use]
    pub fn cells(bytes: &'a [u8]) -> Self {
        Self::Cells(bytes.into())
    }

    /// Bytes that the strings of one step take in a chunk, including their offsets, where each environment has
    /// `steps_per_env` steps. 0 for cells of fixed size.
    pub(super) fn string_bytes(&self, steps_per_env: usize, step: usize) -> usize {
        match self {
            Self::Cells(_) => 0,
            Self::Strings(cells) => {
                let step = cells.iter().skip(step).step_by(steps_per_env);
                step.map(|cell| cell.len() + 4).sum()
            }
        }
    }
}

/// Checks `steps` steps of `envs` environments against the schema, and the length of `episode_ends`.
pub(super) fn check(
    columns: &[ColumnInput<'_>],
    episode_ends: Option<&[bool]>,
    schema: &Schema,
    (envs, steps): (usize, usize),
) -> Result<()> {
    let cells = envs * steps;
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
            (ColumnInput::Strings(strings), DType::Bytes | DType::Text) => {
                (strings.len(), cells, "cell")
            }
            (ColumnInput::Cells(_), DType::Bytes | DType::Text) => (0, cells, "string cell"),
            (ColumnInput::Strings(_), _) => (0, cells * cell.bytes(), "byte"),
            (ColumnInput::Cells(bytes), _) => (bytes.len(), cells * cell.bytes(), "byte"),
        };
        if got != expected {
            return Err(Error::Signature(format!(
                "{} must have {} for {}; got {got}",
                column_of("the step", name),
                count(expected, unit),
                describe_steps(envs, steps)
            )));
        }
    }
    match episode_ends {
        Some(episode_ends) if episode_ends.len() != cells => Err(Error::InvalidArgument(format!(
            "`episode_ends` must have one entry for each of {}; got {}",
            describe_steps(envs, steps),
            episode_ends.len()
        ))),
        _ => Ok(()),
    }
}

/// The steps as a text for errors: `4 environments` for one step of each, or `3 steps of 4 environments`.
fn describe_steps(envs: usize, steps: usize) -> String {
    let envs = count(envs, "environment");
    match steps {
        1 => envs,
        steps => format!("{} of {envs}", count(steps, "step")),
    }
}
