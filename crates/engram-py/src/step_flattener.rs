//! Writes Python steps into a writer's recorder: flattens, checks and copies them.

use std::collections::HashMap;
use std::sync::Arc;

use engram_core::text::describe_column;
use engram_core::writer::Recorder;
use engram_core::{CellSpec, Layout};
use pyo3::prelude::*;
use serde_json::{Value, json};

use crate::errors;
use crate::fast_path::FastPath;
use crate::leaf::Leaf;
use crate::stacked_leaves::{Axis, StackedLeaves};
use crate::structure::{Structure, merge, prune};

/// Flattens Python steps, checks them, and writes them into the writer's [`Recorder`]. Keeps the structure of the
/// steps so far and the recorder's column of each leaf.
#[derive(Debug, Default)]
pub(crate) struct StepFlattener {
    structure: Option<Arc<Structure>>,
    /// The recorder's column of each leaf; `None` for leaves that have not had a value yet.
    columns: Vec<Option<usize>>,
    /// `structure` and `columns` before the step in progress, if it has changed them.
    before: Option<StructureAndColumns>,
    fast_path: Option<FastPath>,
}

/// A leaf of a writer's steps. It stays valid when the structure grows.
#[derive(Clone, Debug)]
pub(crate) struct StepLeaf {
    /// The structure of the steps at some moment.
    structure: Arc<Structure>,
    /// Index of the leaf in this structure.
    index: usize,
}

impl StepLeaf {
    /// All leaves of a structure, in order.
    pub(crate) fn all_of(structure: &Arc<Structure>) -> impl Iterator<Item = Self> {
        (0..structure.names.len()).map(|index| Self {
            structure: Arc::clone(structure),
            index,
        })
    }

    /// The name of the leaf. Steps that are one array have one leaf, whose name is empty.
    pub(crate) fn name(&self) -> &str {
        &self.structure.names[self.index]
    }
}

/// A structure, and the recorder's columns of its leaves.
type StructureAndColumns = (Option<Arc<Structure>>, Vec<Option<usize>>);

/// What an append changed, even if it failed.
#[derive(Debug, Default)]
pub(crate) struct StepEffects {
    /// True if the structure is new or has gained leaves.
    pub(crate) structure_changed: bool,
    /// New index of each recorder column, if columns were added.
    pub(crate) column_map: Option<Vec<usize>>,
}

impl StepFlattener {
    /// The structure so far, `None` before the first step.
    pub(crate) fn structure(&self) -> Option<&Arc<Structure>> {
        self.structure.as_ref()
    }

    /// The recorder's column of a leaf, given its index in the current structure.
    pub(crate) fn column(&self, leaf: usize) -> Option<usize> {
        self.columns.get(leaf).copied().flatten()
    }

    /// The recorder's column of a leaf.
    pub(crate) fn column_of(&self, leaf: &StepLeaf) -> Option<usize> {
        let current = self.structure.as_ref()?;
        if Arc::ptr_eq(current, &leaf.structure) {
            return self.column(leaf.index);
        }
        // A structure that grows keeps its leaves, but may sort others before them.
        let name = leaf.name();
        self.column(current.names.iter().position(|other| other == name)?)
    }

