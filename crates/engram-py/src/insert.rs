//! `Store.insert`: a whole item in one call.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use engram_core::{
    CellSpec, ChunkBuilder, Compression, Compressor, Error, Layout, NewItem, Origin, Result,
    Schema, Shape, Signature, TableOptions, Trajectory,
};
use pyo3::prelude::*;
use pyo3::types::PyWeakrefReference;

use crate::errors;
use crate::gil::{Timeout, detached};
use crate::insert_item::{insert_local, insert_remote};
use crate::leaf::{Leaf, hold};
use crate::structure::Structure;
use crate::tables::{ANSWERS, Tables};

/// How long an explanation of a deadline is worth waiting for.
const EXPLAIN: Duration = Duration::from_millis(400);

/// Remembers what the last item looked like: usually the next one looks the same.
#[derive(Debug, Default)]
pub(crate) struct Inserter {
    last: Mutex<Option<Arc<Known>>>,
}

#[derive(Debug)]
struct Known {
    structure: Structure,
    schema: Arc<Schema>,
    time_axis: bool,
    /// Whose dtypes plain numbers took.
    asked: Option<Arc<Signature>>,
}

/// A key, the tables' options, and an item for each.
type Prepared = (u64, Vec<Arc<TableOptions>>, Vec<NewItem>);

impl Inserter {
    /// Inserts one item into several tables, all sharing its data; returns its key.
    pub(crate) fn insert(
        &self,
        tables: &Tables,
        data: &Bound<'_, PyAny>,
        priorities: &[(String, f64)],
        timeout: Timeout,
        time_axis: bool,
    ) -> PyResult<u64> {
        let py = data.py();
        if priorities.is_empty() {
            let text = "no table to insert into; priorities must name at least one table";
            return Err(errors::invalid(py, text.into()));
        }
        let deadline = timeout.deadline();
        let wanted: Vec<&str> = priorities.iter().map(|(name, _)| name.as_str()).collect();
        let attempt = || {
            let until = (timeout, deadline);
            let (key, options, items) = self.prepare(tables, data, priorities, until, time_axis)?;
            let taken = match tables {
                Tables::Local(engine) => insert_local(py, engine, &wanted, items, deadline)?,
                Tables::Remote(link) => insert_remote(py, link, &options, items, until)?,
            };
            Ok((key, taken))
        };
        let (key, taken) = match (tables, &wanted[..]) {
            // What we remember of the table may be out of date: then it has refused the item.
            (Tables::Remote(link), [table]) => attempt().or_else(|error| {
                if errors::is_about_data(py, &error) && link.forget(table) {
                    attempt()
                } else {
                    Err(error)
                }
            })?,
            // All or nothing: every table is asked.
            (Tables::Remote(link), tables) => {
                for table in tables {
                    link.forget(table);
                }
                attempt()?
            }
            (Tables::Local(_), _) => attempt()?,
        };
        let named = |is_in: bool| {
            let each = wanted.iter().zip(&taken);
            each.filter(|(_, taken)| **taken == is_in)
                .map(|(name, _)| format!("`{name}`"))
                .collect::<Vec<_>>()
        };
        let late = named(false);
        if late.is_empty() {
            return Ok(key);
        }
        // What a slow server has taken already, beyond the deadline, is not there any more.
        let soon = Instant::now() + EXPLAIN;
        let by = deadline.map_or(soon, |deadline| soon.min(deadline + ANSWERS));
        let infos = tables.infos_soon(py, by)?;
        let whys = wanted
            .iter()
            .zip(&taken)
            .filter(|(_, taken)| !**taken)
            .filter_map(|(name, _)| {
                let info = infos.iter().find(|info| info.options.name == *name)?;
                info.inserting_blocked
                    .as_ref()
                    .map(|why| format!("; {why}"))
            });
        let noun = if late.len() == 1 { "table" } else { "tables" };
        let others = named(true);
        let others = if others.is_empty() {
            "no table has it".to_string()
        } else {
            format!("only {} has it", others.join(", "))
        };
        let text = format!(
            "{noun} {} did not take the item within {} s: {others}{}",
            late.join(", "),
            timeout.seconds(),
            whys.collect::<String>()
        );
        Err(errors::to_py(py, &Error::DeadlineExceeded(text)))
    }

