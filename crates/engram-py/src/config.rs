//! Table configurations from Python.

use std::sync::Arc;

use engram_core::{ColumnSpec, DType, RateLimits, SelectorKind, Signature, TableOptions};
use numpy::PyArrayDescr;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

use crate::dtypes;
use crate::errors;
use crate::structure::Structure;

/// The attributes of an `engram.Table`, which Python has checked.
#[derive(FromPyObject)]
pub(crate) struct TableConfig<'py> {
    name: String,
    max_size: u64,
    sampler: Bound<'py, PyAny>,
    remover: Bound<'py, PyAny>,
    rate_limiter: LimiterConfig,
    max_times_sampled: Option<u32>,
    max_bytes: Option<u64>,
    /// In seconds.
    ttl: Option<f64>,
    signature: Option<Bound<'py, PyAny>>,
    seed: Option<u64>,
    note: Option<String>,
}

/// The attributes of one of `engram.rate_limiters`.
#[derive(FromPyObject)]
pub(crate) struct LimiterConfig {
    kind: String,
    samples_per_insert: f64,
    min_size: u64,
    min_diff: f64,
    max_diff: f64,
}

impl From<LimiterConfig> for RateLimits {
    fn from(config: LimiterConfig) -> Self {
        Self {
            kind: config.kind,
            samples_per_insert: config.samples_per_insert,
            min_size: config.min_size,
            min_diff: config.min_diff,
            max_diff: config.max_diff,
        }
    }
}

/// Raises an `InvalidArgumentError` if inserts and samples would block each other forever.
#[pyfunction]
pub(crate) fn check_progress(py: Python<'_>, limiter: LimiterConfig) -> PyResult<()> {
    let checked = RateLimits::from(limiter).check_progress();
    checked.map_err(|error| errors::to_py(py, &error))
}

impl TableConfig<'_> {
    /// The table's own seed, if it has one.
    pub(crate) fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// Returns the engine's options. A table without a seed gets `default_seed`.
    pub(crate) fn into_options(self, py: Python<'_>, default_seed: u64) -> PyResult<TableOptions> {
        let ttl = match self.ttl {
            None => None,
            Some(seconds) => {
                let ttl = std::time::Duration::try_from_secs_f64(seconds).ok();
                // A time that does not fit the types is practically unlimited.
                ttl.and_then(|ttl| u64::try_from(ttl.as_nanos()).ok())
            }
        };
        let signature = self
            .signature
            .map(|nest| signature(py, &nest))
            .transpose()?;
        Ok(TableOptions {
            name: self.name,
            max_size: self.max_size,
            max_bytes: self.max_bytes,
            max_times_sampled: self.max_times_sampled.unwrap_or(0),
            ttl,
            sampler: selector(&self.sampler)?,
            remover: selector(&self.remover)?,
            limits: self.rate_limiter.into(),
            signature: signature.map(Arc::new),
            seed: self.seed.unwrap_or(default_seed),
            note: self.note.map(Into::into),
        })
    }
}

fn selector(selector: &Bound<'_, PyAny>) -> PyResult<SelectorKind> {
    let kind: String = selector.getattr("kind")?.extract()?;
    let mut known = SelectorKind::ALL.iter();
    match known.find(|known| known.name() == kind) {
        Some(known) if known.exponent().is_some() => {
            Ok(known.with_exponent(selector.getattr("exponent")?.extract()?))
        }
        Some(known) => Ok(*known),
        None => Err(errors::invalid(
            selector.py(),
            format!("unknown selector kind `{kind}`"),
        )),
    }
}

/// Returns a signature as a nest of `ArraySpec`.
pub(crate) fn signature_to_python<'py>(
    py: Python<'py>,
    signature: &Signature,
) -> PyResult<Bound<'py, PyAny>> {
    let spec = py.import("engram.specs")?.getattr("ArraySpec")?;
    let leaf = |column: &ColumnSpec| {
        let shape = PyTuple::new(py, column.shape.iter())?;
        spec.call1((shape, column.dtype.name()))
    };
    let leaves: Vec<_> = signature
        .columns
        .iter()
        .map(leaf)
        .collect::<PyResult<_>>()?;
    match Structure::parse(py, &signature.structure) {
        Ok(structure) if structure.names.len() == leaves.len() => structure.unflatten(py, leaves),
        Err(error) if !errors::is_ordinary_error(py, &error) => Err(error),
        // Another program wrote a structure that cannot be parsed here; the columns are still valid.
        _ => Ok(PyTuple::new(py, leaves)?.into_any()),
    }
}

/// Converts a nest of objects with `shape` and `dtype` into a signature.
pub(crate) fn signature(py: Python<'_>, nest: &Bound<'_, PyAny>) -> PyResult<Signature> {
    let (structure, leaves) = Structure::of(nest)?;
    let columns = leaves
        .iter()
        .zip(&structure.names)
        .map(|(leaf, name)| {
            let invalid_leaf = |error| {
                errors::replace_ordinary_error(py, error, || {
                    let place = if name.is_empty() { String::new() } else { format!(" for `{name}`") };
                    let text = errors::class_name(leaf).map(|class| format!(
                        "each leaf of `signature` must be an ArraySpec, or have a `shape` and a `dtype`; got {class}{place}"
                    ));
                    errors::signature_about(py, text)
                })
            };
            let shape = leaf.getattr("shape").map_err(invalid_leaf)?;
            let dtype = leaf.getattr("dtype").map_err(invalid_leaf)?;
            let invalid_shape = |error| {
                errors::replace_ordinary_error(py, error, || {
                    let place = if name.is_empty() { String::new() } else { format!(" of `{name}`") };
                    let text = errors::repr(&shape).map(|shape| format!(
                        "the `shape`{place} in `signature` must be a sequence of sizes, None for any size; got {shape}"
                    ));
                    errors::signature_about(py, text)
                })
            };
            let shape: Vec<Option<usize>> = shape.extract().map_err(|error| {
                // A class, such as `np.ndarray`, may have attributes with these names; the error is then about the
                // leaf.
                if leaf.is_instance_of::<PyType>() { invalid_leaf(error) } else { invalid_shape(error) }
            })?;
            let unsupported = || {
                let subject = match name.as_str() {
                    "" => "`signature`".into(),
                    name => format!("`signature`: column `{name}`"),
                };
                let text = errors::str(&dtype).map(|dtype| format!(
                    "{subject} has the unsupported dtype {dtype}; supported dtypes are {}",
                    dtypes::supported()
                ));
                errors::signature_about(py, text)
            };
            let dtype = dtype_of(&dtype)?.ok_or_else(unsupported)?;
            Ok(ColumnSpec { name: name.as_str().into(), dtype, shape: shape.into() })
        })
        .collect::<PyResult<_>>()?;
    Ok(Signature {
        columns,
        structure: structure.text.into(),
    })
}

/// Returns the engine's dtype for a name, a NumPy dtype or anything that NumPy converts to one; `None` if the engine
/// has none.
fn dtype_of(dtype: &Bound<'_, PyAny>) -> PyResult<Option<DType>> {
    if let Ok(name) = dtype.extract::<String>()
        && let Some(dtype) = DType::from_name(&name)
    {
        return Ok(Some(dtype));
    }
    match PyArrayDescr::new(dtype.py(), dtype) {
        Ok(descr) => Ok(dtypes::from_numpy(&descr)),
        Err(error) if errors::is_ordinary_error(dtype.py(), &error) => Ok(None),
        Err(error) => Err(error),
    }
}
