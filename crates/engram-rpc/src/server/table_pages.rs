//! Lists tables in pages, each of which fits one message.

use std::sync::Arc;

use engram_core::{Error, Result};
use engram_engine::{Engine, Table};
use prost::Message;

use crate::wire::encode_info;
use crate::{MAX_MESSAGE_BYTES, pb};

/// Maximum bytes of a page, unless it has only one table, or the client does not read pages.
const PAGE_BYTES: usize = 1 << 20;

/// Upper bound of the bytes of a page's message without its tables.
const EMPTY_PAGE_BYTES: usize = 64;

/// Returns a page of the tables' names.
///
/// # Errors
/// [`Error::InvalidArgument`] if the name of a table does not fit into one message, or if the client does not read
/// pages and the names of all tables do not fit; [`Error::Closed`] if the store is closed.
pub(super) fn names(engine: &Engine, request: &pb::ListTables) -> Result<pb::TableNames> {
    let name = |table: &Table| table.options().name.clone();
    let (names, more) = list(engine, request, name, String::len)?;
    Ok(pb::TableNames { names, more })
}

/// Returns a page of the tables' infos. Where sampling is blocked, the reason mentions items in unfinished chunks of
/// writers in this process.
///
/// # Errors
/// Those of [`names`], for infos.
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

/// Returns the descriptions (names or infos) of a page of tables, and whether other tables follow. `size` returns the
/// bytes of a description.
fn list<T>(
    engine: &Engine,
    request: &pb::ListTables,
    describe: impl Fn(&Table) -> T,
    size: impl Fn(&T) -> usize,
) -> Result<(Vec<T>, bool)> {
    let tables: Vec<Arc<Table>> = engine.tables()?;
    let after = request.after.as_deref();
    let first = tables.partition_point(|table| Some(&*table.options().name) <= after);
    let (mut page, mut bytes) = (Vec::new(), EMPTY_PAGE_BYTES);
    for table in &tables[first..] {
        let description = describe(table);
        // The Protobuf tag and length of a description take at most 8 bytes.
        let size = size(&description) + 8;
        if EMPTY_PAGE_BYTES + size > MAX_MESSAGE_BYTES {
            return Err(Error::InvalidArgument(format!(
                "the description of table `{}` has {size} bytes, but a message has at most {MAX_MESSAGE_BYTES}; open the \
                 store without a server to use this table, or drop it",
                table.options().name
            )));
        }
        if request.paged && !page.is_empty() && bytes + size > PAGE_BYTES {
            return Ok((page, true));
        }
        bytes += size;
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

#[cfg(test)]
mod tests {
    use engram_core::TableOptions;
    use engram_testkit::table_options;

    use super::*;

    fn options(name: &str) -> TableOptions {
        TableOptions {
            max_size: 1,
            ..table_options(name)
        }
    }

    /// Lists the names of the tables after `after`. The description of `large` just fits a message, and that of `too
    /// large` does not; stores that were created by an earlier version may have such tables.
    fn list_sizes(paged: bool, after: &str) -> Result<(Vec<String>, bool)> {
        let tables = ["a", "large", "n", "too large"].map(options).to_vec();
        let request = pb::ListTables {
            paged,
            after: Some(after.into()),
        };
        let name = |table: &Table| table.options().name.clone();
        list(
            &Engine::new(tables, 1)?,
            &request,
            name,
            |name| match &**name {
                "large" => MAX_MESSAGE_BYTES - 100,
                "too large" => MAX_MESSAGE_BYTES,
                _ => 100,
            },
        )
    }

    #[test]
    fn a_large_table_is_a_page_of_its_own() {
        let page = |name: &str| Ok((vec![name.to_owned()], true));
        assert_eq!(list_sizes(true, ""), page("a"));
        assert_eq!(list_sizes(true, "a"), page("large"));
    }

    #[test]
    fn a_table_that_does_not_fit_a_message_is_named() {
        let text = "the description of table `too large` has 4194312 bytes, but a message has at most 4194304; open the \
                    store without a server to use this table, or drop it";
        for (paged, after) in [(true, "n"), (false, "n"), (false, "")] {
            let error = list_sizes(paged, after).unwrap_err();
            assert_eq!(error.to_string(), text);
        }
    }
}
