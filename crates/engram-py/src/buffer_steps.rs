//! Reads the steps that are added to a replay buffer: their leaves as bytes in the dtypes of the buffer's columns.

use engram_core::text::describe_column;
use engram_core::{CellSpec, DType, SharedBytes};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyType};

use crate::dtypes;
use crate::errors;
use crate::fast_path::scalar_bytes;
use crate::lazy::Lazy;
use crate::leaf::{Leaf, bytes_of, check_not_masked, is_plain, resized_error};
use crate::step_flattener::structure_differs;
use crate::structure::{Leaves, Structure, with_array_hint};

/// Structure and columns of a buffer's steps.
#[derive(Debug)]
pub(crate) struct StepColumns {
    structure: Structure,
    columns: Vec<StepColumn>,
}

#[derive(Debug)]
struct StepColumn {
    cell: CellSpec,
    dtype: Py<PyArrayDescr>,
    /// NumPy's scalar class of the dtype.
    scalar: Py<PyType>,
}

/// The cells of one column.
#[derive(Debug)]
pub(crate) enum Cells<'py> {
    /// In C order, and in the dtype of the column.
    Array(Bound<'py, PyUntypedArray>),
    /// The bytes of one number, padded to 16, and how many of them belong to the number.
    Number([u8; 16], usize),
}

/// The leading axes of the leaves of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LeadingAxes {
    /// None: one step of one environment.
    None,
    /// Any number of steps of one environment.
    Steps,
    /// One step of this many environments.
    Envs(usize),
    /// Any number of steps of this many environments.
    EnvsAndSteps(usize),
}

impl LeadingAxes {
    /// Number of axes.
    fn count(self) -> usize {
        match self {
            Self::None => 0,
            Self::Steps | Self::Envs(_) => 1,
            Self::EnvsAndSteps(_) => 2,
        }
    }

    /// The axes, for error texts. `steps` is the number of steps, if it is known from earlier columns.
    fn describe(self, steps: Option<usize>) -> Vec<String> {
        let steps = steps.map_or("T".into(), |steps| steps.to_string());
        match self {
            Self::None => Vec::new(),
            Self::Steps => vec![steps],
            Self::Envs(envs) => vec![envs.to_string()],
            Self::EnvsAndSteps(envs) => vec![envs.to_string(), steps],
        }
    }
}

impl<'py> Cells<'py> {
    /// The array, if the cells are in one.
    pub(crate) fn array(&self) -> Option<&Bound<'py, PyUntypedArray>> {
        match self {
            Self::Array(array) => Some(array),
            Self::Number(..) => None,
        }
    }

    /// The bytes. They must be read before any Python code runs; see [`bytes_of`].
    pub(crate) fn bytes(&self) -> SharedBytes<'_> {
        match self {
            Self::Array(array) => bytes_of(array),
            Self::Number(bytes, len) => SharedBytes::from(&bytes[..*len]),
        }
    }
}

impl StepColumns {
    /// The columns of steps of this structure.
    ///
    /// # Errors
    /// `SignatureError` for columns of text.
    pub(crate) fn new(py: Python<'_>, structure: Structure, cells: &[CellSpec]) -> PyResult<Self> {
        let columns = cells.iter().zip(&structure.names).map(|(cell, name)| {
            if cell.dtype.is_string() {
                let text = format!(
                    "{} has text, which a replay buffer does not store; encode it as numbers",
                    describe_column(name)
                );
                return Err(errors::signature(py, text));
            }
            let dtype = dtypes::to_numpy(py, cell.dtype)?;
            Ok(StepColumn {
                cell: cell.clone(),
                scalar: dtype.typeobj().unbind(),
                dtype: dtype.unbind(),
            })
        });
        Ok(Self {
            columns: columns.collect::<PyResult<_>>()?,
            structure,
        })
    }

    /// Structure of a step.
    pub(crate) fn structure(&self) -> &Structure {
        &self.structure
    }

    /// Names, dtypes and shapes of the columns of steps, or of sequences of this many steps.
    pub(crate) fn columns(&self, sequence_length: Option<usize>) -> Vec<(String, CellSpec)> {
        let columns = self.structure.names.iter().zip(&self.columns);
        let columns = columns.map(|(name, column)| {
            let shape = sequence_length
                .into_iter()
                .chain(column.cell.shape.iter().copied());
            let cell = CellSpec {
                dtype: column.cell.dtype,
                shape: shape.collect(),
            };
            (name.clone(), cell)
        });
        columns.collect()
    }

