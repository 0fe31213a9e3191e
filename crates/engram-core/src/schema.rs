//! Dtypes, shapes and names of columns, and the signatures that tables check them against.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::structure::check_structure;
use crate::text::describe_column;

/// Sizes of the axes of an array.
pub type Shape = SmallVec<[usize; 4]>;

/// Dtype and shape of a cell, the value of one column at one step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CellSpec {
    /// Element type.
    pub dtype: DType,
    /// Axes of one cell, without batch and time axes.
    pub shape: Shape,
}

impl CellSpec {
    /// Number of elements of a cell.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes of a cell; 0 for strings, whose length varies.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.size()
    }

    /// Elements and bytes of a cell of an unchecked shape; `None` if either could overflow.
    ///
    /// For this check, an axis of size 0 counts as 1: code that multiplies the axes in another order must not
    /// overflow before it reaches the 0. An element counts as at least 4 bytes, the length of a string.
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

/// Names and nesting of columns.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Path of each column, for example `obs/pixels`, in flattening order.
    pub names: Box<[Box<str>]>,
    /// Nesting of the columns as JSON text. The engine uses only its number of leaves; see
    /// [`Layout::check`].
    pub structure: Box<str>,
}

impl Layout {
    /// Checks that the structure can be read and has one leaf per name.
    ///
    /// # Errors
    /// [`Error::Signature`] if not.
    pub fn check(&self) -> Result<()> {
        check_structure("a layout", &self.structure, self.names.len())
    }

    /// Name of a column. Empty if the data is one array, or if the layout has fewer columns.
    #[must_use]
    pub fn name(&self, column: usize) -> &str {
        self.names.get(column).map_or("", |name| name)
    }
}

/// Layout and cells of the columns of a chunk.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Schema {
    /// Names and nesting.
    pub layout: Arc<Layout>,
    /// The cell of each column, in the order of the names.
    pub cells: Box<[CellSpec]>,
}

/// The dtype and shape that a signature requires of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnSpec {
    /// Path of the column.
    pub name: Box<str>,
    /// Element type.
    pub dtype: DType,
    /// Sizes of the axes of the whole column, beginning with the time axis if the column has one. `None` allows any
    /// size.
    pub shape: SmallVec<[Option<usize>; 4]>,
}

/// The columns that a table requires of every item. An item's columns must be in the same order, with the same paths,
/// dtypes and shapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The columns, in flattening order.
    pub columns: Box<[ColumnSpec]>,
    /// Nesting of the columns as JSON text; see [`Layout::structure`].
    pub structure: Box<str>,
}

/// A column of an item, to check against a signature.
#[derive(Clone, Copy, Debug)]
pub struct ActualColumn<'a> {
    /// Path of the column.
    pub name: &'a str,
    /// Dtype and shape of its cells.
    pub cell: &'a CellSpec,
    /// Number of steps; `None` without a time axis.
    pub len: Option<usize>,
}

impl ActualColumn<'_> {
    fn matches(&self, spec: &ColumnSpec) -> bool {
        let axes = self.len.into_iter().chain(self.cell.shape.iter().copied());
        *self.name == *spec.name
            && self.cell.dtype.fits(spec.dtype)
            && spec.shape.len() == self.cell.shape.len() + usize::from(self.len.is_some())
            && sizes_match(axes, &spec.shape)
    }

    /// `Some(true)` if the shapes differ only because the item has a time axis and the signature does not,
    /// `Some(false)` if it is the other way round, `None` otherwise.
    fn extra_time_axis(&self, spec: &ColumnSpec) -> Option<bool> {
        let cell = &self.cell.shape;
        let matches = |spec: &[Option<usize>]| {
            spec.len() == cell.len() && sizes_match(cell.iter().copied(), spec)
        };
        match self.len {
            Some(_) => matches(&spec.shape).then_some(true),
            None => matches(spec.shape.get(1..)?).then_some(false),
        }
    }
}

