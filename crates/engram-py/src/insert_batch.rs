//! `Store.insert_batch`: many items in one call.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use engram_core::schema::ActualColumn;
use engram_core::text::count;
use engram_core::writer::{ColumnInput, KeySource};
use engram_core::{
    ChunkBuilder, Compression, Compressor, Error, NewItem, Origin, Result, Schema, TableOptions,
    Trajectory,
};
use engram_engine::Until;
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;

use crate::errors;
use crate::gil::{Timeout, detached, wait_for};
use crate::insert_item::flush_acks;
use crate::outbox::{AnyOutbox, WaitEnd};
use crate::stacked_leaves::{Axis, StackedLeaves};
use crate::structure::{Structure, with_array_hint};
use crate::tables::Tables;

/// Target size of a chunk in bytes. Small items share chunks.
const CHUNK_BYTES: usize = 16 << 10;

/// Maximum number of items of a chunk. It limits how long the table is locked at a time, and how much memory is kept by
/// an item that outlives the others of its chunk.
const MAX_ITEMS_PER_CHUNK: usize = 1024;

/// About the maximum bytes of items in flight to a server: the call waits after it has sent a chunk beyond it.
const MAX_BYTES_IN_FLIGHT: usize = 8 << 20;

/// The arguments of a call, except the items.
#[derive(Debug)]
pub(crate) struct InsertBatchCall<'a> {
    pub(crate) table: &'a str,
    /// A priority for all items, or one for each.
    pub(crate) priorities: &'a [f64],
    /// True if `priorities` has one for each item.
    pub(crate) has_priority_per_item: bool,
    /// True if the first two axes of each leaf are items and time; false for items of one step without a time axis.
    pub(crate) time_axis: bool,
    pub(crate) timeout: Timeout,
}

/// Builds chunks and items from arrays.
struct ItemBuilder<'a> {
    schema: Arc<Schema>,
    columns: Vec<ColumnInput<'a>>,
    /// Number of steps of an item; `None` for one step without a time axis.
    steps: Option<usize>,
    /// Target size of a chunk in bytes.
    chunk_bytes: usize,
    /// For items that have a chunk of their own.
    compressor: Compressor,
    keys: KeySource,
    /// The id of the items' episode: those of one call count as one.
    episode: u64,
}

