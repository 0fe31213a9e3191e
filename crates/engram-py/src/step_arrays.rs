//! Many steps at once, as arrays whose first axis is time.

use engram_core::writer::{PatternSet, Recorder};
use engram_core::{Result, SharedBytes};
use numpy::PyUntypedArrayMethods;
use pyo3::prelude::*;

use crate::errors;
use crate::leaf::{Leaf, bytes_of, describe_column, prevent_resize};
use crate::structure::Structure;

/// The steps of one call: a nest of arrays `[T, ...]`.
#[derive(Debug)]
pub(crate) struct StepArrays<'py> {
    structure: Structure,
    values: Vec<Bound<'py, PyAny>>,
    leaves: Vec<Leaf<'py>>,
    /// Number of steps.
    pub(crate) len: usize,
}

/// The cells of one column, step after step.
pub(crate) enum StepCells<'a> {
    /// Cells of this size.
    Fixed(SharedBytes<'a>, usize),
    /// Encoded strings.
    Strings(Vec<Vec<u8>>),
}

impl<'py> StepArrays<'py> {
    /// Reads and checks all leaves.
    ///
    /// # Errors
    /// `SignatureError` if columns do not support a leaf, or the first axes differ.
    pub(crate) fn read(steps: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = steps.py();
        let (structure, values) = Structure::of(steps)?;
        let mut leaves = Vec::with_capacity(values.len());
        let mut first: Option<(&str, usize)> = None;
        for (value, name) in values.iter().zip(&structure.names) {
            let leaf = Leaf::new(value, name)?;
            let shape = leaf.spec().shape;
            let column = describe_column(name);
            match (shape.first(), first) {
                (None, _) => {
                    let text = format!(
                        "{column} must have shape [T, ...] with T steps; got a value without axes"
                    );
                    return Err(errors::signature(py, text));
                }
                (Some(len), Some((first, expected))) if *len != expected => {
                    let text = format!(
                        "{column} must have shape [{expected}, ...], with as many steps as {}; got shape {:?}",
                        describe_column(first),
                        shape.as_slice()
                    );
                    return Err(errors::signature(py, text));
                }
                (Some(len), _) => first = first.or(Some((name, *len))),
            }
            leaves.push(leaf);
        }
        let len = first.map_or(0, |(_, len)| len);
        Ok(Self {
            structure,
            values,
            leaves,
            len,
        })
    }

    /// The first step, as `append` takes it.
    pub(crate) fn first_step(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let cells = self.values.iter().zip(&self.leaves).map(|(value, leaf)| {
            // Leaves that are no arrays were converted.
            let array = match leaf {
                Leaf::Array { array, .. } => array.as_any(),
                _ => value,
            };
            array.get_item(0)
        });
        self.structure
            .unflatten(py, cells.collect::<PyResult<_>>()?)
    }

    /// Prevents that other threads resize the arrays, until the result is dropped.
    pub(crate) fn prevent_resize(&self) -> PyResult<impl Sized + use<'py>> {
        let arrays = self.leaves.iter().filter_map(|leaf| match leaf {
            Leaf::Array { array, .. } => Some(prevent_resize(array)),
            _ => None,
        });
        arrays.collect::<PyResult<Vec<_>>>()
    }

    /// The cells of each leaf. The caller has called [`Self::prevent_resize`].
    ///
    /// # Errors
    /// `SignatureError` if another thread has resized an array before.
    pub(crate) fn cells(&self, py: Python<'py>) -> PyResult<Vec<StepCells<'_>>> {
        let names = self.structure.names.iter();
        let cells = self
            .leaves
            .iter()
            .zip(names)
            .map(|(leaf, name)| match leaf {
                Leaf::Array { array, dtype } => {
                    let elements: usize = array.shape().iter().skip(1).product();
                    let cell_bytes = elements * dtype.size();
                    let bytes = bytes_of(array);
                    if bytes.len() != cell_bytes * self.len {
                        let text = format!(
                            "{} has changed its size: another thread resized it",
                            describe_column(name)
                        );
                        return Err(errors::signature(py, text));
                    }
                    Ok(StepCells::Fixed(bytes, cell_bytes))
                }
                leaf => {
                    let elements = leaf.spec().shape.iter().skip(1).product();
                    Ok(StepCells::Strings(leaf.split_strings(elements, self.len)))
                }
            });
        cells.collect()
    }
}

/// Appends the steps of a range and applies the patterns to each. `columns` are the recorder's columns of the cells.
/// Returns the first error of an item; the items of other steps are created nevertheless.
///
/// # Errors
/// Those of [`Recorder::cell_mut`] and [`Recorder::finish_step`]: the steps before are recorded.
pub(crate) fn append(
    recorder: &mut Recorder,
    patterns: &mut PatternSet,
    (cells, columns): (&[StepCells<'_>], &[usize]),
    steps: std::ops::Range<usize>,
    check_priority: impl Fn(u32, f64) -> Result<()>,
) -> Result<Result<()>> {
    let mut outcome = Ok(());
    for step in steps {
        for (cells, column) in cells.iter().zip(columns) {
            match cells {
                StepCells::Fixed(bytes, size) => {
                    bytes
                        .piece(step, *size)
                        .copy_to(recorder.cell_mut(*column)?);
                }
                StepCells::Strings(cells) => recorder.set_string(*column, &cells[step])?,
            }
        }
        recorder.finish_step(false)?;
        let applied = patterns.apply(recorder, false, &check_priority);
        outcome = outcome.and(applied.map(drop));
    }
    Ok(outcome)
}