/// True if each axis has the size that the signature requires; `None` allows any size.
fn sizes_match(axes: impl Iterator<Item = usize>, spec: &[Option<usize>]) -> bool {
    axes.zip(spec)
        .all(|(axis, size)| size.is_none_or(|size| size == axis))
}

impl Signature {
    /// About the number of bytes that names, dtypes, shapes and nesting take in a message.
    pub(crate) fn text_bytes(&self) -> usize {
        let columns = self.columns.iter();
        let columns = columns.map(|column| 16 + column.name.len() + 10 * column.shape.len());
        self.structure.len() + columns.sum::<usize>()
    }

    /// Checks that the structure can be read and has one leaf per column.
    ///
    /// # Errors
    /// [`Error::Signature`] if not.
    pub(crate) fn check_structure(&self, table: &str) -> Result<()> {
        let owner = format!("the signature of table `{table}`");
        check_structure(&owner, &self.structure, self.columns.len())
    }

    /// Checks the columns of an item.
    ///
    /// # Errors
    /// [`Error::Signature`], which describes the mismatch and lists the columns of the signature and of the
    /// item.
    pub fn check<'a>(
        &self,
        table: &str,
        actual: impl Iterator<Item = ActualColumn<'a>> + Clone,
    ) -> Result<()> {
        let same_count = actual.clone().count() == self.columns.len();
        if same_count
            && actual
                .clone()
                .zip(&self.columns)
                .all(|(column, spec)| column.matches(spec))
        {
            return Ok(());
        }
        let actual: Vec<ActualColumn<'_>> = actual.collect();
        let columns = self.columns.iter();
        let specs = columns.map(|spec| describe(&spec.name, spec.dtype, &spec.format_axes()));
        let columns = actual.iter();
        let columns =
            columns.map(|actual| describe(actual.name, actual.cell.dtype, &actual.format_axes()));
        Err(Error::Signature(format!(
            "item does not match the signature of table `{table}`: {}; signature: {}; item: {}",
            self.describe_mismatch(&actual),
            join(specs),
            join(columns)
        )))
    }

    /// Describes how the columns differ from the signature.
    fn describe_mismatch(&self, actual: &[ActualColumn<'_>]) -> String {
        let names: Vec<&str> = actual.iter().map(|actual| actual.name).collect();
        let required: Vec<&str> = self.columns.iter().map(|spec| &*spec.name).collect();
        if names != required && names == [""] {
            let columns = format_names(&required);
            return format!("the item is one array, but the signature has {columns}");
        }
        if names != required && required == [""] {
            let columns = format_names(&names);
            return format!("the signature is one array, but the item has {columns}");
        }
        let specs = self.columns.iter();
        let missing = specs.filter(|spec| actual.iter().all(|actual| *actual.name != *spec.name));
        let missing: Vec<&str> = missing.map(|spec| &*spec.name).collect();
        let unknown = actual.iter();
        let unknown =
            unknown.filter(|actual| self.columns.iter().all(|spec| *spec.name != *actual.name));
        let unknown: Vec<&str> = unknown.map(|actual| actual.name).collect();
        let no_column = |names| format!("the signature has no {}", format_names(names));
        let verb = if missing.len() == 1 { "is" } else { "are" };
        match (&*missing, &*unknown) {
            ([], []) => {}
            ([], unknown) => return no_column(unknown),
            (missing, []) => return format!("{} {verb} missing", format_names(missing)),
            (missing, unknown) => {
                return format!(
                    "{} {verb} missing, and {}",
                    format_names(missing),
                    no_column(unknown)
                );
            }
        }
        let pairs = actual.iter().zip(&self.columns);
        if actual.len() != self.columns.len()
            || pairs
                .clone()
                .any(|(column, spec)| *column.name != *spec.name)
        {
            return "its columns are in another order".into();
        }
        let Some((actual, spec)) = pairs.clone().find(|(actual, spec)| !actual.matches(spec))
        else {
            return String::new();
        };
        // A column that matches without a time axis shows that the signature has none.
        let other_matches = pairs
            .clone()
            .any(|(actual, spec)| actual.len.is_none() && actual.matches(spec));
        let Some(only_item_has_axis) =
            (actual.extra_time_axis(spec)).filter(|only_item| *only_item || !other_matches)
        else {
            let [expected, got] = [
                (spec.dtype, spec.format_axes()),
                (actual.cell.dtype, actual.format_axes()),
            ]
            .map(|(dtype, axes)| format!("{dtype}[{axes}]"));
            let column = describe_column(&spec.name);
            return format!("{column} must be {expected}; got {got}");
        };
        let affected =
            pairs.filter(|(actual, spec)| actual.extra_time_axis(spec) == Some(only_item_has_axis));
        let names: Vec<&str> = affected.map(|(actual, _)| actual.name).collect();
        let is_one = names.len() == 1;
        let names = format_names(&names);
        if only_item_has_axis {
            let (have, shape) = if is_one {
                ("has", "its shape")
            } else {
                ("have", "each shape")
            };
            format!(
                "{names} {have} a time axis, but the signature has none; begin {shape} in the \
                 signature with the number of steps, or with None (in a TOML file `?`) for any number"
            )
        } else {
            let (lack, shape) = if is_one {
                ("lacks", "its shape")
            } else {
                ("lack", "their shapes")
            };
            format!(
                "{names} {lack} the first axis of {shape} in the signature; if this axis is the number of steps, give \
                 the item a time axis; otherwise remove the axis from the signature"
            )
        }
    }
}

