//! Inspects a store's directory, and returns the result as plain Python objects.

#![expect(
    clippy::needless_pass_by_value,
    reason = "PyO3 passes arguments by value"
)]

use std::path::PathBuf;

use engram_core::ErrorText;
use engram_engine::{
    FileState, InspectedCheckpoint, InspectedFile, InspectedOpening, InspectedTable, Inspection,
    InvalidRecord,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::gil::detached;

/// The result of `engram.inspect_directory` as dicts, lists, strings and numbers.
#[pyfunction]
pub(crate) fn inspect(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyDict>> {
    let inspection = detached(py, || engram_engine::inspect(&path))?;
    let problems = inspection.problems();
    let Inspection {
        in_use,
        store,
        files,
        others,
        checkpoints,
        opening,
        refusal,
        notes,
    } = inspection;
    let dict = PyDict::new(py);
    dict.set_item("in_use", in_use)?;
    dict.set_item("store", store)?;
    dict.set_item("files", to_dicts(files, |each| file_dict(py, each))?)?;
    dict.set_item("other_files", others)?;
    dict.set_item(
        "checkpoints",
        to_dicts(checkpoints, |each| checkpoint_dict(py, each))?,
    )?;
    let opening = opening
        .map(|opening| opening_dict(py, opening))
        .transpose()?;
    dict.set_item("opening", opening)?;
    dict.set_item("refusal", refusal.map(clean))?;
    dict.set_item("problems", clean_all(problems))?;
    dict.set_item("notes", clean_all(notes))?;
    Ok(dict)
}

/// Returns a text as errors show it: with control characters escaped, and without error numbers of the system.
fn clean(text: String) -> String {
    ErrorText(&text).to_string()
}

pub(crate) fn clean_all(texts: Vec<String>) -> Vec<String> {
    texts.into_iter().map(clean).collect()
}

fn to_dicts<'py, T>(
    values: Vec<T>,
    to_dict: impl FnMut(T) -> PyResult<Bound<'py, PyDict>>,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    values.into_iter().map(to_dict).collect()
}

fn file_dict(py: Python<'_>, file: InspectedFile) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("name", file.name)?;
    dict.set_item("bytes", file.bytes)?;
    dict.set_item("records", file.records)?;
    dict.set_item("first_change", file.first_change)?;
    dict.set_item("changes", file.changes)?;
    let (state, invalid, unusable_reason) = match file.state {
        FileState::Whole => ("whole", None, None),
        FileState::Torn(invalid) => ("torn", Some(invalid), None),
        FileState::Damaged(invalid) => ("damaged", Some(invalid), None),
        FileState::Unusable(reason) => ("unusable", None, Some(reason)),
        FileState::Unfinished => ("unfinished", None, None),
        FileState::SetAside => ("set aside", None, None),
    };
    dict.set_item("state", state)?;
    dict.set_item("offset", invalid.as_ref().map(|invalid| invalid.offset))?;
    let InvalidRecord {
        reason: invalid_reason,
        records_after,
        changes_after,
        ..
    } = invalid.unwrap_or_default();
    dict.set_item(
        "reason",
        unusable_reason
            .or((!invalid_reason.is_empty()).then_some(invalid_reason))
            .map(clean),
    )?;
    dict.set_item("records_after", records_after)?;
    dict.set_item("changes_after", changes_after)?;
    Ok(dict)
}

fn checkpoint_dict(py: Python<'_>, checkpoint: InspectedCheckpoint) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("number", checkpoint.number)?;
    dict.set_item("created", checkpoint.created_at)?;
    dict.set_item("first_change", checkpoint.first_change)?;
    dict.set_item(
        "tables",
        to_dicts(checkpoint.tables, |each| table_dict(py, each))?,
    )?;
    dict.set_item("chunks", checkpoint.chunks)?;
    dict.set_item("chunk_bytes", checkpoint.chunk_bytes)?;
    dict.set_item("missing_chunks", checkpoint.missing_chunks)?;
    dict.set_item("problem", checkpoint.problem.map(clean))?;
    Ok(dict)
}

fn table_dict(py: Python<'_>, table: InspectedTable) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("name", table.name)?;
    dict.set_item("items", table.items)?;
    dict.set_item("bytes", table.bytes)?;
    dict.set_item("last_change", table.last_change)?;
    Ok(dict)
}

fn opening_dict(py: Python<'_>, opening: InspectedOpening) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("repaired", opening.repaired)?;
    dict.set_item("checkpoint", opening.checkpoint)?;
    dict.set_item("changes", opening.changes)?;
    dict.set_item(
        "age",
        std::time::Duration::from_nanos(opening.age).as_secs_f64(),
    )?;
    dict.set_item(
        "tables",
        to_dicts(opening.tables, |each| table_dict(py, each))?,
    )?;
    Ok(dict)
}
