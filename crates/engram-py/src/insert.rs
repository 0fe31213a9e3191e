//! `Store.insert`: builds one item, and inserts it into one or several tables.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use engram_core::text::{count, describe_column};
use engram_core::{
    CellSpec, ChunkBuilder, Compression, Compressor, Error, NewItem, Origin, Result, Schema, Shape,
    Signature, TableOptions, Trajectory,
};
use pyo3::prelude::*;
use pyo3::types::PyWeakrefReference;

use crate::blocked_reason::{Blocked, blocked_reason};
use crate::errors;
use crate::gil::{Timeout, detached};
use crate::insert_item::{insert_local, insert_remote};
use crate::leaf::{Leaf, prevent_resize};
use crate::structure::{Structure, with_array_hint};
use crate::tables::{TOTAL_REPLY_GRACE, Tables};

/// Maximum wait for the tables' statistics, which explain in the error text why a deadline was missed.
const MAX_EXPLANATION_WAIT: Duration = Duration::from_millis(400);

/// Inserts single items. Caches the template of the last item, because the next one usually matches it.
#[derive(Debug, Default)]
pub(crate) struct Inserter {
    last: Mutex<Option<Arc<ItemTemplate>>>,
}

/// Structure and schema of an item. Items that match it need not be explored again.
#[derive(Debug)]
struct ItemTemplate {
    structure: Structure,
    schema: Arc<Schema>,
    /// True if the first axis of each leaf is time; false for items of one step without a time axis.
    time_axis: bool,
    /// The signature from which Python numbers got their dtypes in `schema`.
    signature: Option<Arc<Signature>>,
}

/// A key, the tables' options, and an item for each table.
type Prepared = (u64, Vec<Arc<TableOptions>>, Vec<NewItem>);

