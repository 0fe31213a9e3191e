//! Items on their way into tables, each in one call.

use std::sync::Arc;
use std::time::Instant;

use engram_core::{Error, NewItem, Result, TableOptions};
use engram_engine::Engine;
use engram_rpc::client::RemoteOutbox;
use pyo3::prelude::*;

use crate::errors;
use crate::gil::{Timeout, detached, wait_for};
use crate::tables::{ANSWER, RemoteTables};

/// Inserts an item into each table; says which have it at the deadline.
pub(crate) fn insert_local(
    py: Python<'_>,
    engine: &Engine,
    names: &[&str],
    items: Vec<NewItem>,
    deadline: Option<Instant>,
) -> PyResult<Vec<bool>> {
    wait_for(py, &mut engine.journal_space(), deadline)?;
    let tickets = detached(py, || {
        let tables = names.iter().map(|name| engine.table(name));
        let tables = tables.collect::<Result<Vec<_>>>()?;
        let tickets = tables.iter().zip(items);
        tickets
            .map(|(table, item)| table.insert(vec![item]))
            .collect::<Result<Vec<_>>>()
    })?;
    let mut taken = Vec::with_capacity(names.len());
    for mut ticket in tickets {
        let served = wait_for(py, &mut ticket, deadline)?.is_some();
        // It may have gone in between the last look and the withdrawal.
        let late = !served && py.detach(|| ticket.withdraw()) == 0;
        if late {
            wait_for(py, &mut engine.until_durable(), None)?;
        }
        taken.push(served || late);
    }
    Ok(taken)
}

/// The same for a server's tables.
pub(crate) fn insert_remote(
    py: Python<'_>,
    link: &RemoteTables,
    options: &[Arc<TableOptions>],
    items: Vec<NewItem>,
    until: (Timeout, Option<Instant>),
) -> PyResult<Vec<bool>> {
    if !link.client.are_acks_flushed() {
        // What was sampled before may be what makes room.
        let by = until.1.map(|deadline| deadline + ANSWER);
        wait_for(py, &mut link.client.acks_flushed(), by)?;
    }
    let mut outbox = link.outbox();
    let put = insert_through(py, link, &mut outbox, options, items, until);
    if let Ok(None) = put {
        link.put_back(outbox);
    } else {
        // It takes leave of the server.
        py.detach(|| drop(outbox));
    }
    Ok(put?.unwrap_or_else(|| vec![true; options.len()]))
}

/// None where all have it in time.
fn insert_through(
    py: Python<'_>,
    link: &RemoteTables,
    outbox: &mut RemoteOutbox,
    options: &[Arc<TableOptions>],
    items: Vec<NewItem>,
    (timeout, deadline): (Timeout, Option<Instant>),
) -> PyResult<Option<Vec<bool>>> {
    let numbers: Vec<u32> = options
        .iter()
        .map(|options| outbox.table_number(options))
        .collect();
    detached(py, || outbox.send(numbers.iter().copied().zip(items)))?;
    if wait_for(py, outbox.until_at_most(0), deadline)?.is_some() {
        return Ok(None);
    }
    let heard = py.detach(|| outbox.finish(ANSWER));
    let unsure = (numbers.iter().zip(options))
        .filter(|(number, _)| outbox.unsettled_of(**number) > 0)
        .map(|(_, table)| format!("`{}`", table.name));
    let unsure: Vec<_> = unsure.collect();
    if !heard && !unsure.is_empty() {
        let text = format!(
            "the server at {} did not acknowledge the item within {} s; whether {} has it is not known",
            link.client.address(),
            timeout.seconds(),
            unsure.join(", ")
        );
        return Err(errors::to_py(py, &Error::DeadlineExceeded(text)));
    }
    // A table may have refused it meanwhile.
    detached(py, || outbox.collect_finished())?;
    let taken = numbers
        .iter()
        .map(|number| outbox.unsettled_of(*number) == 0);
    Ok(Some(taken.collect()))
}