    /// NumPy dtype and shape of each column of a step.
    pub(crate) fn dtypes<'py>(
        &self,
        py: Python<'py>,
    ) -> Vec<(Bound<'py, PyArrayDescr>, Vec<usize>)> {
        let columns = self.columns.iter();
        let columns =
            columns.map(|column| (column.dtype.bind(py).clone(), column.cell.shape.to_vec()));
        columns.collect()
    }

    /// Reads steps: their cells, column by column, and the number of steps of each environment.
    ///
    /// # Errors
    /// `SignatureError` if the steps differ from the columns.
    pub(crate) fn read<'py>(
        &self,
        steps: &Bound<'py, PyAny>,
        leading: LeadingAxes,
    ) -> PyResult<(Vec<Cells<'py>>, usize)> {
        let py = steps.py();
        let mut values = Leaves::with_capacity(self.columns.len());
        if !self.structure.root.flatten(steps, &mut values)? {
            if let Ok(list) = steps.cast::<PyList>()
                && let Ok(first) = list.get_item(0)
                && self.structure.root.flatten(&first, &mut values)?
            {
                let text = format!(
                    "`steps` must be one nest of arrays; got a list of {}; stack each column, as with numpy.stack",
                    engram_core::text::count(list.len(), "step")
                );
                return Err(errors::signature(py, text));
            }
            let (given, _) = Structure::of(steps)?;
            let error =
                structure_differs(py, "a replay buffer", &given.names, &self.structure.names);
            return Err(with_array_hint(error, steps));
        }
        let mut count = None;
        let mut cells = Vec::with_capacity(values.len());
        for ((value, column), name) in values.iter().zip(&self.columns).zip(&self.structure.names) {
            let read = column.read(value, leading, &mut count, name);
            cells.push(read.map_err(|error| with_array_hint(error, steps))?);
        }
        Ok((cells, count.unwrap_or(1)))
    }

    /// Checks that each column has the bytes of this many steps.
    ///
    /// # Errors
    /// `SignatureError` if another thread has resized an array meanwhile.
    pub(crate) fn check_bytes(
        &self,
        py: Python<'_>,
        bytes: &[SharedBytes<'_>],
        steps: usize,
    ) -> PyResult<()> {
        for ((bytes, column), name) in bytes.iter().zip(&self.columns).zip(&self.structure.names) {
            let expected = column.cell.bytes() * steps;
            if bytes.len() != expected {
                return Err(resized_error(py, name, expected, bytes.len()));
            }
        }
        Ok(())
    }
}

impl StepColumn {
    /// Reads the cells of a leaf. `steps` is the number of steps, if it is known from earlier columns.
    fn read<'py>(
        &self,
        value: &Bound<'py, PyAny>,
        leading: LeadingAxes,
        steps: &mut Option<usize>,
        name: &str,
    ) -> PyResult<Cells<'py>> {
        static CONVERT: Lazy<Py<PyAny>> = Lazy::new();
        let is_single = matches!(leading, LeadingAxes::None) && self.cell.shape.is_empty();
        if is_single
            && value.get_type().is(&self.scalar)
            && let Some(bytes) = scalar_bytes(value, self.cell.dtype)
        {
            return Ok(Cells::Number(bytes, self.cell.dtype.size()));
        }
        if let Ok(array) = value.cast::<PyUntypedArray>() {
            if value.cast_exact::<PyUntypedArray>().is_err() {
                check_not_masked(array, name)?;
            }
            let descr = array.dtype();
            let same_dtype =
                descr.is(&self.dtype) || dtypes::from_numpy(&descr) == Some(self.cell.dtype);
            if same_dtype && is_plain(array, &descr) {
                self.check_shape(array, leading, steps, name)?;
                return Ok(Cells::Array(array.clone()));
            }
        } else if is_single
            && let leaf = Leaf::new(value, name)?
            && matches!(leaf, Leaf::Number { .. })
            && leaf.matches(&self.cell)
        {
            let (mut bytes, len) = ([0; 16], self.cell.dtype.size());
            leaf.copy_to(self.cell.dtype, &mut bytes[..len], name)?;
            return Ok(Cells::Number(bytes, len));
        }
        let convert = CONVERT.import(value.py(), "engram.buffers._steps", "convert")?;
        let array = convert.call1((value, &self.dtype, name))?;
        let array = array.cast_into::<PyUntypedArray>()?;
        self.check_shape(&array, leading, steps, name)?;
        Ok(Cells::Array(array))
    }

    /// Checks the shape of a leaf; sets `steps` if it is not known yet.
    fn check_shape(
        &self,
        array: &Bound<'_, PyUntypedArray>,
        leading: LeadingAxes,
        steps: &mut Option<usize>,
        name: &str,
    ) -> PyResult<()> {
        let shape = array.shape();
        let fits = shape.len() == leading.count() + self.cell.shape.len()
            && shape.ends_with(&self.cell.shape)
            && match leading {
                LeadingAxes::None => true,
                LeadingAxes::Steps => *steps.get_or_insert(shape[0]) == shape[0],
                LeadingAxes::Envs(envs) => shape[0] == envs,
                LeadingAxes::EnvsAndSteps(envs) => {
                    shape[0] == envs && *steps.get_or_insert(shape[1]) == shape[1]
                }
            };
        if fits {
            return Ok(());
        }
        let axes = self.cell.shape.iter().map(ToString::to_string);
        let expected: Vec<String> = leading.describe(*steps).into_iter().chain(axes).collect();
        let meaning = match leading {
            LeadingAxes::None => "",
            LeadingAxes::Steps => ", with the T steps of the episode first",
            LeadingAxes::Envs(_) => ", with the environments first",
            LeadingAxes::EnvsAndSteps(_) => {
                ", with the environments first, and their T steps second"
            }
        };
        let text = format!(
            "{} must have shape [{}]{meaning}; got {shape:?}",
            describe_column(name),
            expected.join(", ")
        );
        Err(errors::signature(array.py(), text))
    }
}

/// True if an array has this dtype, in native byte order.
pub(crate) fn is_same_dtype(array: &Bound<'_, PyUntypedArray>, dtype: DType) -> bool {
    let descr = array.dtype();
    dtypes::from_numpy(&descr) == Some(dtype) && descr.is_native_byteorder() != Some(false)
}