impl Inserter {
    /// Inserts one item into several tables, which share its data; returns its key.
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
            let text = "`priorities` must name at least one table; got none";
            return Err(errors::invalid(py, text.into()));
        }
        let deadline = timeout.deadline();
        let names: Vec<&str> = priorities.iter().map(|(name, _)| name.as_str()).collect();
        let describe = |waited: &str| {
            let reasons = names.iter();
            let reasons = reasons.map(|name| blocked_reason(tables, name, Blocked::Inserting));
            let reasons: String = reasons.collect();
            format!("`insert` has waited {waited} for a table to accept an item{reasons}")
        };
        let attempt = || {
            let until = (timeout, deadline);
            let (key, options, items) = self
                .prepare(tables, data, priorities, until, time_axis)
                .map_err(|error| with_array_hint(error, data))?;
            match tables {
                Tables::Local(engine) => {
                    let accepted = insert_local(py, engine, &names, items, deadline, &describe)?;
                    Ok((key, accepted))
                }
                Tables::Remote(remote) => {
                    let inserted = insert_remote(py, remote, &options, items, until, &describe);
                    inserted.map(|(key, accepted)| (key, (accepted, false)))
                }
            }
        };
        let (key, (accepted, is_deadlock)) = match (tables, &names[..]) {
            // If a table rejects the item, the cached options may be out of date: then try once more.
            (Tables::Remote(remote), [table]) => attempt().or_else(|error| {
                if errors::is_item_rejection(py, &error) && remote.forget_options(table) {
                    attempt()
                } else {
                    Err(error)
                }
            })?,
            // All or nothing: the options of every table must be current.
            (Tables::Remote(remote), tables) => {
                for table in tables {
                    remote.forget_options(table);
                }
                attempt()?
            }
            (Tables::Local(_), _) => attempt()?,
        };
        let names_where = |has_item: bool| {
            let outcomes = names.iter().zip(&accepted);
            outcomes
                .filter(|(_, accepted)| **accepted == has_item)
                .map(|(name, _)| format!("`{name}`"))
                .collect::<Vec<_>>()
        };
        let tables_without_item = names_where(false);
        if tables_without_item.is_empty() {
            return Ok(key);
        }
        // A server that has replied after the deadline leaves less time for the explanation.
        let latest = Instant::now() + MAX_EXPLANATION_WAIT;
        let explain_by =
            deadline.map_or(latest, |deadline| latest.min(deadline + TOTAL_REPLY_GRACE));
        let infos = tables.infos_until(py, explain_by)?;
        let reasons = names
            .iter()
            .zip(&accepted)
            .filter(|(_, accepted)| !**accepted)
            .filter_map(|(name, _)| {
                let info = infos.iter().find(|info| info.options.name == *name)?;
                info.inserting_blocked
                    .as_ref()
                    .map(|why| format!("; {why}"))
            });
        let noun = if tables_without_item.len() == 1 {
            "table"
        } else {
            "tables"
        };
        let others = names_where(true);
        let others = if others.is_empty() {
            "no table has the item".to_string()
        } else {
            let have = if others.len() == 1 { "has" } else { "have" };
            format!("only {} {have} the item", others.join(", "))
        };
        let (tables, reasons) = (tables_without_item.join(", "), reasons.collect::<String>());
        let error = if is_deadlock {
            Error::Backpressure(format!(
                "{noun} {tables} did not accept the item; {others}{reasons}; this is the only thread of the process, so \
                 nothing is sampled while the call waits: sample before you insert more, or pass `timeout`"
            ))
        } else {
            Error::DeadlineExceeded(format!(
                "{noun} {tables} did not accept the item within {} s; {others}{reasons}",
                timeout.seconds()
            ))
        };
        Err(errors::to_py(py, &error))
    }

    /// Builds an item for each table, and checks it against the options of each: all or nothing.
    fn prepare(
        &self,
        tables: &Tables,
        data: &Bound<'_, PyAny>,
        priorities: &[(String, f64)],
        until: (Timeout, Option<Instant>),
        time_axis: bool,
    ) -> PyResult<Prepared> {
        let py = data.py();
        let _resize_guards = match tables {
            Tables::Local(_) => Vec::new(),
            // During a request other threads run; they must not resize arrays that are not read yet.
            Tables::Remote(_) => self.prevent_resizes(data)?,
        };
        let options = priorities.iter().map(|(name, _)| match tables {
            Tables::Local(_) => tables.options(py, name),
            Tables::Remote(remote) => remote.table_options(py, name, until),
        });
        let options = options.collect::<PyResult<Vec<_>>>()?;
        let signature = options.iter().find_map(|table| table.signature.clone());
        let (template, leaves) = self.template_for(data, time_axis, signature.as_ref())?;
        let steps = count_steps(py, &template, &leaves)?;
        let to_py = |error: Error| errors::to_py(py, &error);
        let mut builder = ChunkBuilder::new(Arc::clone(&template.schema), steps).map_err(to_py)?;
        for (column, leaf) in leaves.iter().enumerate() {
            fill(py, &template, leaf, &mut builder, column, steps)?;
        }
        let key = tables.shard().key(tables.unique_number() >> 1);
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

    /// Prevents other threads from resizing the arrays of a nest.
    fn prevent_resizes<'py>(
        &self,
        data: &Bound<'py, PyAny>,
    ) -> PyResult<Vec<Vec<Bound<'py, PyWeakrefReference>>>> {
        let mut leaves = Vec::new();
        let matches = match self.last() {
            Some(template) => template.structure.root.flatten(data, &mut leaves)?,
            None => false,
        };
        if !matches {
            (_, leaves) = Structure::of(data)?;
        }
        let arrays = leaves.iter().filter_map(|leaf| leaf.cast().ok());
        arrays.map(prevent_resize).collect()
    }

    /// Template of the last item.
    fn last(&self) -> Option<Arc<ItemTemplate>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.clone()
    }

    /// Reads the leaves of an item. Returns them with the cached template, or a new one if it does not match.
    fn template_for<'py>(
        &self,
        data: &Bound<'py, PyAny>,
        time_axis: bool,
        signature: Option<&Arc<Signature>>,
    ) -> PyResult<(Arc<ItemTemplate>, Vec<Leaf<'py>>)> {
        // A Python number has no dtype of its own: it gets that of the signature, or that of a new column.
        let declared = |column: usize, columns: usize| {
            let signature = signature.filter(|signature| signature.columns.len() == columns)?;
            Some(signature.columns[column].dtype)
        };
        let last = self.last();
        let same_signature = |template: &Arc<ItemTemplate>| {
            template.signature.as_ref().map(Arc::as_ptr) == signature.map(Arc::as_ptr)
        };
        if let Some(template) =
            last.filter(|template| template.time_axis == time_axis && same_signature(template))
        {
            let cells = &template.schema.cells;
            let mut values = Vec::with_capacity(cells.len());
            if template.structure.root.flatten(data, &mut values)? {
                let leaves = read_leaves(&values, &template.structure.names)?;
                let fits = |(column, (leaf, cell)): (usize, (&Leaf<'_>, &CellSpec))| {
                    if time_axis {
                        cell_spec(leaf, time_axis).is_some_and(|spec| spec == *cell)
                    } else {
                        leaf.matches(cell)
                            && leaf.column_dtype(declared(column, cells.len())) == cell.dtype
                    }
                };
                if leaves.iter().zip(cells).enumerate().all(fits) {
                    return Ok((template, leaves));
                }
            }
        }
        let (structure, values) = Structure::of(data)?;
        let leaves = read_leaves(&values, &structure.names)?;
        let py = data.py();
        let cells = leaves
            .iter()
            .zip(&structure.names)
            .enumerate()
            .map(|(column, (leaf, name))| {
                let cell = cell_spec(leaf, time_axis).ok_or_else(|| {
                    let text = format!(
                        "with time_axis=True every column must have shape [T, ...]; {} has shape []",
                        describe_column(name)
                    );
                    errors::signature(py, text)
                })?;
                let dtype = leaf.column_dtype(declared(column, leaves.len()));
                Ok(CellSpec { dtype, ..cell })
            })
            .collect::<PyResult<_>>()?;
        let layout = structure.layout();
        let template = Arc::new(ItemTemplate {
            structure,
            schema: Arc::new(Schema { layout, cells }),
            time_axis,
            signature: signature.cloned(),
        });
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&template));
        Ok((template, leaves))
    }
}

