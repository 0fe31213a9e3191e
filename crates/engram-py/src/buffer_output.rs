//! The argument `out` of `ReplayBuffer.sample`: arrays of the caller to write a batch to.

#![expect(unsafe_code, reason = "writes to NumPy arrays without the GIL")]

use engram_core::CellSpec;
use engram_core::text::describe_column;
use numpy::npyffi::NPY_ARRAY_WRITEABLE;
use numpy::{PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyWeakrefReference;

use crate::buffer_steps::is_same_dtype;
use crate::errors;
use crate::leaf::{bytes_of, prevent_resize};
use crate::structure::{Leaves, Structure};

/// Arrays of the shapes and dtypes of a batch. [`OutputArrays::bytes`] checks that they do not overlap.
#[derive(Debug)]
pub(crate) struct OutputArrays<'py> {
    arrays: Vec<Bound<'py, PyUntypedArray>>,
    /// Size of each array in bytes.
    bytes: Vec<usize>,
    _resize_guards: Vec<Vec<Bound<'py, PyWeakrefReference>>>,
}

impl<'py> OutputArrays<'py> {
    /// Reads the nest `out` for a batch of `items` items with these columns.
    ///
    /// # Errors
    /// `InvalidArgumentError` if it does not fit.
    pub(crate) fn read(
        out: &Bound<'py, PyAny>,
        structure: &Structure,
        columns: &[(String, CellSpec)],
        items: usize,
    ) -> PyResult<Self> {
        let py = out.py();
        let mut values = Leaves::new();
        if !structure.root.flatten(out, &mut values)? {
            let text = "`out` must be a nest of arrays like `data` of a batch of this buffer";
            return Err(errors::invalid(py, text.into()));
        }
        let mut arrays = Vec::with_capacity(values.len());
        for (value, (name, cell)) in values.iter().zip(columns) {
            let shape: Vec<usize> = std::iter::once(items)
                .chain(cell.shape.iter().copied())
                .collect();
            let array = value.cast::<PyUntypedArray>().ok().filter(|array| {
                array.shape() == shape
                    && is_same_dtype(array, cell.dtype)
                    && array.is_c_contiguous()
                    && array.is_aligned()
                    && is_writable(array)
            });
            let Some(array) = array else {
                let got = match value.cast::<PyUntypedArray>() {
                    Ok(array) => format!("{}{:?}", errors::str(&array.dtype())?, array.shape()),
                    Err(_) => errors::class_name(value)?,
                };
                let text = format!(
                    "`out`: {} must be a writable array of dtype {} and shape {shape:?} in C order, and \
                     aligned; got {got}",
                    describe_column(name),
                    cell.dtype
                );
                return Err(errors::invalid(py, text));
            };
            arrays.push(array.clone());
        }
        let guards = arrays.iter().map(prevent_resize).collect::<PyResult<_>>()?;
        let bytes = columns
            .iter()
            .map(|(_, cell)| cell.bytes() * items)
            .collect();
        Ok(Self {
            arrays,
            bytes,
            _resize_guards: guards,
        })
    }

    /// The bytes of the arrays.
    ///
    /// # Errors
    /// `InvalidArgumentError` if two arrays overlap, or another thread has resized one.
    pub(crate) fn bytes(&mut self) -> PyResult<Vec<&mut [u8]>> {
        let Some(first) = self.arrays.first() else {
            return Ok(Vec::new());
        };
        let py = first.py();
        let mut ranges: Vec<(usize, usize)> = Vec::with_capacity(self.arrays.len());
        for (array, bytes) in self.arrays.iter().zip(&self.bytes) {
            if bytes_of(array).len() != *bytes {
                let text = "`out` was resized by another thread";
                return Err(errors::invalid(py, text.into()));
            }
            let begin = address(array) as usize;
            ranges.push((begin, begin + bytes));
        }
        ranges.retain(|(begin, end)| begin < end);
        ranges.sort_unstable();
        if ranges.windows(2).any(|pair| pair[0].1 > pair[1].0) {
            let text =
                "the arrays of `out` must not overlap; pass a different array for each column";
            return Err(errors::invalid(py, text.into()));
        }
        let slices = self.arrays.iter().zip(&self.bytes).map(|(array, bytes)| {
            if *bytes == 0 {
                return &mut [][..];
            }
            // SAFETY: the array is writable, in C order, and spans `bytes` bytes. `self` keeps it alive, and its guards
            // prevent a resize. The slices do not overlap, as checked above. Changing the array from another
            // thread meanwhile is invalid for NumPy as well.
            unsafe { std::slice::from_raw_parts_mut(address(array), *bytes) }
        });
        Ok(slices.collect())
    }
}

/// The address of an array's data.
fn address(array: &Bound<'_, PyUntypedArray>) -> *mut u8 {
    // SAFETY: the array object is alive.
    unsafe { (*array.as_array_ptr()).fields.data.cast() }
}

fn is_writable(array: &Bound<'_, PyUntypedArray>) -> bool {
    // SAFETY: the array object is alive.
    unsafe { (*array.as_array_ptr()).fields.flags & NPY_ARRAY_WRITEABLE != 0 }
}
