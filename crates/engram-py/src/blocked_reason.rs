//! Why a call waits, for its messages and errors.

use engram_engine::TableInfo;

use crate::tables::Tables;

/// Which of a table's two rate limits a call waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Blocked {
    Sampling,
    Inserting,
}

impl Blocked {
    fn reason(self, info: TableInfo) -> Option<String> {
        match self {
            Self::Sampling => info.sampling_blocked,
            Self::Inserting => info.inserting_blocked,
        }
    }
}

/// Why a table blocks now, or why its server cannot be reached, as a suffix for a text; empty if there is no reason.
/// For sampling, also mentions the items in unfinished chunks of writers.
pub(crate) fn blocked_reason(tables: &Tables, table: &str, blocked: Blocked) -> String {
    let reason = match tables {
        Tables::Local(engine) => engine
            .table(table)
            .ok()
            .and_then(|table| blocked.reason(table.info())),
        Tables::Remote(remote) => remote
            .client
            .blocked_reason(table, |info| blocked.reason(info)),
    };
    let unsent = matches!(blocked, Blocked::Sampling)
        .then(|| tables.unsent_items_note())
        .flatten();
    let reasons = [reason, unsent].into_iter().flatten();
    reasons.fold(String::new(), |text, reason| format!("{text}; {reason}"))
}