    /// Writes a step or a partial step. The caller must call [`StepFlattener::finish`] even after an error. `effects`
    /// reports what changed, also after an error.
    ///
    /// With `exact`, the step must have the structure of earlier steps.
    pub(crate) fn write(
        &mut self,
        recorder: &mut Recorder,
        step: &Bound<'_, PyAny>,
        exact: bool,
        effects: &mut StepEffects,
    ) -> PyResult<()> {
        let py = step.py();
        let mut values = Vec::with_capacity(self.columns.len());
        let fits = match &self.structure {
            Some(structure) if exact => structure.root.flatten(step, &mut values)?,
            Some(structure) => {
                structure.root.flatten(step, &mut values)? || {
                    values.clear();
                    structure.flatten_part(step, &mut values)?
                }
            }
            None => false,
        };
        if fits && self.write_fast(recorder, &values, py)? {
            return Ok(());
        }
        if !fits {
            values = self.begin_structure(step, exact, effects)?;
        }
        let Some(structure) = self.structure.clone() else {
            return Ok(());
        };
        // Read all leaves before anything changes, so that a rejected step has no effect.
        let mut leaves = Vec::with_capacity(values.len());
        let mut has_new_columns = false;
        for (index, value) in values.iter().enumerate() {
            if value.is_none() {
                leaves.push(None);
                continue;
            }
            let name = &structure.names[index];
            let leaf = Leaf::new(value, name)?;
            if let Some(column) = self.columns[index] {
                let cell = &recorder.schema().cells[column];
                if !leaf.matches(cell) {
                    check_dtype(cell, &leaf.spec(), name, py)?;
                }
            } else {
                leaf.check_in_new_column(name)?;
                has_new_columns = true;
            }
            leaves.push(Some(leaf));
        }
        if has_new_columns {
            let cells = leaves.iter().map(|leaf| leaf.as_ref().map(Leaf::spec));
            let cells: Vec<_> = cells.collect();
            effects.column_map = Some(self.add_columns(recorder, &structure, &cells, py)?);
        }
        for (index, leaf) in leaves.iter().enumerate() {
            let (Some(column), Some(leaf)) = (self.columns[index], leaf) else {
                continue;
            };
            let to_py = |error| errors::to_py(py, &error);
            let cell = &recorder.schema().cells[column];
            if !leaf.matches(cell) {
                // A different shape starts a new chunk.
                recorder.reshape(column, leaf.spec().shape).map_err(to_py)?;
            }
            let dtype = recorder.schema().cells[column].dtype;
            if let Leaf::Strings { encoded, .. } = leaf {
                recorder.set_string(column, encoded).map_err(to_py)?;
            } else {
                let cell = recorder.cell_mut(column).map_err(to_py)?;
                leaf.copy_to(dtype, cell, &structure.names[index])?;
            }
        }
        Ok(())
    }