fn read_leaves<'py>(values: &[Bound<'py, PyAny>], names: &[String]) -> PyResult<Vec<Leaf<'py>>> {
    values
        .iter()
        .zip(names)
        .map(|(value, name)| Leaf::new(value, name))
        .collect()
}

/// Dtype and shape of one step of a leaf; `None` if it lacks the time axis that it should have.
fn cell_spec(leaf: &Leaf<'_>, time_axis: bool) -> Option<CellSpec> {
    let CellSpec { dtype, shape } = leaf.spec();
    if !time_axis {
        return Some(CellSpec { dtype, shape });
    }
    let shape = Shape::from_slice(shape.split_first()?.1);
    Some(CellSpec { dtype, shape })
}

/// Returns the number of steps of the item; checks that all columns have it.
fn count_steps(py: Python<'_>, template: &ItemTemplate, leaves: &[Leaf<'_>]) -> PyResult<usize> {
    if leaves.is_empty() {
        return Err(errors::signature(
            py,
            "`data` must have at least one leaf; got an empty nest".into(),
        ));
    }
    if !template.time_axis {
        return Ok(1);
    }
    let lengths: Vec<usize> = leaves.iter().map(|leaf| leaf.spec().shape[0]).collect();
    if lengths.iter().all(|len| *len == lengths[0]) && lengths[0] > 0 {
        return Ok(lengths[0]);
    }
    let listed: Vec<String> = template
        .structure
        .names
        .iter()
        .zip(&lengths)
        .map(|(name, len)| match (name.as_str(), count(*len, "step")) {
            ("", steps) => steps,
            (name, steps) => format!("`{name}` with {steps}"),
        })
        .collect();
    let text = format!(
        "with time_axis=True all columns must have the same number of steps, at least 1; got {}",
        listed.join(", ")
    );
    Err(errors::signature(py, text))
}

/// Copies a leaf into its column.
fn fill(
    py: Python<'_>,
    template: &ItemTemplate,
    leaf: &Leaf<'_>,
    builder: &mut ChunkBuilder,
    column: usize,
    steps: usize,
) -> PyResult<()> {
    let cell = &template.schema.cells[column];
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
        &template.structure.names[column],
    )?;
    builder.set_rows(column, u32::try_from(steps).unwrap_or(u32::MAX));
    Ok(())
}

/// Compresses the columns into a chunk, and returns an item of all its steps.
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