    /// Makes an item for each table, and lets each look at it: all or nothing.
    fn prepare(
        &self,
        tables: &Tables,
        data: &Bound<'_, PyAny>,
        priorities: &[(String, f64)],
        until: (Timeout, Option<Instant>),
        time_axis: bool,
    ) -> PyResult<Prepared> {
        let py = data.py();
        let _held = match tables {
            Tables::Local(_) => Vec::new(),
            // Asking a server lets other threads run: they must not resize what we have not read yet.
            Tables::Remote(_) => self.hold_all(data)?,
        };
        let options = priorities.iter().map(|(name, _)| match tables {
            Tables::Local(_) => tables.options(py, name),
            Tables::Remote(link) => link.described(py, name, until),
        });
        let options = options.collect::<PyResult<Vec<_>>>()?;
        let asked = options.iter().find_map(|table| table.signature.clone());
        let (known, leaves) = self.look(data, time_axis, asked.as_ref())?;
        let steps = steps(py, &known, &leaves)?;
        let wrong = |error: Error| errors::to_py(py, &error);
        let mut builder = ChunkBuilder::new(Arc::clone(&known.schema), steps).map_err(wrong)?;
        for (column, leaf) in leaves.iter().enumerate() {
            fill(py, &known, leaf, &mut builder, column, steps)?;
        }
        let key = tables.unique_number() >> 1;
        let items = detached(py, || {
            let item = seal(tables, builder, key, steps, !time_axis)?;
            let items = priorities.iter().map(|(_, priority)| NewItem {
                priority: *priority,
                ..item.clone()
            });
            let items: Vec<NewItem> = items.collect();
            for (table, item) in options.iter().zip(&items) {
                table.check_item(item)?;
            }
            Ok(items)
        })?;
        Ok((key, options, items))
    }

    /// Keeps other threads from resizing the arrays of a nest.
    fn hold_all<'py>(
        &self,
        data: &Bound<'py, PyAny>,
    ) -> PyResult<Vec<Vec<Bound<'py, PyWeakrefReference>>>> {
        let mut leaves = Vec::new();
        let is_known = match self.last() {
            Some(known) => known.structure.flatten(data, &mut leaves)?,
            None => false,
        };
        if !is_known {
            (_, leaves) = Structure::of(data)?;
        }
        let arrays = leaves.iter().filter_map(|leaf| leaf.cast().ok());
        arrays.map(hold).collect()
    }

    fn last(&self) -> Option<Arc<Known>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.clone()
    }

    fn look<'py>(
        &self,
        data: &Bound<'py, PyAny>,
        time_axis: bool,
        asked: Option<&Arc<Signature>>,
    ) -> PyResult<(Arc<Known>, Vec<Leaf<'py>>)> {
        let last = self.last();
        let same_table =
            |known: &Arc<Known>| known.asked.as_ref().map(Arc::as_ptr) == asked.map(Arc::as_ptr);
        if let Some(known) = last.filter(|known| known.time_axis == time_axis && same_table(known))
        {
            let mut values = Vec::with_capacity(known.schema.cells.len());
            if known.structure.flatten(data, &mut values)? {
                let leaves = look_at(&values, &known.structure.names)?;
                let same = |(leaf, cell): (&Leaf<'_>, &CellSpec)| match cell_of(leaf, time_axis) {
                    Some(found) if time_axis => found == *cell,
                    _ => !time_axis && leaf.matches(cell),
                };
                if leaves.iter().zip(&known.schema.cells).all(same) {
                    return Ok((known, leaves));
                }
            }
        }
        let (structure, values) = Structure::of(data)?;
        let leaves = look_at(&values, &structure.names)?;
        let py = data.py();
        let cells = leaves
            .iter()
            .zip(&structure.names)
            .map(|(leaf, name)| {
                cell_of(leaf, time_axis).ok_or_else(|| {
                    let text = format!(
                        "column `{name}` has no time axis; with time_axis=True every column must be [T, ...]"
                    );
                    errors::signature(py, text)
                })
            })
            .collect::<PyResult<Vec<_>>>()?;
        // Python numbers have no dtype of their own: they take the one that is asked for.
        let cells = match asked.filter(|asked| asked.columns.len() == cells.len()) {
            Some(asked) => cells
                .into_iter()
                .zip(&leaves)
                .zip(&asked.columns)
                .map(|((cell, leaf), column)| {
                    let wanted = CellSpec {
                        dtype: column.dtype,
                        ..cell.clone()
                    };
                    if leaf.matches(&wanted) { wanted } else { cell }
                })
                .collect(),
            None => cells.into(),
        };
        let names = structure
            .names
            .iter()
            .map(|name| name.as_str().into())
            .collect();
        let layout = Arc::new(Layout {
            names,
            structure: structure.text.as_str().into(),
        });
        let known = Arc::new(Known {
            structure,
            schema: Arc::new(Schema { layout, cells }),
            time_axis,
            asked: asked.cloned(),
        });
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&known));
        Ok((known, leaves))
    }
}

