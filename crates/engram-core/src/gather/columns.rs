//! What is gathered, and the columns of a batch.

use std::sync::Arc;

use crate::pool::PooledBytes;
use crate::schema::{CellSpec, Layout};
use crate::table::Draw;
use crate::trajectory::Trajectory;

/// How a batch represents items of different lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LengthPolicy {
    /// Concatenate the items and store where each begins.
    #[default]
    Ragged,
    /// Pad shorter items with zeros or empty strings.
    Pad,
}

/// The columns of a batch.
#[derive(Debug)]
pub struct Columns {
    /// Names and nesting.
    pub layout: Arc<Layout>,
    /// The columns, in the order of the names.
    pub columns: Vec<Column>,
}

/// One column of a batch.
#[derive(Debug)]
pub struct Column {
    /// Dtype and shape of its cells.
    pub cell: CellSpec,
    /// The time axis of its items.
    pub time: TimeAxis,
    /// The cells, item after item.
    pub data: ColumnData,
}

/// The time axis of a batch column. `B` is the number of items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimeAxis {
    /// One cell per item: `[B, ...]`.
    Squeezed,
    /// The same number of cells, `T`, per item: `[B, T, ...]`.
    Even(usize),
    /// Item `i` has the cells `splits[i]..splits[i + 1]` of `[sum of lengths, ...]`.
    Ragged(Vec<i64>),
    /// `[B, T, ...]` with zeros or empty strings after the end of each item.
    Padded {
        /// Length of the longest item, `T`.
        longest: usize,
        /// Length of each item.
        lengths: Vec<usize>,
    },
}

/// The cells of a batch column.
#[derive(Debug)]
pub enum ColumnData {
    /// Cells of fixed size.
    Bytes(PooledBytes),
    /// Strings end to end, each a `u32` length and the bytes. Padding is empty strings.
    Strings(Vec<u8>),
}

/// A value with a trajectory: what can be gathered.
pub trait AsTrajectory: Sync {
    /// Its trajectory.
    fn trajectory(&self) -> &Trajectory;

    /// Its key, if it is an item of a table.
    fn key(&self) -> Option<u64> {
        None
    }
}

impl AsTrajectory for Trajectory {
    fn trajectory(&self) -> &Trajectory {
        self
    }
}

impl AsTrajectory for Draw {
    fn trajectory(&self) -> &Trajectory {
        &self.trajectory
    }

    fn key(&self) -> Option<u64> {
        Some(self.key)
    }
}
