//! What columns look like: cells, layouts, and the signature a table may ask for.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::dtype::DType;
use crate::error::{Error, Result};

/// Sizes of an array's axes.
pub type Shape = SmallVec<[usize; 4]>;

/// Dtype and shape of one cell: one column at one step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CellSpec {
    /// Element type.
    pub dtype: DType,
    /// Axes of one cell, without batch or time.
    pub shape: Shape,
}

impl CellSpec {
    /// Elements of one cell.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of one cell; 0 for strings, whose length varies.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.size()
    }

    /// Elements and bytes of one cell of a shape that nobody has checked yet; `None` where either
    /// product overflows, also where some axis is 0: readers multiply the axes in orders of their
    /// own.
    #[must_use]
    pub fn checked_size(&self) -> Option<(usize, usize)> {
        let axes = self.shape.iter().map(|axis| (*axis).max(1));
        axes.chain([self.dtype.size().max(size_of::<u32>())])
            .try_fold(1_usize, usize::checked_mul)
            .filter(|product| isize::try_from(*product).is_ok())
            .map(|_| (self.elements(), self.bytes()))
    }
}

impl fmt::Display for CellSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape.as_slice())
    }
}

/// Names and nesting of an item's columns. Writers make one and share it.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// One path per column, such as `obs/pixels`, in flattening order.
    pub names: Box<[Box<str>]>,
    /// How the columns nest, in the words of whoever wrote them; opaque to the engine.
    pub structure: Box<str>,
}

/// Layout plus the cells of every column: what all rows of a chunk have in common.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Schema {
    /// Names and nesting.
    pub layout: Arc<Layout>,
    /// One per name.
    pub cells: Box<[CellSpec]>,
}

/// What a table's signature asks of one column; `None` in the shape allows any size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnSpec {
    /// Path of the column, for messages.
    pub name: Box<str>,
    /// Element type.
    pub dtype: DType,
    /// Axes of the whole column, time included unless it is squeezed.
    pub shape: SmallVec<[Option<usize>; 4]>,
}

/// What a table asks of every item. Columns are compared in order, as they flatten, by their path,
/// dtype and shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// One per column.
    pub columns: Box<[ColumnSpec]>,
    /// How the columns nest; opaque to the engine.
    pub structure: Box<str>,
}

/// One column of an item about to be checked: its cell, and its length unless squeezed.
#[derive(Clone, Copy, Debug)]
pub struct FoundColumn<'a> {
    /// Path of the column, for messages.
    pub name: &'a str,
    /// What its cells are.
    pub cell: &'a CellSpec,
    /// Steps, or `None` for a squeezed column.
    pub len: Option<usize>,
}

impl FoundColumn<'_> {
    fn fits(&self, asked: &ColumnSpec) -> bool {
        let axes = self.len.into_iter().chain(self.cell.shape.iter().copied());
        *self.name == *asked.name
            && self.cell.dtype == asked.dtype
            && asked.shape.len() == self.cell.shape.len() + usize::from(self.len.is_some())
            && axes
                .zip(&asked.shape)
                .all(|(found, asked)| asked.is_none_or(|asked| asked == found))
    }
}

impl Signature {
    /// Checks the columns of an item.
    ///
    /// # Errors
    /// [`Error::Signature`] naming the first column that does not fit, and both sides in full.
    pub fn check<'a>(
        &self,
        table: &str,
        found: impl Iterator<Item = FoundColumn<'a>> + Clone,
    ) -> Result<()> {
        let count = found.clone().count();
        let problem = if count == self.columns.len() {
            match found
                .clone()
                .zip(&self.columns)
                .position(|(f, asked)| !f.fits(asked))
            {
                None => return Ok(()),
                Some(at) => format!("column {at} (`{}`) does not fit", self.columns[at].name),
            }
        } else {
            format!(
                "it has {count} columns where {} are asked",
                self.columns.len()
            )
        };
        let mut text = format!("item does not match the signature of table `{table}`: {problem}");
        text.push_str("; asked: ");
        for (i, column) in self.columns.iter().enumerate() {
            let axes = column
                .shape
                .iter()
                .map(|d| d.map_or("?".into(), |d| d.to_string()));
            describe(&mut text, i, &column.name, column.dtype, axes);
        }
        text.push_str("; found: ");
        for (i, column) in found.enumerate() {
            let axes = column
                .len
                .into_iter()
                .chain(column.cell.shape.iter().copied());
            describe(
                &mut text,
                i,
                column.name,
                column.cell.dtype,
                axes.map(|d| d.to_string()),
            );
        }
        Err(Error::Signature(text))
    }
}

fn describe(
    text: &mut String,
    at: usize,
    name: &str,
    dtype: DType,
    axes: impl Iterator<Item = String>,
) {
    let axes: Vec<String> = axes.collect();
    let comma = if at == 0 { "" } else { ", " };
    // Writing to a `String` cannot fail.
    let _ = write!(text, "{comma}`{name}` {dtype}[{}]", axes.join(","));
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;

    #[test]
    fn signature_names_the_column_and_both_sides() {
        let signature = Signature {
            columns: Box::new([ColumnSpec {
                name: "obs".into(),
                dtype: DType::Float32,
                shape: smallvec![None, Some(4)],
            }]),
            structure: "".into(),
        };
        let good = CellSpec {
            dtype: DType::Float32,
            shape: smallvec![4],
        };
        let bad = CellSpec {
            dtype: DType::Float64,
            shape: smallvec![4],
        };
        let column = |cell, len| {
            std::iter::once(FoundColumn {
                name: "obs",
                cell,
                len,
            })
        };
        assert_eq!(signature.check("t", column(&good, Some(7))), Ok(()));
        let error = signature.check("t", column(&bad, Some(7))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "item does not match the signature of table `t`: column 0 (`obs`) does not fit; \
             asked: `obs` float32[?,4]; found: `obs` float64[7,4]"
        );
        assert!(signature.check("t", column(&good, None)).is_err());
        let other = FoundColumn {
            name: "action",
            cell: &good,
            len: Some(7),
        };
        assert!(signature.check("t", std::iter::once(other)).is_err());
        assert!(signature.check("t", std::iter::empty()).is_err());
    }
}
