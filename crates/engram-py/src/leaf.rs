//! Leaves of a step: their dtype, shape and bytes.

use engram_core::text::describe_column;
use engram_core::{CellSpec, DType, Shape, SharedBytes};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyBytes, PyComplex, PyDict, PyFloat, PyInt, PyString, PyWeakrefReference,
};

use crate::dtypes;
use crate::errors;
use crate::lazy::Lazy;

/// Minimum size in bytes of leaves that are copied without the GIL.
pub(crate) const MIN_DETACHED_BYTES: usize = 256 << 10;

/// A leaf of a step.
#[derive(Debug)]
pub(crate) enum Leaf<'py> {
    /// An array of fixed-size elements: aligned, in C order and in native byte order.
    Array {
        array: Bound<'py, PyUntypedArray>,
        dtype: DType,
    },
    /// A Python number, which gets the column's dtype if it fits.
    Number {
        value: Bound<'py, PyAny>,
        dtype: DType,
    },
    /// Bytes or text, encoded as the engine stores strings.
    Strings {
        dtype: DType,
        shape: Shape,
        encoded: Vec<u8>,
    },
}

impl<'py> Leaf<'py> {
    /// Reads a value. In all functions of this file, `path` names the column in errors.
    ///
    /// # Errors
    /// `SignatureError` if columns do not support it.
    pub(crate) fn new(value: &Bound<'py, PyAny>, path: &str) -> PyResult<Self> {
        if let Ok(array) = value.cast_exact::<PyUntypedArray>() {
            return Self::of_array(array, path);
        }
        if let Ok(array) = value.cast::<PyUntypedArray>() {
            check_not_masked(array, path)?;
            return Self::of_array(array, path);
        }
        let number = |dtype| {
            Ok(Self::Number {
                value: value.clone(),
                dtype,
            })
        };
        // NumPy scalars are handled below: np.float64 is a Python float, but has a dtype.
        if value.is_exact_instance_of::<PyFloat>() {
            return number(DType::Float64);
        }
        if value.is_exact_instance_of::<PyBool>() {
            return number(DType::Bool);
        }
        if value.is_exact_instance_of::<PyInt>() {
            return number(if value.extract::<i64>().is_ok() {
                DType::Int64
            } else {
                DType::Uint64
            });
        }
        if value.is_exact_instance_of::<PyComplex>() {
            return number(DType::Complex128);
        }
        // NumPy does not convert strings here, because it would remove trailing NUL characters. Its own scalars `str_`
        // and `bytes_` are handled here too, and keep these characters.
        if value.cast::<PyString>().is_ok() || value.cast::<PyBytes>().is_ok() {
            let mut encoded = Vec::new();
            let dtype = encode_string(value, path, &mut encoded)?;
            return Ok(Self::Strings {
                dtype,
                shape: Shape::new(),
                encoded,
            });
        }
        if value.is_none() {
            let column = describe_column(path);
            let text = format!("{column} must be an array, a number or a string; got None");
            return Err(errors::signature(value.py(), text));
        }
        Self::of_array(&as_array(value, path)?, path)
    }

    fn of_array(array: &Bound<'py, PyUntypedArray>, path: &str) -> PyResult<Self> {
        let descr = array.dtype();
        let Some(dtype) = dtypes::from_numpy(&descr) else {
            let text = format!(
                "{} has the unsupported dtype {}; supported dtypes are {}",
                describe_column(path),
                errors::str(&descr)?,
                dtypes::supported()
            );
            return Err(errors::signature(array.py(), text));
        };
        if dtype.is_string() {
            return encode_strings(array, dtype, path);
        }
        if is_plain(array, &descr) {
            return Ok(Self::Array {
                array: array.clone(),
                dtype,
            });
        }
        // `np.array` copies into aligned memory and, given the dtype, native byte order. It keeps Fortran order, so
        // `ascontiguousarray` follows, which in turn makes an array without axes one-dimensional.
        let numpy = array.py().import("numpy")?;
        let copy = numpy.call_method1("array", (array, dtypes::to_numpy(array.py(), dtype)?))?;
        let copy = numpy
            .call_method1("ascontiguousarray", (copy,))?
            .call_method1("reshape", (array.getattr("shape")?,))?;
        Ok(Self::Array {
            array: copy.cast_into()?,
            dtype,
        })
    }