impl InsertBatchCall<'_> {
    /// Inserts the items of a nest of arrays, in order; returns their keys.
    pub(crate) fn insert(&self, tables: &Tables, items: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
        let py = items.py();
        let deadline = self.timeout.deadline();
        let (structure, stacked) = self
            .read(items)
            .map_err(|error| with_array_hint(error, items))?;
        let (len, steps) = (stacked.sizes[0], stacked.sizes.get(1).copied());
        self.check_priorities(py, len)?;
        // Before any address or length is read, and before other threads run.
        let _resize_guards = stacked.prevent_resize()?;
        let mut outbox = match tables {
            Tables::Local(_) => AnyOutbox::new(tables),
            Tables::Remote(remote) => {
                // The table may have been replaced under its name since its options were cached.
                remote.forget_options(self.table);
                flush_acks(py, remote, deadline)?;
                AnyOutbox::Remote(Arc::clone(remote), remote.outbox())
            }
        };
        let until = (self.timeout, deadline);
        let table = match &mut outbox {
            AnyOutbox::Local(..) => outbox.table_number(py, self.table, until)?,
            // A reused outbox may know an earlier table of this name.
            AnyOutbox::Remote(remote, outbox) => {
                outbox.table_number(&remote.request_table_options(py, self.table, until)?)
            }
        };
        let options = Arc::clone(outbox.options(table));
        let schema = Arc::new(schema_of(&structure, &stacked));
        let mut builder = ItemBuilder {
            columns: stacked.columns()?,
            steps,
            chunk_bytes: chunk_bytes(&options),
            compressor: Compressor::new(Compression::Auto),
            keys: KeySource::new(tables.unique_number(), outbox.shard()),
            episode: tables.unique_number(),
            schema,
        };
        self.check_against_table(&options, &builder)
            .map_err(|error| with_array_hint(errors::to_py(py, &error), items))?;
        let mut keys = Vec::with_capacity(len);
        let sent_before = match &outbox {
            AnyOutbox::Local(..) => 0,
            AnyOutbox::Remote(_, outbox) => outbox.progress().sent(table),
        };
        let sent = self.send(
            py,
            &mut outbox,
            table,
            &mut builder,
            len,
            &mut keys,
            deadline,
        );
        match sent {
            Ok(WaitEnd::Done) => {
                if let AnyOutbox::Remote(remote, outbox) = outbox {
                    for (key, number) in keys.iter_mut().zip(sent_before + 1..) {
                        *key = outbox.final_key(table, number, *key);
                    }
                    remote.recycle_outbox(outbox);
                }
                Ok(keys)
            }
            Ok(waited) => self.stop(py, outbox, waited, keys, len),
            Err(error) => {
                let (left, is_final) = outbox.withdraw(py);
                let inserted = keys.len().saturating_sub(left);
                let uncertain = if is_final { 0 } else { left };
                Err(with_inserted(py, error, (inserted, uncertain), len))
            }
        }
    }

    /// Reads and checks the items.
    fn read<'py>(&self, items: &Bound<'py, PyAny>) -> PyResult<(Structure, StackedLeaves<'py>)> {
        let py = items.py();
        let (structure, values) = Structure::of(items)?;
        if values.is_empty() {
            let text = "`items` must have at least one leaf; got an empty nest";
            return Err(errors::signature(py, text.into()));
        }
        let axes = [Axis::any("N", "item"), Axis::any("T", "step")];
        let axes = &axes[..if self.time_axis { 2 } else { 1 }];
        let stacked = StackedLeaves::read(py, &values, &structure.names, axes, false)?;
        if stacked.sizes[1..] == [0] && stacked.sizes[0] > 0 {
            let text =
                "with time_axis=True the items must have at least 1 step; got shape [N, 0, ...]";
            return Err(errors::signature(py, text.into()));
        }
        Ok((structure, stacked))
    }

    fn check_priorities(&self, py: Python<'_>, len: usize) -> PyResult<()> {
        if !self.has_priority_per_item || self.priorities.len() == len {
            return Ok(());
        }
        let text = format!(
            "`priorities` must be a number, or have one entry for each of {}; got {}",
            count(len, "item"),
            self.priorities.len()
        );
        Err(errors::invalid(py, text))
    }

    /// Checks all priorities, and the columns of the items, against the options of their table.
    fn check_against_table(&self, options: &TableOptions, builder: &ItemBuilder<'_>) -> Result<()> {
        let mut priorities = self.priorities.iter();
        priorities.try_for_each(|priority| options.check_priority(*priority))?;
        let Some(signature) = &options.signature else {
            return Ok(());
        };
        let schema = &builder.schema;
        let columns = schema.layout.names.iter().zip(&schema.cells);
        let columns = columns.map(|(name, cell)| ActualColumn {
            name,
            cell,
            len: builder.steps,
        });
        signature.check(&options.name, columns)
    }

    /// Builds and sends chunk after chunk. A chunk is built only when the table's rate limiter has allowed all items of
    /// the chunk before it, and not too many items are in flight. Returns how the last wait has ended. Appends the keys
    /// of the items that were sent to `keys`.
    #[expect(clippy::too_many_arguments, reason = "the state of one call")]
    fn send(
        &self,
        py: Python<'_>,
        outbox: &mut AnyOutbox,
        table: u32,
        builder: &mut ItemBuilder<'_>,
        len: usize,
        keys: &mut Vec<u64>,
        deadline: Option<Instant>,
    ) -> PyResult<WaitEnd> {
        let max_chunks_in_flight =
            (MAX_BYTES_IN_FLIGHT / builder.chunk_bytes.max(builder.item_bytes(0))).max(1);
        while keys.len() < len {
            py.check_signals()?;
            if !outbox.wait_for_journal(py, deadline)? {
                return Ok(WaitEnd::JournalFull);
            }
            let items = builder.next_items(keys.len()..len);
            let priorities = self.priorities.get(if self.has_priority_per_item {
                items.clone()
            } else {
                0..1
            });
            let built = detached(py, || builder.build(items, priorities.unwrap_or_default()))?;
            let new_keys: Vec<u64> = built.iter().map(|item| item.key).collect();
            outbox.send(py, built.into_iter().map(|item| (table, item)))?;
            keys.extend_from_slice(&new_keys);
            outbox.collect_finished(py)?;
            let max_in_flight = max_chunks_in_flight * new_keys.len();
            let until = if outbox.in_flight() == 0 {
                continue;
            } else if outbox.waiting(py) > 0 {
                Until::WaitingAtMost(0)
            } else if outbox.in_flight() > max_in_flight {
                Until::InFlightAtMost(max_in_flight)
            } else {
                continue;
            };
            let waited = outbox.wait_for_others(py, until, deadline)?;
            if waited != WaitEnd::Done {
                return Ok(waited);
            }
        }
        outbox.wait_for_others(py, Until::Complete, deadline)
    }

    /// Withdraws the items that the table did not accept. Returns the keys if the table has accepted all items by now.
    fn stop(
        &self,
        py: Python<'_>,
        outbox: AnyOutbox,
        waited: WaitEnd,
        keys: Vec<u64>,
        len: usize,
    ) -> PyResult<Vec<u64>> {
        let reason = match waited {
            WaitEnd::JournalFull => {
                "; the disk cannot keep up: the buffer of unwritten changes stayed full".into()
            }
            _ => outbox.blocked_reason(py),
        };
        let engine = outbox.engine().cloned();
        let (left, is_final) = outbox.withdraw(py);
        if left == 0 && keys.len() == len {
            if let Some(engine) = engine {
                wait_for(py, &mut engine.until_durable(), None)?;
            }
            return Ok(keys);
        }
        let has = if is_final {
            describe_inserted(keys.len() - left, len)
        } else {
            format!("it is unknown how many of {} it has", count(len, "item"))
        };
        let error = if waited == WaitEnd::Deadlock {
            Error::Backpressure(format!(
                "table `{}` does not accept more items now; {has}{reason}; this is the only thread of the process, so nothing \
                 is sampled while the call waits: insert fewer items at once, or sample in another thread",
                self.table
            ))
        } else {
            Error::DeadlineExceeded(format!(
                "table `{}` did not accept all items within {} s; {has}{reason}",
                self.table,
                self.timeout.seconds()
            ))
        };
        Err(errors::to_py(py, &error))
    }
}