    /// Prepares for steps that are given as arrays `[T, ...]`: checks that they fit the columns, and adds and reshapes
    /// columns as [`StepFlattener::write`] does. Returns the arrays; leaves that are None have no values. The caller
    /// must call [`StepFlattener::settle`] even after an error. `effects` reports what changed, also after an error.
    pub(crate) fn prepare<'py>(
        &mut self,
        recorder: &mut Recorder,
        steps: &Bound<'py, PyAny>,
        effects: &mut StepEffects,
    ) -> PyResult<StackedLeaves<'py>> {
        let py = steps.py();
        let mut values = Vec::with_capacity(self.columns.len());
        let fits = match &self.structure {
            Some(structure) => structure.root.flatten(steps, &mut values)?,
            None => false,
        };
        if !fits {
            values = self.begin_structure(steps, true, effects)?;
        }
        let Some(structure) = self.structure.clone() else {
            return Ok(StackedLeaves::default());
        };
        let stacked = StackedLeaves::read(
            py,
            &values,
            &structure.names,
            &[Axis::any("T", "step")],
            true,
        )?;
        if stacked.sizes == [0] {
            // Without steps, the dtype of text is unknown.
            return Ok(stacked);
        }
        let names = structure.names.iter();
        for ((leaf, column), name) in stacked.leaves.iter().zip(&self.columns).zip(names) {
            if let (Some(leaf), Some(column)) = (leaf, column) {
                check_dtype(&recorder.schema().cells[*column], &leaf.cell, name, py)?;
            }
        }
        let cells = stacked
            .leaves
            .iter()
            .map(|leaf| Some(leaf.as_ref()?.cell.clone()));
        let cells: Vec<_> = cells.collect();
        let is_new = |(cell, column): (&Option<_>, &Option<_>)| cell.is_some() && column.is_none();
        if cells.iter().zip(&self.columns).any(is_new) {
            effects.column_map = Some(self.add_columns(recorder, &structure, &cells, py)?);
        }
        for (column, cell) in self.columns.iter().zip(cells) {
            if let (Some(column), Some(cell)) = (column, cell)
                && recorder.schema().cells[*column].shape != cell.shape
            {
                recorder
                    .reshape(*column, cell.shape)
                    .map_err(|error| errors::to_py(py, &error))?;
            }
        }
        Ok(stacked)
    }

    /// Extends the structure for a step, as [`StepFlattener::extend_structure`] does, after saving it in `before`.
    fn begin_structure<'py>(
        &mut self,
        step: &Bound<'py, PyAny>,
        exact: bool,
        effects: &mut StepEffects,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.before = Some((self.structure.clone(), self.columns.clone()));
        let values = self.extend_structure(step, exact)?;
        effects.structure_changed = true;
        Ok(values)
    }

    /// Writes a step as [`FastPath::write`] does; the result is the same.
    fn write_fast(
        &mut self,
        recorder: &mut Recorder,
        values: &[Bound<'_, PyAny>],
        py: Python<'_>,
    ) -> PyResult<bool> {
        let fast_path = match self
            .fast_path
            .take()
            .filter(|fast_path| fast_path.is_for(recorder.schema()))
        {
            Some(fast_path) => fast_path,
            None => FastPath::new(py, recorder.schema())?,
        };
        Ok(self
            .fast_path
            .insert(fast_path)
            .write(recorder, values, &self.columns))
    }

    /// Completes the step. Discards it if `outcome`, that of writing the step, is an error, or if completing it fails.
    pub(crate) fn finish(
        &mut self,
        recorder: &mut Recorder,
        partial: bool,
        effects: &StepEffects,
        py: Python<'_>,
        outcome: PyResult<()>,
    ) -> PyResult<()> {
        let finished = outcome.and_then(|()| {
            recorder
                .finish_step(partial)
                .map_err(|error| errors::to_py(py, &error))
        });
        self.settle(recorder, effects, finished)
    }

    /// Ends an append. If `finished` is an error, discards what the append has written and, if no columns were added,
    /// its change of the structure.
    pub(crate) fn settle<T>(
        &mut self,
        recorder: &mut Recorder,
        effects: &StepEffects,
        finished: PyResult<T>,
    ) -> PyResult<T> {
        let before = self.before.take();
        if finished.is_err() {
            recorder.abort_step();
            // Columns that the recorder has already added stay, without values, and so does the structure.
            if let Some((structure, columns)) = before.filter(|_| effects.column_map.is_none()) {
                self.structure = structure;
                self.columns = columns;
            }
        }
        finished
    }

    /// Merges the structure of a step into the known one, and returns the step's leaves in the merged order.
    fn extend_structure<'py>(
        &mut self,
        step: &Bound<'py, PyAny>,
        exact: bool,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let py = step.py();
        let (given, values) = Structure::of(step)?;
        let Some(known) = &self.structure else {
            self.columns = vec![None; values.len()];
            self.structure = Some(Arc::new(given));
            return Ok(values);
        };
        if exact {
            return Err(structure_differs(
                py,
                "a writer",
                &given.names,
                &known.names,
            ));
        }
        let differs = || nesting_differs(py, &given.names, &known.names);
        let parse = |text: &str| serde_json::from_str::<Value>(text).ok();
        let merged = parse(&known.text)
            .zip(parse(&given.text))
            .and_then(|(old, new)| merge(&old, &new));
        let merged = Structure::parse(py, &merged.ok_or_else(differs)?.to_string())?;
        let mut values = Vec::with_capacity(merged.names.len());
        if !merged.flatten_part(step, &mut values)? {
            return Err(differs());
        }
        let before: HashMap<&str, Option<usize>> = known
            .names
            .iter()
            .map(String::as_str)
            .zip(self.columns.iter().copied())
            .collect();
        self.columns = merged
            .names
            .iter()
            .map(|name| before.get(name.as_str()).copied().flatten())
            .collect();
        self.structure = Some(merged);
        Ok(values)
    }

    /// Adds recorder columns for the leaves that have their first value, and returns the new index of each old column.
    fn add_columns(
        &mut self,
        recorder: &mut Recorder,
        structure: &Structure,
        specs: &[Option<CellSpec>],
        py: Python<'_>,
    ) -> PyResult<Vec<usize>> {
        let mut cells: Vec<CellSpec> = Vec::new();
        let mut names: Vec<Box<str>> = Vec::new();
        let mut map = vec![0; recorder.schema().cells.len()];
        let mut columns = vec![None; specs.len()];
        for (index, spec) in specs.iter().enumerate() {
            match (self.columns[index], spec) {
                (Some(old), _) => {
                    map[old] = cells.len();
                    cells.push(recorder.schema().cells[old].clone());
                }
                (None, None) => continue,
                (None, Some(spec)) => cells.push(spec.clone()),
            }
            columns[index] = Some(cells.len() - 1);
            names.push(structure.names[index].as_str().into());
        }
        let text: Value = serde_json::from_str(&structure.text).unwrap_or_default();
        let pruned = prune(&text, &mut columns.iter().map(Option::is_some));
        let pruned = pruned.unwrap_or_else(|| json!({ "d": [] }));
        let layout = Layout {
            names: names.into(),
            structure: pruned.to_string().into(),
        };
        recorder
            .restructure(Arc::new(layout), cells.into(), &map)
            .map_err(|error| errors::to_py(py, &error))?;
        self.columns = columns;
        Ok(map)
    }
}

