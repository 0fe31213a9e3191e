//! Checkpoints of dm-reverb, read into an engine.
//!
//! A checkpoint is a directory with `tables.tfrecord`, `items.tfrecord`, `chunks.tfrecord` and, once it is
//! whole, `DONE`. A directory of checkpoints has them by the time at which they were made.

mod records;
mod table;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engram_core::{Error, Result};
use engram_engine::Engine;
use tonic::{Code, Status};

use crate::chunk::Chunks;
use crate::item::{ByKey, Items};
use crate::pb;
use records::Records;
use table::Incoming;

/// Says that a checkpoint is whole.
const DONE: &str = "DONE";

/// A table that came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Its name.
    pub name: String,
    /// How many items it has.
    pub items: u64,
}

/// Adds the tables of a checkpoint to an engine, with their items, limits and counts. `path` is the checkpoint,
/// or a directory of them, of which it is the newest. All tables come in, or none.
///
/// A table's signature is kept in its note, as Engram's compatible Python part does: items are not checked
/// against it, dm-reverb's clients are told of it.
///
/// # Errors
/// [`Error::Storage`] where there is no whole checkpoint, or it cannot be read, or written where the engine lives
/// in a directory; [`Error::Payload`] where it is damaged; [`Error::InvalidArgument`] for tables or items that
/// cannot be, and for a table whose name is taken.
pub fn import(path: &Path, engine: &Engine) -> Result<Vec<Imported>> {
    let directory = newest(path)?;
    let mut tables = read_tables(&directory)?;
    let names: Vec<String> = tables
        .iter()
        .map(|(saved, _)| saved.table_name.clone())
        .collect();
    let at: HashMap<&str, usize> = names
        .iter()
        .enumerate()
        .map(|(at, name)| (&**name, at))
        .collect();
    if at.len() < names.len() {
        return Err(Error::Payload(format!(
            "{}: two tables have one name, of {names:?}",
            directory.display()
        )));
    }
    // Deletes between a table's list and a chunk's writing do not happen: what an item needs is there.
    let (mut chunks, by_key) = read_chunks(&directory)?;
    let mut records = Records::open(&directory.join("items.tfrecord"))?;
    while let Some(item) = records.next::<pb::PrioritizedItem>()? {
        let Some(at) = at.get(&*item.table) else {
            return Err(Error::Payload(format!(
                "{}: item {} is of table `{}`, which the checkpoint does not have; it has {names:?}",
                directory.display(),
                item.key,
                item.table
            )));
        };
        tables[*at].1.push(item);
    }
    let mut states = Vec::with_capacity(tables.len());
    let mut imported = Vec::with_capacity(tables.len());
    for (saved, items) in tables {
        let mut table = Incoming::new(&saved, items.len() as u64, engine.fresh_number())?;
        for message in &items {
            let item = Items::make(&mut chunks, &by_key, table.options(), message);
            let item = item.map_err(|status| error(&saved.table_name, &status))?;
            table.add(item, message.times_sampled)?;
        }
        imported.push(Imported {
            name: saved.table_name,
            items: table.items(),
        });
        states.push(table.finish()?);
    }
    engine.add_tables(states)?;
    Ok(imported)
}

/// The checkpoint of that name, or the newest in a directory of that name.
fn newest(path: &Path) -> Result<PathBuf> {
    let unreadable =
        |error: &std::io::Error| Error::Storage(format!("{}: {error}", path.display()));
    if path.join(DONE).is_file() {
        return Ok(path.to_owned());
    }
    let mut found: Option<PathBuf> = None;
    for entry in fs::read_dir(path).map_err(|error| unreadable(&error))? {
        let entry = entry.map_err(|error| unreadable(&error))?.path();
        if entry.join(DONE).is_file() && found.as_ref().is_none_or(|found| *found < entry) {
            found = Some(entry);
        }
    }
    found.ok_or_else(|| {
        Error::Storage(format!(
            "{}: no checkpoint of dm-reverb's; it is a directory with `tables.tfrecord`, `items.tfrecord`, \
             `chunks.tfrecord` and `{DONE}`, or one with such directories",
            path.display()
        ))
    })
}

/// Tables, and the items that are in their records: those of old checkpoints.
type Saved = (pb::PriorityTableCheckpoint, Vec<pb::PrioritizedItem>);

fn read_tables(directory: &Path) -> Result<Vec<Saved>> {
    let mut records = Records::open(&directory.join("tables.tfrecord"))?;
    let mut tables = Vec::new();
    while let Some(mut table) = records.next::<pb::PriorityTableCheckpoint>()? {
        let items = std::mem::take(&mut table.deprecated_items);
        tables.push((table, items));
    }
    Ok(tables)
}

fn read_chunks(directory: &Path) -> Result<(Chunks, ByKey)> {
    let path = directory.join("chunks.tfrecord");
    let mut records = Records::open(&path)?;
    let (mut chunks, mut by_key) = (Chunks::default(), ByKey::new());
    while let Some(message) = records.next::<pb::ChunkData>()? {
        let chunk = chunks.make(&message);
        let chunk = chunk.map_err(|status| error(&path.display().to_string(), &status))?;
        by_key.insert(message.chunk_key, Arc::new(chunk));
    }
    Ok((chunks, by_key))
}

fn error(place: &str, status: &Status) -> Error {
    let text = format!("{place}: {}", status.message());
    match status.code() {
        Code::ResourceExhausted => Error::OutOfMemory(text),
        _ => Error::Payload(text),
    }
}