impl ItemBuilder<'_> {
    /// Number of rows of an item.
    fn rows(&self) -> usize {
        self.steps.unwrap_or(1)
    }

    /// Bytes of an item's cells.
    fn item_bytes(&self, item: usize) -> usize {
        let rows = self.rows();
        let columns = self.columns.iter().zip(&self.schema.cells);
        let bytes = columns.map(|(column, cell)| match column {
            ColumnInput::Cells(_) => cell.bytes() * rows,
            ColumnInput::Strings(cells) => {
                let cells = cells.get(item * rows..(item + 1) * rows);
                cells.into_iter().flatten().map(|cell| cell.len() + 4).sum()
            }
        });
        bytes.sum()
    }

    /// Returns the items of the next chunk, which begin with the first of `items`: as many as fit into the chunk's
    /// target size, but at least one.
    fn next_items(&self, items: Range<usize>) -> Range<usize> {
        let has_strings = (self.columns.iter()).any(|c| matches!(c, ColumnInput::Strings(_)));
        let max = items.len().min(MAX_ITEMS_PER_CHUNK);
        let len = if has_strings {
            let mut bytes = 0;
            let fits = |item: &usize| {
                bytes += self.item_bytes(*item);
                bytes <= self.chunk_bytes
            };
            items.clone().take(max).take_while(fits).count()
        } else {
            max.min(self.chunk_bytes / self.item_bytes(items.start).max(1))
        };
        items.start..items.start + len.max(1)
    }

    /// Builds a chunk with the rows of these items, and the items. `priorities` has one for each item, or one for all.
    fn build(&mut self, items: Range<usize>, priorities: &[f64]) -> Result<Vec<NewItem>> {
        let rows_per_item = self.rows();
        let rows = items.start * rows_per_item..items.end * rows_per_item;
        let mut chunk = ChunkBuilder::new(Arc::clone(&self.schema), rows.len())?;
        for (column, data) in self.columns.iter().enumerate() {
            match data {
                ColumnInput::Cells(bytes) => chunk.push_cells(column, *bytes, rows.clone()),
                ColumnInput::Strings(cells) => {
                    let mut cells = cells[rows.clone()].iter();
                    cells.try_for_each(|cell| chunk.push_string(column, cell))?;
                }
            }
        }
        let origin = Origin {
            key: self.keys.next_key(),
            episodes: [self.episode].into_iter().collect(),
            first_step: rows.start as u64,
            steps: to_u32(rows.len()),
        };
        // Readers use a few rows of a shared chunk, so decompressing all of it would be too slow.
        let mut off = Compressor::new(Compression::Off);
        let shared = items.len() > 1;
        let compressor = if shared {
            &mut off
        } else {
            &mut self.compressor
        };
        let chunk = Arc::new(chunk.seal(origin, compressor)?);
        let (len, squeeze) = (to_u32(rows_per_item), self.steps.is_none());
        let built = (0..items.len()).map(|index| NewItem {
            key: self.keys.next_key(),
            trajectory: Trajectory::Rows {
                chunk: Arc::clone(&chunk),
                offset: to_u32(index * rows_per_item),
                len,
                squeeze,
            },
            priority: priorities[index.min(priorities.len() - 1)],
        });
        Ok(built.collect())
    }
}

