//! Passes an item that `insert.rs` has built to one or several tables, in process or on a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use engram_core::{Error, NewItem, Result, TableOptions};
use engram_engine::{Engine, Until};
use engram_rpc::client::RemoteOutbox;
use pyo3::prelude::*;

use crate::errors;
use crate::gil::{Deadlock, Timeout, detached, wait_for, wait_for_table};
use crate::only_thread::any_item_expires;
use crate::tables::{REPLY_GRACE, RemoteTables};

/// Returns the message of an insert that has waited long, as in [`crate::long_wait::LongWait::report`].
type DescribeWait<'a> = dyn Fn(&str) -> String + Send + Sync + 'a;

/// Inserts an item into each local table. Returns for each table whether it accepted the item, which may happen
/// shortly after the deadline; and true if the wait has ended because no other thread could sample.
pub(crate) fn insert_local(
    py: Python<'_>,
    engine: &Engine,
    names: &[&str],
    items: Vec<NewItem>,
    deadline: Option<Instant>,
    describe: &DescribeWait<'_>,
) -> PyResult<(Vec<bool>, bool)> {
    if let Err(error) = wait_for(py, &mut engine.journal_space(), deadline) {
        let is_storage = errors::is_storage(py, &error);
        let advice = ", and insert the item again: it is not stored";
        return Err(if is_storage {
            errors::append_text(py, error, advice)
        } else {
            error
        });
    }
    let tickets = detached(py, || {
        let tables = names.iter().map(|name| engine.table(name));
        let tables = tables.collect::<Result<Vec<_>>>()?;
        let tickets = tables.iter().zip(items);
        tickets
            .map(|(table, item)| table.insert(vec![item]))
            .collect::<Result<Vec<_>>>()
    })?;
    let mut accepted = Vec::with_capacity(names.len());
    let is_deadlock = AtomicBool::new(false);
    let mut deadline = deadline;
    for mut ticket in tickets {
        // If the table has the item and the ticket waits for the disk, `accepted_late` is true below.
        let deadlock = || {
            let waits = !any_item_expires(engine);
            is_deadlock.store(waits, Ordering::Relaxed);
            waits.then(|| Error::Backpressure("no other thread could sample".into()))
        };
        let deadlock: Option<&Deadlock<'_>> = match deadline {
            None => Some(&deadlock),
            Some(_) => None,
        };
        let in_time = match wait_for_table(py, &mut ticket, deadline, describe, deadlock) {
            Err(_) if deadline.is_none() && is_deadlock.load(Ordering::Relaxed) => {
                deadline = Some(Instant::now()); // for the other tables
                false
            }
            waited => waited?.is_some(),
        };
        // The table may have accepted it between the deadline and the withdrawal.
        let accepted_late = !in_time && py.detach(|| ticket.withdraw()) == 0;
        if accepted_late {
            wait_for(py, &mut engine.until_durable(), None)?;
        }
        accepted.push(in_time || accepted_late);
    }
    Ok((accepted, deadline.is_some() && is_deadlock.into_inner()))
}

/// Waits until the server has the acknowledgements of earlier samples: one may be necessary before a table has space.
/// Does not fail if the server does not reply until [`REPLY_GRACE`] after the deadline.
pub(crate) fn flush_acks(
    py: Python<'_>,
    remote: &RemoteTables,
    deadline: Option<Instant>,
) -> PyResult<()> {
    if !remote.client.are_acks_flushed() {
        let acknowledged_by = deadline.map(|deadline| deadline + REPLY_GRACE);
        wait_for(py, &mut remote.client.until_acks_flushed(), acknowledged_by)?;
    }
    Ok(())
}

/// Inserts an item into each table of a server. Returns its key, and for each table whether it accepted the item.
pub(crate) fn insert_remote(
    py: Python<'_>,
    remote: &RemoteTables,
    options: &[Arc<TableOptions>],
    items: Vec<NewItem>,
    until: (Timeout, Option<Instant>),
    describe: &DescribeWait<'_>,
) -> PyResult<(u64, Vec<bool>)> {
    flush_acks(py, remote, until.1)?;
    let mut outbox = remote.outbox();
    let key = items.first().map_or(0, |item| item.key);
    let partly_accepted = insert_through(py, remote, &mut outbox, options, items, until, describe);
    let table = outbox.table_number(&options[0]);
    let key = outbox.final_key(table, outbox.progress().sent(table), key);
    if let Ok(None) = partly_accepted {
        remote.recycle_outbox(outbox);
    } else {
        // Dropping an outbox waits for the server.
        py.detach(|| drop(outbox));
    }
    let accepted = partly_accepted?.unwrap_or_else(|| vec![true; options.len()]);
    Ok((key, accepted))
}

/// Inserts through an outbox. Returns `None` if all tables accepted the item in time; otherwise, for each table,
/// whether it accepted the item.
fn insert_through(
    py: Python<'_>,
    remote: &RemoteTables,
    outbox: &mut RemoteOutbox,
    options: &[Arc<TableOptions>],
    items: Vec<NewItem>,
    (timeout, deadline): (Timeout, Option<Instant>),
    describe: &DescribeWait<'_>,
) -> PyResult<Option<Vec<bool>>> {
    let numbers: Vec<u32> = options
        .iter()
        .map(|options| outbox.table_number(options))
        .collect();
    detached(py, || outbox.send(numbers.iter().copied().zip(items)))?;
    if wait_for_table(py, outbox.until(Until::Complete), deadline, describe, None)?.is_some() {
        return Ok(None);
    }
    let replied = py.detach(|| outbox.finish(REPLY_GRACE));
    let incomplete = (numbers.iter().zip(options))
        .filter(|(number, _)| outbox.progress().incomplete_items(**number) > 0)
        .map(|(_, table)| format!("`{}`", table.name));
    let incomplete: Vec<_> = incomplete.collect();
    if !replied && !incomplete.is_empty() {
        let text = format!(
            "the server at {} did not acknowledge the item within {} s; it is unknown whether {} {} it",
            remote.client.address(),
            timeout.seconds(),
            incomplete.join(", "),
            if incomplete.len() == 1 { "has" } else { "have" }
        );
        return Err(errors::to_py(py, &Error::DeadlineExceeded(text)));
    }
    // A table may have rejected the item in the meantime.
    detached(py, || outbox.check_errors())?;
    let accepted = numbers
        .iter()
        .map(|number| outbox.progress().incomplete_items(*number) == 0);
    Ok(Some(accepted.collect()))
}