/// Checks that a column keeps its dtype. Its shape may change.
fn check_dtype(cell: &CellSpec, spec: &CellSpec, name: &str, py: Python<'_>) -> PyResult<()> {
    if spec.dtype == cell.dtype {
        return Ok(());
    }
    let hint = if spec.dtype.is_string() && cell.dtype.is_string() {
        "; string is bytes, str is text"
    } else {
        ""
    };
    let text = format!(
        "{} must keep its dtype; got {}{:?} after {}{:?}{hint}",
        describe_column(name),
        spec.dtype,
        spec.shape.as_slice(),
        cell.dtype,
        cell.shape.as_slice()
    );
    Err(errors::signature(py, text))
}

/// The error for a step whose structure differs from earlier ones, for a writer or buffer whose steps all have the same
/// structure.
pub(crate) fn structure_differs(
    py: Python<'_>,
    owner: &str,
    given: &[String],
    known: &[String],
) -> PyErr {
    let text = format!(
        "all steps of {owner} must have the same columns, {}; got {}",
        quote_names(known),
        describe_given(given, known)
    );
    errors::signature(py, text)
}

/// The error for a step whose structure cannot be merged with that of earlier ones, for a writer whose steps may add
/// and omit columns.
fn nesting_differs(py: Python<'_>, given: &[String], known: &[String]) -> PyErr {
    let text = format!(
        "steps may add or omit columns, but must keep the nesting of earlier steps, {}; got {}",
        quote_names(known),
        describe_given(given, known)
    );
    errors::signature(py, text)
}

/// Describes the columns of a rejected step.
fn describe_given(given: &[String], known: &[String]) -> String {
    if given == known {
        return "the same names in a different structure, such as a list instead of a dict, or int instead of str keys"
            .into();
    }
    quote_names(given)
}

/// Lists columns in an error text. A step that is one array has one column, whose name is empty.
fn quote_names(names: &[String]) -> String {
    if names.is_empty() {
        return "no columns".into();
    }
    if names.iter().all(String::is_empty) {
        return "one array without a name".into();
    }
    names
        .iter()
        .map(|name| format!("`{name}`"))
        .collect::<Vec<_>>()
        .join(", ")
}