/// Target size of the chunks for a table: a small part of its `max_bytes`.
fn chunk_bytes(options: &TableOptions) -> usize {
    let part = options.max_bytes.map(|max| usize::try_from(max / 16));
    part.map_or(CHUNK_BYTES, |part| {
        part.unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES)
    })
}

fn schema_of(structure: &Structure, stacked: &StackedLeaves<'_>) -> Schema {
    let cells = stacked
        .leaves
        .iter()
        .flatten()
        .map(|leaf| leaf.cell.clone());
    Schema {
        layout: structure.layout(),
        cells: cells.collect(),
    }
}

/// States how many of the items of a call the table has.
fn describe_inserted(inserted: usize, len: usize) -> String {
    match inserted {
        0 => format!("it has none of {}", count(len, "item")),
        inserted => format!("it has the first {inserted} of {}", count(len, "item")),
    }
}

/// Adds to an error how many of the call's `len` items the table has: `inserted`, and some of the `uncertain` ones after
/// them. Not if that is obvious: all items were sent, or none was inserted before one that was rejected.
fn with_inserted(
    py: Python<'_>,
    error: PyErr,
    (inserted, uncertain): (usize, usize),
    len: usize,
) -> PyErr {
    let about_an_item =
        errors::is_item_rejection(py, &error) || error.is_instance_of::<PyMemoryError>(py);
    let is_obvious = if about_an_item {
        inserted == 0 || uncertain > 0
    } else {
        !errors::is_storage(py, &error) && !errors::is_unavailable(py, &error)
            || inserted + uncertain == len
    };
    if is_obvious {
        return error;
    }
    let text = if errors::is_unavailable(py, &error) {
        let acknowledged = match inserted {
            0 => "none".into(),
            inserted => format!("the first {inserted}"),
        };
        let items = count(len, "item");
        format!(
            "; the server has acknowledged {acknowledged} of {items}, and perhaps inserted some of the next {uncertain}"
        )
    } else {
        let has = describe_inserted(inserted, len).replacen("it has", "the table has", 1);
        format!("; {has}")
    };
    errors::append_text(py, error, &text)
}

/// Converts a number of rows of a chunk, which fits 32 bits: `ChunkBuilder::new` has checked it.
fn to_u32(rows: usize) -> u32 {
    u32::try_from(rows).unwrap_or(u32::MAX)
}