    /// Splits encoded strings into `cells` cells of `elements` strings each. Empty for other leaves.
    pub(crate) fn split_strings(&self, elements: usize, cells: usize) -> Vec<Vec<u8>> {
        let Self::Strings { encoded, .. } = self else {
            return Vec::new();
        };
        let mut rest = encoded.as_slice();
        let split = |_| {
            let (cell, tail) = rest.split_at(encoded_len(rest, elements));
            rest = tail;
            cell.to_vec()
        };
        (0..cells).map(split).collect()
    }

    /// Dtype and shape of the value. A Python number has the dtype that a new column would get.
    pub(crate) fn spec(&self) -> CellSpec {
        match self {
            Self::Array { array, dtype } => CellSpec {
                dtype: *dtype,
                shape: Shape::from_slice(array.shape()),
            },
            Self::Number { dtype, .. } => CellSpec {
                dtype: *dtype,
                shape: Shape::new(),
            },
            Self::Strings { dtype, shape, .. } => CellSpec {
                dtype: *dtype,
                shape: shape.clone(),
            },
        }
    }

    /// The dtype that the value gets in a column whose dtype is `declared`, or in a new one.
    pub(crate) fn column_dtype(&self, declared: Option<DType>) -> DType {
        match self {
            Self::Number { dtype, .. } => declared
                .filter(|declared| fits(*dtype, *declared))
                .unwrap_or(*dtype),
            Self::Array { dtype, .. } | Self::Strings { dtype, .. } => *dtype,
        }
    }

    /// True if the value can be stored in a cell of this dtype and shape. An integer may still be out of the dtype's
    /// range, which [`Leaf::copy_to`] checks.
    pub(crate) fn matches(&self, cell: &CellSpec) -> bool {
        match self {
            Self::Array { array, dtype } => {
                *dtype == cell.dtype && array.shape() == cell.shape.as_slice()
            }
            Self::Number { dtype, .. } => cell.shape.is_empty() && fits(*dtype, cell.dtype),
            Self::Strings { dtype, shape, .. } => *dtype == cell.dtype && *shape == cell.shape,
        }
    }

    /// Checks that the value can be stored in a new column, whose dtype is that of [`Leaf::spec`].
    ///
    /// # Errors
    /// `SignatureError` for an integer beyond 64 bits.
    pub(crate) fn check_in_new_column(&self, path: &str) -> PyResult<()> {
        match self {
            Self::Number {
                value,
                dtype: DType::Uint64,
            } => store_number(value, DType::Uint64, &mut [0; 8], path),
            _ => Ok(()),
        }
    }

    /// Copies the value, which must match, as `dtype` into `out`.
    ///
    /// # Errors
    /// `SignatureError` if an integer is out of the column's range, or if another thread has resized
    /// the array in the meantime.
    pub(crate) fn copy_to(&self, dtype: DType, out: &mut [u8], path: &str) -> PyResult<()> {
        match self {
            Self::Array { array, .. } => {
                // Created before the array's address and length are read, because this may run Python code.
                let resize_guard = (out.len() >= MIN_DETACHED_BYTES)
                    .then(|| prevent_resize(array))
                    .transpose()?;
                let bytes = bytes_of(array);
                if bytes.len() != out.len() {
                    return Err(resized_error(array.py(), path, out.len(), bytes.len()));
                }
                match resize_guard {
                    Some(_) => array.py().detach(|| bytes.copy_to(out)),
                    None => bytes.copy_to(out),
                }
                Ok(())
            }
            Self::Number { value, .. } => store_number(value, dtype, out, path),
            Self::Strings { encoded, .. } => {
                out.copy_from_slice(encoded);
                Ok(())
            }
        }
    }
}

