//! Lists tables in pages, each of which fits one message.

use std::sync::Arc;

use engram_core::{Error, Result};
use engram_engine::{Engine, Table};
use prost::Message;

use crate::wire::encode_info;
use crate::{MAX_MESSAGE_BYTES, pb};

/// A page is complete once the descriptions of its tables have at least this many bytes. The last table may exceed it.
const PAGE_BYTES: usize = 1 << 20;

/// Upper bound of the bytes of a message without its tables.
const MESSAGE_BYTES: usize = 64;

/// Returns a page of the tables' names.
///
/// # Errors
/// [`Error::InvalidArgument`] if the tables do not fit one message and the client does not read pages;
/// [`Error::Closed`] if the store is closed.
pub(super) fn names(engine: &Engine, request: &pb::ListTables) -> Result<pb::TableNames> {
    let name = |table: &Table| table.options().name.clone();
    let (names, more) = list(engine, request, name, String::len)?;
    Ok(pb::TableNames { names, more })
}

/// Returns a page of the tables' infos.
///
/// # Errors
/// Those of [`names`].
pub(super) fn infos(engine: &Engine, request: &pb::ListTables) -> Result<pb::TableInfos> {
    let unsent = engine.unsent_items_note();
    let info = |table: &Table| {
        let mut info = table.info();
        if let (Some(reason), Some(unsent)) = (&mut info.sampling_blocked, &unsent) {
            *reason = format!("{reason}; {unsent}");
        }
        encode_info(&info)
    };
    let (tables, more) = list(engine, request, info, Message::encoded_len)?;
    Ok(pb::TableInfos { tables, more })
}

/// Returns the descriptions of a page of tables, and whether other tables follow. `size` returns the bytes of a
/// description.
fn list<T>(
    engine: &Engine,
    request: &pb::ListTables,
    describe: impl Fn(&Table) -> T,
    size: impl Fn(&T) -> usize,
) -> Result<(Vec<T>, bool)> {
    let tables: Vec<Arc<Table>> = engine.tables()?;
    let after = request.after.as_deref();
    let first = tables.partition_point(|table| Some(&*table.options().name) <= after);
    let (mut page, mut bytes) = (Vec::new(), MESSAGE_BYTES);
    for table in &tables[first..] {
        if request.paged && bytes >= PAGE_BYTES {
            return Ok((page, true));
        }
        let description = describe(table);
        // The field's key and length take at most 8 bytes.
        bytes += size(&description) + 8;
        page.push(description);
    }
    if bytes <= MAX_MESSAGE_BYTES {
        return Ok((page, false));
    }
    Err(Error::InvalidArgument(format!(
        "the list of {} tables has {bytes} bytes, but a message has at most {MAX_MESSAGE_BYTES}, and this version of the \
         client reads only one; install the version of Engram that the server has",
        page.len()
    )))
}
