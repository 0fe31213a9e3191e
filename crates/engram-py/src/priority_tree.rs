//! Numbered priorities, from which numbers are drawn in proportion: for `engram.compat.alf`.

use engram_core::ring::Priorities;
use engram_core::selector::MAX_WEIGHT;
use numpy::{PyArray1, PyArrayMethods};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::errors;

/// The priorities of rows, which begin as 0; their sum and the largest of them.
///
/// A forked child can use its copy: no thread releases the GIL while it holds the lock, so no lock is held at a fork.
#[pyclass(frozen, module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct PriorityTree {
    rows: usize,
    priorities: Mutex<Priorities>,
}

#[pymethods]
impl PriorityTree {
    #[new]
    fn new(py: Python<'_>, rows: usize) -> PyResult<Self> {
        if rows == 0 {
            return Err(errors::invalid(
                py,
                "`rows` must be at least 1; got 0".into(),
            ));
        }
        let priorities = Priorities::new(1.0, rows).map_err(|error| errors::to_py(py, &error))?;
        Ok(Self {
            rows,
            priorities: Mutex::new(priorities),
        })
    }

    /// Sets the priorities of rows, one after the other: the last one of a repeated row remains.
    fn set(
        &self,
        rows: &Bound<'_, PyArray1<i64>>,
        priorities: &Bound<'_, PyArray1<f64>>,
    ) -> PyResult<()> {
        let py = rows.py();
        let (rows, priorities) = (rows.readonly(), priorities.readonly());
        let (rows, priorities) = (rows.as_slice()?, priorities.as_slice()?);
        if rows.len() != priorities.len() {
            let text = format!(
                "`rows` and `priorities` must have the same length; got {} and {}",
                rows.len(),
                priorities.len()
            );
            return Err(errors::invalid(py, text));
        }
        let indices = rows.iter().map(|row| {
            let index = usize::try_from(*row).ok();
            index.filter(|index| *index < self.rows).ok_or_else(|| {
                let last = self.rows - 1;
                errors::invalid(
                    py,
                    format!("each of `rows` must be from 0 to {last}; got {row}"),
                )
            })
        });
        let indices = indices.collect::<PyResult<Vec<usize>>>()?;
        if let Some(bad) = priorities
            .iter()
            .find(|it| !(0.0..=MAX_WEIGHT).contains(*it))
        {
            let text = format!("each of `priorities` must be from 0 to {MAX_WEIGHT:e}; got {bad}");
            return Err(errors::invalid(py, text));
        }
        let mut tree = self.priorities.lock();
        for (index, priority) in indices.into_iter().zip(priorities) {
            tree.set(index, *priority);
        }
        Ok(())
    }

    /// The sum of all priorities.
    fn total(&self) -> f64 {
        self.priorities.lock().tree().total()
    }

    /// The largest priority.
    fn largest(&self) -> f64 {
        self.priorities.lock().largest()
    }

    /// Number of rows with a priority above 0.
    fn non_zero(&self) -> usize {
        self.priorities.lock().tree().non_zero()
    }

    /// For each of `masses`, from 0 to the total: the first row for which the sum of all priorities up to and including
    /// its own exceeds the mass; if the mass equals the total, the last row with a priority above 0.
    fn find<'py>(&self, masses: &Bound<'py, PyArray1<f64>>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let py = masses.py();
        let masses = masses.readonly();
        let mut priorities = self.priorities.lock();
        let tree = priorities.tree();
        if tree.non_zero() == 0 {
            return Err(errors::invalid(py, "all priorities are 0".into()));
        }
        let mut rows = Vec::with_capacity(masses.len()?);
        tree.find(masses.as_slice()?, &mut rows);
        let rows = rows
            .into_iter()
            .map(|row| i64::try_from(row).unwrap_or(i64::MAX));
        Ok(PyArray1::from_iter(py, rows))
    }
}