/// True if an array is aligned, in C order and in native byte order. `descr` is its dtype.
#[inline]
pub(crate) fn is_plain(array: &Bound<'_, PyUntypedArray>, descr: &Bound<'_, PyArrayDescr>) -> bool {
    array.is_c_contiguous() && array.is_aligned() && descr.is_native_byteorder() != Some(false)
}

/// The error of a column whose array had `had` bytes when it was read, and now has `has`.
#[cold]
pub(crate) fn resized_error(py: Python<'_>, path: &str, had: usize, has: usize) -> PyErr {
    let text = format!(
        "{} had {had} bytes and has {has} now: another thread resized it",
        describe_column(path)
    );
    errors::signature(py, text)
}

/// The bytes of a C-ordered array. They must be read before any Python code runs, because that may move them. A caller
/// that releases the GIL must call [`prevent_resize`] first.
#[expect(unsafe_code, reason = "NumPy's data pointer")]
pub(crate) fn bytes_of<'a>(array: &'a Bound<'_, PyUntypedArray>) -> SharedBytes<'a> {
    let len = array.len() * array.dtype().itemsize();
    if len == 0 {
        return SharedBytes::from(&[][..]);
    }
    // SAFETY: the array object is kept alive by the borrow and, being C-contiguous, spans `len`
    // bytes from its data pointer. `prevent_resize` prevents `resize`, the usual way to move them. It cannot
    // prevent `__setstate__`, assignment to `data`, or freeing of foreign storage. Doing that while
    // another thread reads the array is invalid for NumPy as well.
    unsafe { SharedBytes::new((*array.as_array_ptr()).fields.data.cast::<u8>(), len) }
}

/// Prevents other threads from resizing an array, or the array that it is a view of, while the result exists. NumPy
/// rejects a resize while there is a weak reference to the array, even with `refcheck=False`; a buffer export would not
/// prevent that.
///
/// Creating a weak reference may collect garbage, whose finalizers may resize the array, so the caller must read its
/// address and length afterwards.
pub(crate) fn prevent_resize<'py>(
    array: &Bound<'py, PyUntypedArray>,
) -> PyResult<Vec<Bound<'py, PyWeakrefReference>>> {
    let mut guards = vec![PyWeakrefReference::new(array)?];
    let mut base = base_of(array);
    while let Some(array) = base {
        guards.push(PyWeakrefReference::new(&array)?);
        base = base_of(&array);
    }
    Ok(guards)
}

/// The array that another one is a view of. Not read from the attribute `base`, which a subclass may override.
#[expect(unsafe_code, reason = "NumPy's base pointer")]
fn base_of<'py>(array: &Bound<'py, PyUntypedArray>) -> Option<Bound<'py, PyUntypedArray>> {
    // SAFETY: the array object is alive, and owns its base, which is null or an object.
    let base =
        unsafe { Bound::from_borrowed_ptr_or_opt(array.py(), (*array.as_array_ptr()).fields.base) };
    base?.cast_into().ok()
}

/// True if a Python number, to which [`Leaf::new`] gave the dtype `number`, can be stored in a column of dtype
/// `column`. Does not check whether an integer is in the column's range.
fn fits(number: DType, column: DType) -> bool {
    use DType::{
        Bfloat16, Bool, Bytes, Complex64, Complex128, Float8E4m3fn, Float8E5m2, Float16, Float32,
        Float64, Text,
    };
    match number {
        Bool => column == Bool,
        Complex128 => matches!(column, Complex64 | Complex128),
        Float64 => matches!(
            column,
            Float16
                | Float32
                | Float64
                | Bfloat16
                | Float8E4m3fn
                | Float8E5m2
                | Complex64
                | Complex128
        ),
        _ => !matches!(column, Bool | Bytes | Text),
    }
}