impl ColumnSpec {
    fn format_axes(&self) -> String {
        let axes = self.shape.iter();
        axes.map(|size| size.map_or("?".into(), |size| size.to_string()))
            .collect::<Vec<_>>()
            .join(",")
    }
}

impl ActualColumn<'_> {
    fn format_axes(&self) -> String {
        let axes = self.len.into_iter().chain(self.cell.shape.iter().copied());
        axes.map(|size| size.to_string())
            .collect::<Vec<_>>()
            .join(",")
    }
}

/// `` `name` dtype[axes] ``; without the name if the data is one array.
fn describe(name: &str, dtype: DType, axes: &str) -> String {
    if name.is_empty() {
        return format!("{dtype}[{axes}]");
    }
    format!("`{name}` {dtype}[{axes}]")
}

/// `column` or `columns`, and the quoted names. See [`describe_column`] for data that is one array.
pub(crate) fn format_names(names: &[&str]) -> String {
    match names {
        [] => "no columns".into(),
        [name] => describe_column(name),
        names => {
            let quoted = join(names.iter().map(|name| format!("`{name}`")));
            format!("columns {quoted}")
        }
    }
}

fn join(texts: impl Iterator<Item = String>) -> String {
    texts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOAT: DType = DType::Float32;

    /// The problem reported for an item. A column of the signature is its name, dtype and shape; one of the item its
    /// name, length (`None` without a time axis), dtype and cell shape.
    fn problem(
        signature: &[(&str, DType, &[Option<usize>])],
        item: &[(&str, Option<usize>, DType, &[usize])],
    ) -> Option<String> {
        let columns = signature.iter().map(|(name, dtype, shape)| ColumnSpec {
            name: (*name).into(),
            dtype: *dtype,
            shape: shape.iter().copied().collect(),
        });
        let signature = Signature {
            columns: columns.collect(),
            structure: "".into(),
        };
        let cells = item.iter().map(|(_, _, dtype, shape)| CellSpec {
            dtype: *dtype,
            shape: shape.iter().copied().collect(),
        });
        let cells: Vec<CellSpec> = cells.collect();
        let columns = item
            .iter()
            .zip(&cells)
            .map(|((name, len, ..), cell)| ActualColumn {
                name,
                cell,
                len: *len,
            });
        let error = signature.check("t", columns).err()?.to_string();
        let problem = error.strip_prefix("item does not match the signature of table `t`: ");
        Some(problem.unwrap().to_owned())
    }

    #[test]
    fn a_column_of_another_dtype_or_shape_is_named() {
        let signature = [("obs", FLOAT, &[None, Some(4)][..])];
        assert_eq!(problem(&signature, &[("obs", Some(7), FLOAT, &[4])]), None);
        assert_eq!(
            problem(&signature, &[("obs", Some(7), DType::Float64, &[4])]).unwrap(),
            "column `obs` must be float32[?,4]; got float64[7,4]; signature: `obs` float32[?,4]; item: \
             `obs` float64[7,4]"
        );
        let text = problem(&signature, &[("obs", Some(7), FLOAT, &[5])]).unwrap();
        assert!(text.starts_with("column `obs` must be float32[?,4]; got float32[7,5]; "));
    }

    #[test]
    fn missing_and_unknown_columns_are_named() {
        let signature = [("a", FLOAT, &[][..]), ("b", FLOAT, &[]), ("c", FLOAT, &[])];
        let text = |names: &[&'static str]| {
            let item: Vec<_> = names
                .iter()
                .map(|name| (*name, None, FLOAT, &[][..]))
                .collect();
            let text = problem(&signature, &item).unwrap();
            text.split_once(';').unwrap().0.to_owned()
        };
        assert_eq!(text(&["a", "c"]), "column `b` is missing");
        assert_eq!(text(&["c"]), "columns `a`, `b` are missing");
        assert_eq!(
            text(&["a", "b", "c", "d"]),
            "the signature has no column `d`"
        );
        assert_eq!(
            text(&["a", "b", "d"]),
            "column `c` is missing, and the signature has no column `d`"
        );
        assert_eq!(text(&["b", "a", "c"]), "its columns are in another order");
        assert_eq!(
            text(&[""]),
            "the item is one array, but the signature has columns `a`, `b`, `c`"
        );
    }

    #[test]
    fn a_signature_of_one_array_has_no_column_name() {
        let signature = [("", FLOAT, &[Some(3)][..])];
        assert_eq!(
            problem(&signature, &[("x", None, FLOAT, &[3])]).unwrap(),
            "the signature is one array, but the item has column `x`; signature: float32[3]; item: `x` float32[3]"
        );
        assert_eq!(
            problem(&signature, &[("", None, FLOAT, &[4])]).unwrap(),
            "the data must be float32[3]; got float32[4]; signature: float32[3]; item: float32[4]"
        );
    }

    #[test]
    fn an_extra_or_missing_time_axis_is_reported() {
        let signature = [("n", FLOAT, &[][..]), ("x", FLOAT, &[Some(3)])];
        let item = [("n", Some(5), FLOAT, &[][..]), ("x", Some(5), FLOAT, &[3])];
        assert_eq!(
            problem(&signature, &item).unwrap(),
            "columns `n`, `x` have a time axis, but the signature has none; begin each shape in the \
             signature with the number of steps, or with None (in a TOML file `?`) for any number; signature: `n` \
             float32[], `x` float32[3]; item: `n` float32[5], `x` float32[5,3]"
        );
        let signature = [("x", FLOAT, &[None, Some(3)][..])];
        assert_eq!(
            problem(&signature, &[("x", None, FLOAT, &[3])]).unwrap(),
            "column `x` lacks the first axis of its shape in the signature; if this axis is the number of steps, give \
             the item a time axis; otherwise remove the axis from the signature; signature: `x` float32[?,3]; item: \
             `x` float32[3]"
        );
    }

    #[test]
    fn a_column_with_an_axis_too_few_has_no_missing_time_axis_if_another_column_matches() {
        let signature = [
            ("action", FLOAT, &[Some(1)][..]),
            ("obs", FLOAT, &[Some(4)]),
        ];
        let item = [("action", None, FLOAT, &[][..]), ("obs", None, FLOAT, &[4])];
        assert_eq!(
            problem(&signature, &item).unwrap(),
            "column `action` must be float32[1]; got float32[]; signature: `action` float32[1], `obs` float32[4]; \
             item: `action` float32[], `obs` float32[4]"
        );
    }
}