fn look_at<'py>(values: &[Bound<'py, PyAny>], names: &[String]) -> PyResult<Vec<Leaf<'py>>> {
    values
        .iter()
        .zip(names)
        .map(|(value, name)| Leaf::new(value, name))
        .collect()
}

/// What one step of the leaf looks like; `None` when it should have a time axis and has none.
fn cell_of(leaf: &Leaf<'_>, time_axis: bool) -> Option<CellSpec> {
    let CellSpec { dtype, shape } = leaf.spec();
    if !time_axis {
        return Some(CellSpec { dtype, shape });
    }
    let shape = Shape::from_slice(shape.split_first()?.1);
    Some(CellSpec { dtype, shape })
}

/// How many steps the item has.
fn steps(py: Python<'_>, known: &Known, leaves: &[Leaf<'_>]) -> PyResult<usize> {
    if leaves.is_empty() {
        return Err(errors::signature(
            py,
            "the item has no columns; it needs at least one leaf".into(),
        ));
    }
    if !known.time_axis {
        return Ok(1);
    }
    let lengths: Vec<usize> = leaves.iter().map(|leaf| leaf.spec().shape[0]).collect();
    if lengths.iter().all(|len| *len == lengths[0]) && lengths[0] > 0 {
        return Ok(lengths[0]);
    }
    let found: Vec<String> = known
        .structure
        .names
        .iter()
        .zip(&lengths)
        .map(|(name, len)| format!("`{name}` {len}"))
        .collect();
    let text = format!(
        "columns have {} steps; with time_axis=True all must have the same number, at least 1",
        found.join(", ")
    );
    Err(errors::signature(py, text))
}

fn fill(
    py: Python<'_>,
    known: &Known,
    leaf: &Leaf<'_>,
    builder: &mut ChunkBuilder,
    column: usize,
    steps: usize,
) -> PyResult<()> {
    let cell = &known.schema.cells[column];
    if matches!(leaf, Leaf::Strings { .. }) {
        for encoded in leaf.split_strings(cell.elements(), steps) {
            builder
                .push_string(column, &encoded)
                .map_err(|error| errors::to_py(py, &error))?;
        }
        return Ok(());
    }
    leaf.copy_to(
        cell.dtype,
        builder.column_mut(column),
        &known.structure.names[column],
    )?;
    builder.set_rows(column, u32::try_from(steps).unwrap_or(u32::MAX));
    Ok(())
}

fn seal(
    tables: &Tables,
    builder: ChunkBuilder,
    key: u64,
    steps: usize,
    squeeze: bool,
) -> Result<NewItem> {
    let origin = Origin {
        key: tables.unique_number(),
        episodes: [tables.unique_number()].into_iter().collect(),
        first_step: 0,
        steps: u32::try_from(steps).unwrap_or(u32::MAX),
    };
    let len = origin.steps;
    let chunk = builder.seal(origin, &mut Compressor::new(Compression::Auto))?;
    let trajectory = Trajectory::Rows {
        chunk: Arc::new(chunk),
        offset: 0,
        len,
        squeeze,
    };
    Ok(NewItem {
        key,
        trajectory,
        priority: 0.0,
    })
}