/// True for NumPy's masked arrays.
pub(crate) fn is_masked_array(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    static MODULES: Lazy<Py<PyAny>> = Lazy::new();
    let py = value.py();
    // There are none before `numpy.ma` is imported, which takes long.
    let modules = MODULES.import(py, "sys", "modules")?.cast::<PyDict>()?;
    let Some(module) = modules.get_item("numpy.ma")? else {
        return Ok(false);
    };
    // While another thread imports it, it has no class yet.
    match module.getattr("MaskedArray") {
        Ok(class) => value.is_instance(&class),
        Err(error) if errors::is_ordinary_error(py, &error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Rejects NumPy's masked arrays, because only their data could be stored.
///
/// # Errors
/// `SignatureError` for a masked array.
pub(crate) fn check_not_masked(array: &Bound<'_, PyUntypedArray>, path: &str) -> PyResult<()> {
    if !is_masked_array(array)? {
        return Ok(());
    }
    let text = format!(
        "{} is a masked array, and its masked elements would be stored as if they were valid; pass `array.filled(value)`, \
         or its data and its mask as two columns",
        describe_column(path)
    );
    Err(errors::signature(array.py(), text))
}

fn store_number(
    value: &Bound<'_, PyAny>,
    dtype: DType,
    out: &mut [u8],
    path: &str,
) -> PyResult<()> {
    let py = value.py();
    let out_of_range = || {
        let text = errors::repr(value).map(|shown| {
            format!(
                "{} is {shown}, which {dtype} cannot hold",
                describe_column(path)
            )
        });
        errors::signature_about(py, text)
    };
    let rejected = |error| errors::replace_ordinary_error(py, error, out_of_range);
    macro_rules! store {
        ($type:ty) => {
            out.copy_from_slice(&value.extract::<$type>().map_err(rejected)?.to_le_bytes())
        };
    }
    match dtype {
        DType::Bool => out[0] = u8::from(value.extract::<bool>()?),
        DType::Int8 => store!(i8),
        DType::Int16 => store!(i16),
        DType::Int32 => store!(i32),
        DType::Int64 => store!(i64),
        DType::Uint8 => store!(u8),
        DType::Uint16 => store!(u16),
        DType::Uint32 => store!(u32),
        DType::Uint64 => store!(u64),
        DType::Float32 => {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a float32 column rounds values"
            )]
            let rounded = value.extract::<f64>().map_err(rejected)? as f32;
            if rounded.is_infinite() {
                return cast_number(value, dtype, out, path);
            }
            out.copy_from_slice(&rounded.to_le_bytes());
        }
        DType::Float64 => store!(f64),
        _ => {
            // Small floats and complex numbers, which are rare.
            if !value.is_instance_of::<PyComplex>() {
                value.extract::<f64>().map_err(rejected)?;
            }
            cast_number(value, dtype, out, path)?;
        }
    }
    Ok(())
}

/// Stores a number that a complex number or float64 can hold. NumPy converts it.
///
/// # Errors
/// `SignatureError` if it is finite, and the column's dtype cannot hold it.
#[cold]
fn cast_number(value: &Bound<'_, PyAny>, dtype: DType, out: &mut [u8], path: &str) -> PyResult<()> {
    static CAST: Lazy<Py<PyAny>> = Lazy::new();
    let py = value.py();
    let number = if value.is_instance_of::<PyComplex>() {
        value.clone()
    } else {
        PyFloat::new(py, value.extract()?).into_any()
    };
    let number = py.import("numpy")?.call_method1("asarray", (number,))?;
    let column = format!("{} is", describe_column(path));
    let cast = CAST.import(py, "engram._casts", "cast")?;
    let array = cast.call1((number, dtypes::to_numpy(py, dtype)?, column))?;
    bytes_of(array.cast::<PyUntypedArray>()?).copy_to(out);
    Ok(())
}

/// Converts a value of a column to an array, as NumPy does.
///
/// # Errors
/// `SignatureError` if NumPy does not convert it, or if the array would hide that values are missing, or that columns
/// have dtypes of their own.
#[pyfunction]
pub(crate) fn as_array<'py>(
    value: &Bound<'py, PyAny>,
    path: &str,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    static ASARRAY: Lazy<Py<PyAny>> = Lazy::new();
    static CHECK: Lazy<Py<PyAny>> = Lazy::new();
    if let Ok(array) = value.cast_exact::<PyUntypedArray>() {
        return Ok(array.clone());
    }
    let py = value.py();
    let asarray = ASARRAY.import(py, "numpy", "asanyarray")?;
    let not_an_array = || {
        let text = errors::class_name(value).map(|name| {
            format!(
                "{} has type {name} and does not convert to a NumPy array",
                describe_column(path)
            )
        });
        errors::signature_about(py, text)
    };
    let array = asarray.call1((value,)).map_err(|error| {
        let cause = errors::str(error.value(py)).unwrap_or_default();
        let with_cause = || {
            if cause.is_empty() {
                not_an_array()
            } else {
                errors::append_text(py, not_an_array(), &format!(": {cause}"))
            }
        };
        errors::replace_ordinary_error(py, error, with_cause)
    })?;
    let array = array
        .cast_into::<PyUntypedArray>()
        .map_err(|_| not_an_array())?;
    if array.cast_exact::<PyUntypedArray>().is_err() {
        check_not_masked(&array, path)?;
    }
    if array.ndim() > 0 && !value.is(&array) {
        let check = CHECK.import(py, "engram._checks", "column_not_table")?;
        check.call1((describe_column(path), value))?;
    }
    Ok(array)
}

