//! The columns of an item about to be created, for whoever wants to check them first.

use super::select::{Draft, View};
use crate::error::Result;
use crate::schema::{FoundColumn, Layout, Schema, Signature};

/// What an item would be made of; nothing is stored yet.
#[derive(Debug)]
pub struct ItemColumns<'a>(pub(super) Kind<'a>);

#[derive(Debug)]
pub(super) enum Kind<'a> {
    Rows {
        schema: &'a Schema,
        len: Option<usize>,
    },
    Draft {
        layout: &'a Layout,
        draft: &'a Draft,
        view: View<'a>,
    },
}

impl ItemColumns<'_> {
    /// The columns in order.
    pub fn iter(&self) -> impl Iterator<Item = FoundColumn<'_>> + Clone {
        let count = match &self.0 {
            Kind::Rows { schema, .. } => schema.cells.len(),
            Kind::Draft { draft, .. } => draft.columns.len(),
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
            Kind::Rows { schema, len } => Some(FoundColumn {
                name: &schema.layout.names[column],
                cell: &schema.cells[column],
                len: *len,
            }),
            Kind::Draft {
                layout,
                draft,
                view,
            } => {
                let found = draft.columns[column];
                let slice = draft.slices[found.first_slice as usize];
                Some(FoundColumn {
                    name: layout.names.get(column).map_or("", |name| name),
                    cell: view.cell(slice)?,
                    len: (!found.squeeze).then_some(found.len as usize),
                })
            }
        }
    }
}
