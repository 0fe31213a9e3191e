//! Leaves whose first axes count items, environments or steps.

use engram_core::text::describe_column;
use engram_core::writer::ColumnInput;
use engram_core::{CellSpec, Shape, SharedBytes};
use numpy::PyUntypedArray;
use pyo3::prelude::*;

use crate::errors;
use crate::leaf::{Leaf, bytes_of, prevent_resize, resized_error};

/// One of the first axes of all leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    /// Stands for the size in error texts.
    letter: &'static str,
    /// What the axis counts, in the singular.
    what: &'static str,
    /// The size; `None` if the first leaf determines it.
    size: Option<usize>,
}

impl Axis {
    /// An axis whose size the first leaf determines.
    pub(crate) fn any(letter: &'static str, what: &'static str) -> Self {
        let size = None;
        Self { letter, what, size }
    }

    /// An axis of this size.
    pub(crate) fn of(size: usize, what: &'static str) -> Self {
        Self {
            letter: "",
            what,
            size: Some(size),
        }
    }
}

/// The leaves of a nest, each with the same first axes.
#[derive(Debug, Default)]
pub(crate) struct StackedLeaves<'py> {
    /// `None` for leaves that are None.
    pub(crate) leaves: Vec<Option<StackedLeaf<'py>>>,
    /// Sizes of the first axes. If no leaf has a value: only the sizes that [`Axis::of`] has set.
    pub(crate) sizes: Vec<usize>,
}

/// A leaf whose first axes count cells.
#[derive(Debug)]
pub(crate) struct StackedLeaf<'py> {
    leaf: Leaf<'py>,
    name: String,
    /// Dtype and shape of a cell.
    pub(crate) cell: CellSpec,
    /// Number of cells.
    cells: usize,
    /// Encoded cells of strings; empty for other leaves.
    strings: Vec<Vec<u8>>,
}

impl<'py> StackedLeaves<'py> {
    /// Reads the leaves of a nest and checks their first axes. Leaves may be None if `allows_none`.
    ///
    /// # Errors
    /// `SignatureError` if columns do not support a leaf, or if a first axis is missing or differs.
    pub(crate) fn read(
        py: Python<'py>,
        values: &[Bound<'py, PyAny>],
        names: &[String],
        axes: &[Axis],
        allows_none: bool,
    ) -> PyResult<Self> {
        let mut leaves = Vec::with_capacity(values.len());
        let mut first: Option<&str> = None;
        let mut sizes: Vec<Option<usize>> = axes.iter().map(|axis| axis.size).collect();
        for (value, name) in values.iter().zip(names) {
            if allows_none && value.is_none() {
                leaves.push(None);
                continue;
            }
            let leaf = Leaf::new(value, name)?;
            let CellSpec { dtype, shape } = leaf.spec();
            let fits = shape.len() >= axes.len()
                && (sizes.iter().zip(&shape))
                    .all(|(size, got)| size.is_none_or(|size| size == *got));
            if !fits {
                let text = describe_mismatch(axes, &sizes, first, name, &shape);
                return Err(errors::signature(py, text));
            }
            let (leading, cell) = shape.split_at(axes.len());
            if first.is_none() {
                first = Some(name);
                sizes = leading.iter().copied().map(Some).collect();
            }
            let cell = CellSpec {
                dtype,
                shape: Shape::from_slice(cell),
            };
            let cells = leading.iter().product();
            leaves.push(Some(StackedLeaf {
                strings: leaf.split_strings(cell.elements(), cells),
                leaf,
                name: name.clone(),
                cell,
                cells,
            }));
        }
        Ok(Self {
            leaves,
            sizes: sizes.into_iter().flatten().collect(),
        })
    }

    /// Number of steps, if the only first axis counts them: its size, 0 if no leaf has a value.
    pub(crate) fn steps(&self) -> usize {
        self.sizes.last().copied().unwrap_or(0)
    }

    /// The cells of all leaves, none of which is None. See [`StackedLeaf::column`].
    ///
    /// # Errors
    /// Those of [`StackedLeaf::column`].
    pub(crate) fn columns(&self) -> PyResult<Vec<ColumnInput<'_>>> {
        let leaves = self.leaves.iter().flatten();
        leaves.map(StackedLeaf::column).collect()
    }

    /// Prevents other threads from resizing the arrays, until the result is dropped. This may run Python code.
    pub(crate) fn prevent_resize(&self) -> PyResult<impl Sized + use<'py>> {
        let arrays = self.leaves.iter().flatten().filter_map(StackedLeaf::array);
        arrays.map(prevent_resize).collect::<PyResult<Vec<_>>>()
    }
}

impl<'py> StackedLeaf<'py> {
    fn array(&self) -> Option<&Bound<'py, PyUntypedArray>> {
        match &self.leaf {
            Leaf::Array { array, .. } => Some(array),
            _ => None,
        }
    }

    /// The cells. The caller has called [`StackedLeaves::prevent_resize`] after [`StackedLeaves::read`].
    ///
    /// # Errors
    /// `SignatureError` if another thread has resized the array in between.
    pub(crate) fn column(&self) -> PyResult<ColumnInput<'_>> {
        let Some(array) = self.array() else {
            return Ok(ColumnInput::Strings(&self.strings));
        };
        let bytes: SharedBytes<'_> = bytes_of(array);
        let expected = self.cells * self.cell.bytes();
        if bytes.len() == expected {
            return Ok(ColumnInput::Cells(bytes));
        }
        Err(resized_error(array.py(), &self.name, expected, bytes.len()))
    }
}

/// Describes a leaf that lacks first axes, or whose first axes differ from those of the first leaf, `first`.
fn describe_mismatch(
    axes: &[Axis],
    sizes: &[Option<usize>],
    first: Option<&str>,
    name: &str,
    shape: &[usize],
) -> String {
    let leading = axes.iter().zip(sizes).map(|(axis, size)| match size {
        Some(size) => size.to_string(),
        None => axis.letter.to_string(),
    });
    let leading: Vec<_> = leading.collect();
    let counts: Vec<_> = axes.iter().map(|axis| format!("{}s", axis.what)).collect();
    let like = first.map(describe_column);
    let like = like.map_or_else(String::new, |first| format!(", as {first} has"));
    format!(
        "{} must have shape [{}, ...], for {}{like}; got shape {shape:?}",
        describe_column(name),
        leading.join(", "),
        counts.join(" and "),
    )
}

/// Adds to an error how many of the steps of a call are stored.
pub(crate) fn with_stored_steps(
    py: Python<'_>,
    error: PyErr,
    stored: usize,
    total: usize,
) -> PyErr {
    if !errors::is_ordinary_error(py, &error) {
        return error;
    }
    let which = if stored == total {
        format!("all {total}")
    } else {
        format!("the first {stored} of {total}")
    };
    errors::append_text(py, error, &format!("; {which} steps are stored"))
}
