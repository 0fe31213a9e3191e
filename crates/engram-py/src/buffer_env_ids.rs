//! The arguments `env_id` and `env_ids` of replay buffers.

use std::borrow::Cow;

use engram_core::Error;
use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;

use crate::{arguments, errors};

/// The numbers of all environments.
///
/// # Errors
/// `OutOfMemoryError`.
pub(crate) fn all_envs(py: Python<'_>, num_envs: usize) -> PyResult<Vec<usize>> {
    let mut envs = Vec::new();
    envs.try_reserve_exact(num_envs).map_err(|_| {
        let bytes = num_envs.checked_mul(size_of::<usize>());
        errors::to_py(py, &Error::out_of_memory("the replay buffer", bytes))
    })?;
    envs.extend(0..num_envs);
    Ok(envs)
}

/// The environment that `env_id` names, of `envs`, the numbers of all environments. It may be omitted if there is only
/// one.
///
/// # Errors
/// `InvalidArgumentError`.
pub(crate) fn read_env_id(
    py: Python<'_>,
    env_id: Option<&Bound<'_, PyAny>>,
    envs: &[usize],
) -> PyResult<usize> {
    match env_id {
        Some(id) => {
            let id = arguments::integer("`env_id`", id)?;
            let env = usize::try_from(id).ok().filter(|id| *id < envs.len());
            env.ok_or_else(|| unknown_env(py, "`env_id`", envs.len(), id))
        }
        None if envs.len() == 1 => Ok(0),
        None => {
            let text = format!(
                "`env_id` must be given, because the buffer has {} environments; use `add_batch` to add a step of each",
                envs.len()
            );
            Err(errors::invalid(py, text))
        }
    }
}

/// The environments that `env_ids` names, each at most once; all `envs` for None.
///
/// # Errors
/// `InvalidArgumentError`.
pub(crate) fn read_env_ids<'a>(
    env_ids: Option<&Bound<'_, PyAny>>,
    envs: &'a [usize],
) -> PyResult<Cow<'a, [usize]>> {
    match env_ids {
        None => Ok(Cow::Borrowed(envs)),
        Some(ids) => checked(ids, envs.len()).map(Cow::Owned),
    }
}

/// Checks the argument `env_ids` of a buffer that has no columns yet.
#[pyfunction]
pub(crate) fn check_env_ids(env_ids: &Bound<'_, PyAny>, num_envs: usize) -> PyResult<()> {
    checked(env_ids, num_envs).map(drop)
}

fn checked(given: &Bound<'_, PyAny>, num_envs: usize) -> PyResult<Vec<usize>> {
    let py = given.py();
    let ids = if let Ok(array) = given.cast::<PyArray1<i64>>() {
        array.readonly()
    } else {
        let module = py.import("engram.buffers._steps")?;
        let array = module.getattr("env_id_array")?.call1((given,))?;
        array.cast_into::<PyArray1<i64>>()?.readonly()
    };
    let ids = ids.as_array();
    let ids = ids.iter().map(|id| {
        let env = usize::try_from(*id).ok().filter(|env| *env < num_envs);
        env.ok_or_else(|| unknown_env(py, "each of `env_ids`", num_envs, *id))
    });
    let ids = ids.collect::<PyResult<Vec<usize>>>()?;
    let mut sorted = ids.clone();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(ids),
        Some(pair) => {
            let text = "`env_ids` must name each environment at most once";
            Err(errors::invalid(
                py,
                format!("{text}; got {} twice", pair[0]),
            ))
        }
    }
}

/// The error for an environment that does not exist; `what` is the argument.
pub(crate) fn unknown_env(py: Python<'_>, what: &str, num_envs: usize, id: i64) -> PyErr {
    let last = num_envs - 1;
    errors::invalid(py, format!("{what} must be from 0 to {last}; got {id}"))
}
