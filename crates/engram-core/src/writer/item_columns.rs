//! The columns of an item that is about to be created, for the caller to check.

use super::selection::{HistoryView, LocatedItem};
use crate::error::Result;
use crate::schema::{ActualColumn, Layout, Schema, Signature};

/// The columns of an item that is about to be created.
#[derive(Debug)]
pub struct ItemColumns<'a>(pub(super) ItemCells<'a>);

/// The cells of an item that is about to be created.
#[derive(Debug)]
pub(super) enum ItemCells<'a> {
    /// All columns of the writer. `len` is `None` for a single step without a time axis.
    Rows {
        schema: &'a Schema,
        len: Option<usize>,
    },
    /// Cells that were selected column by column and located in the history or in the open chunk.
    Located {
        layout: &'a Layout,
        located: &'a LocatedItem,
        view: HistoryView<'a>,
    },
}

impl ItemColumns<'_> {
    /// The columns, in order.
    pub fn iter(&self) -> impl Iterator<Item = ActualColumn<'_>> + Clone {
        let count = match &self.0 {
            ItemCells::Rows { schema, .. } => schema.cells.len(),
            ItemCells::Located { located, .. } => located.columns.len(),
        };
        // No column is skipped: the cells of a located item are in the history or in the open chunk.
        (0..count).filter_map(|column| self.column(column))
    }

    /// Checks the columns against a table's signature.
    ///
    /// # Errors
    /// [`crate::Error::Signature`] if they do not match.
    pub fn check(&self, table: &str, signature: &Signature) -> Result<()> {
        signature.check(table, self.iter())
    }

    /// One column of the item; `None` if its first slice is in neither the history nor the open chunk.
    fn column(&self, column: usize) -> Option<ActualColumn<'_>> {
        match &self.0 {
            ItemCells::Rows { schema, len } => Some(ActualColumn {
                name: &schema.layout.names[column],
                cell: &schema.cells[column],
                len: *len,
            }),
            ItemCells::Located {
                layout,
                located,
                view,
            } => {
                let span = located.columns[column];
                let slice = located.slices[span.first_slice as usize];
                Some(ActualColumn {
                    name: layout.name(column),
                    cell: view.cell(slice)?,
                    len: (!span.squeeze).then_some(span.len as usize),
                })
            }
        }
    }
}
