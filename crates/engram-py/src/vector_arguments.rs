//! Reads the arguments of a vector writer: nests of arrays, flags, rewards, and the final observations in `info`.

use std::fmt::Display;

use engram_core::{CellSpec, DType};
use numpy::{PyArray1, PyArrayDescrMethods, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat};

use crate::batched_writer::env_cell;
use crate::errors;
use crate::leaf::{Leaf, bytes_of, is_masked_array};
use crate::step_flattener::structure_differs;
use crate::structure::{Leaves, Structure, with_array_hint_of};

/// Structure and cells of one of the nests that a step consists of.
#[derive(Debug)]
pub(crate) struct Nest {
    /// Name of the argument.
    name: &'static str,
    pub(crate) structure: Structure,
    pub(crate) cells: Vec<CellSpec>,
}

impl Nest {
    /// Reads a nest of arrays `[num_envs, ...]`. `name` is the name of the argument.
    pub(crate) fn of<'py>(
        nest: &Bound<'py, PyAny>,
        name: &'static str,
        envs: usize,
    ) -> PyResult<(Self, Vec<Bound<'py, PyUntypedArray>>)> {
        let (structure, values) = structure_of(nest, name)?;
        let (arrays, cells) = read_arrays(&values, &structure.names, envs)
            .map_err(|error| with_hint(error, nest, name))?;
        let nest = Self {
            name,
            structure,
            cells,
        };
        Ok((nest, arrays))
    }

    /// Appends the arrays of a nest of the same structure, dtypes and shapes to `arrays`.
    pub(crate) fn read<'py>(
        &self,
        nest: &Bound<'py, PyAny>,
        envs: usize,
        arrays: &mut Vec<Bound<'py, PyUntypedArray>>,
    ) -> PyResult<()> {
        let py = nest.py();
        let mut values = Leaves::new();
        if !self.structure.root.flatten(nest, &mut values)? {
            let (given, _) = structure_of(nest, self.name)?;
            let error = structure_differs(py, "a writer", &given.names, &self.structure.names);
            return Err(with_hint(error, nest, self.name));
        }
        let (read, cells) = read_arrays(&values, &self.structure.names, envs)
            .map_err(|error| with_hint(error, nest, self.name))?;
        arrays.extend(read);
        let columns = self.cells.iter().zip(&cells).zip(&self.structure.names);
        for ((known, given), name) in columns {
            if known != given {
                let text = format!(
                    "column `{name}` must have {known} per environment, as before; got {given}"
                );
                return Err(errors::signature(py, text));
            }
        }
        Ok(())
    }
}

/// The structure and the leaves of an argument. The names of its columns begin with that of the argument.
fn structure_of<'py>(nest: &Bound<'py, PyAny>, name: &str) -> PyResult<(Structure, Leaves<'py>)> {
    let (mut structure, values) = Structure::of(nest)?;
    for leaf_name in &mut structure.names {
        *leaf_name = if leaf_name.is_empty() {
            name.into()
        } else {
            format!("{name}/{leaf_name}")
        };
    }
    Ok((structure, values))
}

/// Adds the hint about lists of numbers to an error about columns of an argument.
fn with_hint(error: PyErr, nest: &Bound<'_, PyAny>, name: &str) -> PyErr {
    with_array_hint_of(error, nest, |nest| structure_of(nest, name))
}

/// Reads arrays `[num_envs, ...]`, and the dtypes and shapes of one environment's parts.
fn read_arrays<'py>(
    values: &[Bound<'py, PyAny>],
    names: &[String],
    envs: usize,
) -> PyResult<(Vec<Bound<'py, PyUntypedArray>>, Vec<CellSpec>)> {
    let mut arrays = Vec::with_capacity(values.len());
    let mut cells = Vec::with_capacity(values.len());
    for (value, name) in values.iter().zip(names) {
        let leaf = Leaf::new(value, name)?;
        cells.push(env_cell(value.py(), &leaf, name, envs)?);
        let Leaf::Array { array, .. } = leaf else {
            let text = format!(
                "column `{name}` has text, which a vector writer does not store; encode it as numbers"
            );
            return Err(errors::signature(value.py(), text));
        };
        arrays.push(array);
    }
    Ok((arrays, cells))
}

/// Reads an argument that is not a column; `invalid` returns the error for a value of another kind.
fn argument_leaf<'py>(
    value: &Bound<'py, PyAny>,
    name: &str,
    invalid: &dyn Fn(&dyn Display) -> PyErr,
) -> PyResult<Leaf<'py>> {
    if value.is_none() {
        return Err(invalid(&"None"));
    }
    if is_masked_array(value)? {
        let text =
            format!("`{name}` must not be a masked array; pass `{name}.filled(value)` instead");
        return Err(errors::invalid(value.py(), text));
    }
    Leaf::new(value, name)
}

