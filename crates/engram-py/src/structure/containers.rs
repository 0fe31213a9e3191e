//! Which Python objects are containers, and what they contain.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyComplex, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::errors;
use crate::lazy::Lazy;

/// The leaves of a nest, in order.
pub(crate) type Leaves<'py> = Vec<Bound<'py, PyAny>>;

/// Namespace in which node types are registered with optree. Types that are registered globally are found as well.
const NAMESPACE: &str = "engram";

/// True for a list, a tuple, a dict or another mapping. Fast for arrays and for objects that cannot be
/// indexed, such as slices of a history, which are none of these.
///
/// # Errors
/// Those of [`is_mapping`].
pub(super) fn is_container(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    if value.cast::<PyDict>().is_ok()
        || value.cast::<PyList>().is_ok()
        || value.cast::<PyTuple>().is_ok()
    {
        return Ok(true);
    }
    if value.cast::<numpy::PyUntypedArray>().is_ok() || !has_items(value) {
        return Ok(false);
    }
    is_mapping(value)
}

/// True for a `collections.abc.Mapping`.
///
/// # Errors
/// Any exception that the check raises, such as Ctrl-C. A cast to `PyMapping` would lose it.
pub(super) fn is_mapping(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    static MAPPING: Lazy<Py<PyAny>> = Lazy::new();
    if value.cast::<PyDict>().is_ok() {
        return Ok(true);
    }
    let class = MAPPING.import(value.py(), "collections.abc", "Mapping")?;
    value.is_instance(class)
}

/// False for an object that cannot be indexed, and therefore is no mapping.
#[expect(unsafe_code, reason = "Python's C API")]
fn has_items(value: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the object is alive, and the GIL is held.
    unsafe { pyo3::ffi::PyMapping_Check(value.as_ptr()) != 0 }
}

/// Returns the values of an iterable as a list. `collect` would lose the exceptions of `__len__` and
/// `__length_hint__`.
pub(super) fn list_of<'py>(values: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    let list = values.py().get_type::<PyList>().call1((values,))?;
    Ok(list.cast_into()?)
}

/// The path entries and children of a value, in order.
pub(super) type Entries<'py> = Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>;

/// Returns the path entries and children of a value whose type is registered with optree; `None` for others, and for
/// lists and tuples.
pub(super) fn registered_entries<'py>(tree: &Bound<'py, PyAny>) -> PyResult<Option<Entries<'py>>> {
    static FLATTEN: Lazy<Py<PyAny>> = Lazy::new();
    static REGISTER: Lazy<Py<PyAny>> = Lazy::new();
    static NUMBER: Lazy<Py<PyAny>> = Lazy::new();
    let py = tree.py();
    // A shortcut for the most common leaves, which are not registered with optree, and None, which is a leaf here.
    if tree.cast::<numpy::PyUntypedArray>().is_ok()
        || tree.is_none()
        || tree.cast::<PyList>().is_ok()
        || tree.cast::<PyTuple>().is_ok()
        || tree.is_exact_instance_of::<PyFloat>()
        || tree.is_exact_instance_of::<PyInt>()
        || tree.is_exact_instance_of::<PyBool>()
        || tree.is_exact_instance_of::<PyString>()
        || tree.is_exact_instance_of::<PyBytes>()
        || tree.is_exact_instance_of::<PyComplex>()
        || tree.is_instance(NUMBER.import(tree.py(), "numpy", "generic")?)?
    {
        return Ok(None);
    }
    let options = PyDict::new(py);
    options.set_item("namespace", NAMESPACE)?;
    // The error of `flatten` for a type that is not registered would have the text of the whole leaf.
    let register = REGISTER.import(py, "optree", "register_pytree_node")?;
    let registered = register.call_method("get", (tree.get_type(),), Some(&options))?;
    if registered.is_none() {
        return Ok(None);
    }
    let flatten = FLATTEN.import(py, "optree", "tree_flatten_one_level")?;
    options.set_item("none_is_leaf", true)?;
    let flat = match flatten.call((tree,), Some(&options)) {
        Ok(flat) => flat,
        Err(error) if errors::is_ordinary_error(py, &error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let (children, _, entries): (
        Vec<Bound<'py, PyAny>>,
        Bound<'py, PyAny>,
        Vec<Bound<'py, PyAny>>,
    ) = flat.cast::<PyTuple>()?.get_slice(0, 3).extract()?;
    Ok(Some(entries.into_iter().zip(children).collect()))
}