/// Encodes an array of strings. `dtype` is that of its NumPy dtype; for an array of objects, the elements decide.
fn encode_strings<'py>(
    array: &Bound<'py, PyUntypedArray>,
    mut dtype: DType,
    path: &str,
) -> PyResult<Leaf<'py>> {
    let mut encoded = Vec::new();
    let flat = array.call_method0("ravel")?.call_method0("tolist")?;
    for (index, element) in flat.try_iter()?.enumerate() {
        let element_dtype = encode_string(&element?, path, &mut encoded)?;
        if index > 0 && element_dtype != dtype {
            let text = format!(
                "{} contains str and bytes; a column is either text or bytes",
                describe_column(path)
            );
            return Err(errors::signature(array.py(), text));
        }
        dtype = element_dtype;
    }
    Ok(Leaf::Strings {
        dtype,
        shape: Shape::from_slice(array.shape()),
        encoded,
    })
}

/// Appends a string: its length and its bytes. Returns its dtype.
fn encode_string(element: &Bound<'_, PyAny>, path: &str, encoded: &mut Vec<u8>) -> PyResult<DType> {
    let py = element.py();
    let (dtype, bytes) = if let Ok(bytes) = element.cast::<PyBytes>() {
        (DType::Bytes, bytes.as_bytes())
    } else if let Ok(text) = element.cast::<PyString>() {
        (DType::Text, text.to_str()?.as_bytes())
    } else {
        let text = format!(
            "{} contains a Python object of type {}; supported are str, bytes and values with a NumPy dtype",
            describe_column(path),
            errors::class_name(element)?
        );
        return Err(errors::signature(py, text));
    };
    let len = u32::try_from(bytes.len()).map_err(|_| {
        errors::signature(
            py,
            format!(
                "strings must have at most 2^32 - 1 bytes; got {} bytes in {}",
                bytes.len(),
                describe_column(path)
            ),
        )
    })?;
    encoded.extend_from_slice(&len.to_le_bytes());
    encoded.extend_from_slice(bytes);
    Ok(dtype)
}

/// Size in bytes of the first `elements` encoded strings.
fn encoded_len(encoded: &[u8], elements: usize) -> usize {
    (0..elements).fold(0, |offset, _| {
        let len = [
            encoded[offset],
            encoded[offset + 1],
            encoded[offset + 2],
            encoded[offset + 3],
        ];
        offset + 4 + u32::from_le_bytes(len) as usize
    })
}