/// Reads an argument of one bool per environment.
pub(crate) fn read_flags(value: &Bound<'_, PyAny>, name: &str, envs: usize) -> PyResult<Vec<bool>> {
    let invalid = |given: &dyn Display| {
        let text = format!(
            "`{name}` must have shape [{envs}] and dtype bool, one entry per environment; got {given}"
        );
        errors::invalid(value.py(), text)
    };
    let leaf = argument_leaf(value, name, &invalid)?;
    let spec = leaf.spec();
    match &leaf {
        Leaf::Array { array, .. } if spec.dtype == DType::Bool && *spec.shape == [envs] => {
            let mut bytes = vec![0; envs];
            bytes_of(array).copy_to(&mut bytes);
            Ok(bytes.into_iter().map(|byte| byte != 0).collect())
        }
        _ => Err(invalid(&spec)),
    }
}

/// Reads one reward per environment.
pub(crate) fn read_rewards(value: &Bound<'_, PyAny>, envs: usize) -> PyResult<Vec<f64>> {
    let py = value.py();
    let invalid = |given: &dyn Display| {
        let text =
            format!("`rewards` must have shape [{envs}], one number per environment; got {given}");
        errors::invalid(py, text)
    };
    let leaf = argument_leaf(value, "rewards", &invalid)?;
    let spec = leaf.spec();
    let check = |rewards: Vec<f64>| {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "rewards are stored as float32"
        )]
        let is_lost = |reward: &&f64| reward.is_finite() && (**reward as f32).is_infinite();
        match rewards.iter().find(is_lost) {
            Some(reward) => {
                let shown = errors::repr(&PyFloat::new(py, *reward))?;
                let text = format!(
                    "`rewards` has {shown}, which float32 cannot hold; its largest value is 3.4028235e+38"
                );
                Err(errors::invalid(py, text))
            }
            None => Ok(rewards),
        }
    };
    let is_number = !matches!(
        spec.dtype,
        DType::Complex64 | DType::Complex128 | DType::Bytes | DType::Text
    );
    match &leaf {
        Leaf::Array { array, .. } if *spec.shape == [envs] && is_number => {
            if spec.dtype == DType::Float64 {
                let mut bytes = vec![0; 8 * envs];
                bytes_of(array).copy_to(&mut bytes);
                let (rewards, _) = bytes.as_chunks();
                let rewards = rewards.iter().map(|bytes| f64::from_le_bytes(*bytes));
                return check(rewards.collect());
            }
            let converted = array.call_method1("astype", ("float64",))?;
            let converted = converted.cast::<PyArray1<f64>>()?;
            check(converted.readonly().as_slice()?.to_vec())
        }
        _ => Err(invalid(&spec)),
    }
}

/// Reads the observations of the environments in `ended` from `info["final_obs"]`, an array of objects. Returns the
/// cells of each column; `None` without such an array of `envs` objects, if `info["_final_obs"]` states that one is
/// missing, or if an observation differs from `known` in structure, dtypes or shapes, or has Python numbers.
pub(crate) fn read_final_observations(
    known: &Nest,
    info: &Bound<'_, PyAny>,
    envs: usize,
    ended: &[usize],
) -> PyResult<Option<Vec<Vec<u8>>>> {
    let Ok(info) = info.cast::<PyDict>() else {
        return Ok(None);
    };
    let Some(objects) = info.get_item("final_obs")? else {
        return Ok(None);
    };
    let Ok(array) = objects.cast::<PyUntypedArray>() else {
        return Ok(None);
    };
    if array.dtype().kind() != b'O' || *array.shape() != [envs] {
        return Ok(None);
    }
    if let Some(mask) = info.get_item("_final_obs")? {
        let Ok(mask) = mask.cast::<PyArray1<bool>>() else {
            return Ok(None);
        };
        let mask = mask.readonly();
        if mask.len() != envs || ended.iter().any(|env| mask.get(*env) != Some(&true)) {
            return Ok(None);
        }
    }
    let mut columns = vec![Vec::new(); known.cells.len()];
    let mut values = Leaves::new();
    for env in ended {
        let nest = objects.get_item(*env)?;
        values.clear();
        if nest.is_none() || !known.structure.root.flatten(&nest, &mut values)? {
            return Ok(None);
        }
        let cells = known.cells.iter().zip(&known.structure.names);
        for ((value, (cell, name)), column) in values.iter().zip(cells).zip(&mut columns) {
            let leaf = Leaf::new(value, name)?;
            if !matches!(leaf, Leaf::Array { .. }) || !leaf.matches(cell) {
                return Ok(None);
            }
            let used = column.len();
            column.resize(used + cell.bytes(), 0);
            leaf.copy_to(cell.dtype, &mut column[used..], name)?;
        }
    }
    Ok(Some(columns))
}
