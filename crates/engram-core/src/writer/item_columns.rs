//! The columns of an item about to be created, for whoever wants to check them first.

use super::selection::{HistoryView, LocatedItem};
use crate::error::Result;
use crate::schema::{FoundColumn, Layout, Schema, Signature};

/// What an item would be made of; nothing is stored yet.
#[derive(Debug)]
pub struct ItemColumns<'a>(pub(super) Source<'a>);

#[derive(Debug)]
pub(super) enum Source<'a> {
    Rows {
        schema: &'a Schema,
        len: Option<usize>,
    },
    LocatedItem {
        layout: &'a Layout,
        located: &'a LocatedItem,
        view: HistoryView<'a>,
    },
}

impl ItemColumns<'_> {
    /// The columns in order.
    pub fn iter(&self) -> impl Iterator<Item = FoundColumn<'_>> + Clone {
        let count = match &self.0 {
            Source::Rows { schema, .. } => schema.cells.len(),
            Source::LocatedItem { located, .. } => located.columns.len(),
        };
        (0..count).filter_map(|column| self.column(column))
    }

    /// Checks them against a table's signature.
    ///
    /// # Errors
    /// [`crate::Error::Signature`] naming what does not fit.
    pub fn check(&self, table: &str, signature: &Signature) -> Result<()> {
        signature.check(table, self.iter())
    }

    fn column(&self, column: usize) -> Option<FoundColumn<'_>> {
        match &self.0 {
            Source::Rows { schema, len } => Some(FoundColumn {
                name: &schema.layout.names[column],
                cell: &schema.cells[column],
                len: *len,
            }),
            Source::LocatedItem {
                layout,
                located,
                view,
            } => {
                let found = located.columns[column];
                let slice = located.slices[found.first_slice as usize];
                Some(FoundColumn {
                    name: layout.names.get(column).map_or("", |name| name),
                    cell: view.cell(slice)?,
                    len: (!found.squeeze).then_some(found.len as usize),
                })
            }
        }
    }
}
