//! Peeks: the first items of a table in some order, found without a snapshot. They change nothing.

use engram_core::gather::{LengthPolicy, estimate};
use engram_core::table::{ItemNumbers, MAX_KEYS_PER_LOOKUP, PeekOrder, ScanOrder, SurveySize};
use engram_core::{Draw, Error, Result};

use crate::table::Table;

/// How many more items than requested are looked up, because the table may remove some meanwhile.
const SPARE_ITEMS: usize = 64;

/// Which items a peek reads.
#[derive(Clone, Copy, Debug)]
pub struct PeekOptions {
    /// The order of the items.
    pub order: PeekOrder,
    /// Maximum number of items: at most [`MAX_KEYS_PER_LOOKUP`].
    pub n: usize,
    /// The data of an item with more bytes is not read. `None`: unlimited.
    pub max_bytes: Option<u64>,
}

/// What a peek has found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Peek {
    /// The items, in order.
    pub items: Vec<PeekedItem>,
    /// Number of items that were compared. If it is smaller than `table_size`, the peek compared items chosen at random.
    pub num_compared: u64,
    /// Number of items in the table.
    pub table_size: u64,
}

/// What is known of an item without reading its data.
#[derive(Clone, Debug, PartialEq)]
pub struct PeekedItem {
    /// Its key.
    pub key: u64,
    /// Its priority.
    pub priority: f64,
    /// Samples taken, leased ones included.
    pub times_sampled: u32,
    /// Number of items that were inserted after it.
    pub age: u64,
    /// Bytes of its data.
    pub bytes: u64,
    /// Key of its first chunk.
    pub chunk: u64,
    /// Id of the episode that the steps of its first chunk belong to. `None` if they belong to several.
    pub episode: Option<u64>,
    /// True if its data is read: it does not have more than [`PeekOptions::max_bytes`].
    pub has_data: bool,
}

/// Finds the items; with `keys`, only among the items with these keys. Also returns those whose data is read.
pub(crate) fn peek(
    table: &Table,
    options: &PeekOptions,
    keys: Option<&[u64]>,
) -> Result<(Peek, Vec<Draw>)> {
    let PeekOptions { order, n, .. } = *options;
    check_count("n", n)?;
    check_count("keys", keys.map_or(0, <[u64]>::len))?;
    let (mut draws, num_compared, size) = match keys {
        Some(keys) => {
            let draws = table.items_with_keys(keys, ScanOrder::OldestFirst)?;
            let size = table.survey_size();
            (draws, size.items, size)
        }
        None => match table.first_items(n, order)? {
            Some((draws, size)) => (draws, size.items, size),
            None => first_surveyed(table, n, order)?,
        },
    };
    draws.sort_by(|left, right| {
        order.compare(&ItemNumbers::of_draw(left), &ItemNumbers::of_draw(right))
    });
    draws.truncate(n);
    let max_bytes = options.max_bytes.unwrap_or(u64::MAX);
    let items = draws.iter().map(|draw| describe(draw, size, max_bytes));
    let items: Vec<PeekedItem> = items.collect();
    let mut has_data = items.iter().map(|item| item.has_data);
    draws.retain(|_| has_data.next().unwrap_or(false));
    let peek = Peek {
        items,
        num_compared: num_compared.min(size.items),
        table_size: size.items,
    };
    Ok((peek, draws))
}

/// The first items of a survey, in any order. Also returns how many items were compared.
fn first_surveyed(
    table: &Table,
    n: usize,
    order: PeekOrder,
) -> Result<(Vec<Draw>, u64, SurveySize)> {
    let mut survey = table.survey()?;
    let num_compared = survey.items.len();
    let n = n.saturating_add(SPARE_ITEMS).min(MAX_KEYS_PER_LOOKUP);
    if n < num_compared {
        (survey.items).select_nth_unstable_by(n, |left, right| order.compare(left, right));
        survey.items.truncate(n);
    }
    let keys: Vec<u64> = survey.items.iter().map(|item| item.key).collect();
    let draws = table.items_with_keys(&keys, ScanOrder::OldestFirst)?;
    let mut size = table.survey_size();
    if survey.size.items <= crate::MAX_SURVEYED_ITEMS {
        // All items were compared, also if others were inserted meanwhile.
        return Ok((draws, size.items, size));
    }
    size.items = size.items.max(num_compared as u64);
    Ok((draws, num_compared as u64, size))
}

fn describe(draw: &Draw, size: SurveySize, max_bytes: u64) -> PeekedItem {
    let bytes = estimate(std::slice::from_ref(draw), LengthPolicy::Ragged).bytes as u64;
    let numbers = ItemNumbers::of_draw(draw);
    let origin = draw.trajectory.chunks().first().map(|chunk| chunk.origin());
    PeekedItem {
        key: numbers.key,
        priority: numbers.priority,
        times_sampled: numbers.times_sampled,
        age: size.next_seq.saturating_sub(numbers.seq + 1),
        bytes,
        chunk: origin.map_or(0, |origin| origin.key),
        episode: origin.and_then(|origin| match origin.episodes.as_slice() {
            [episode] => Some(*episode),
            _ => None,
        }),
        has_data: bytes <= max_bytes,
    }
}

fn check_count(argument: &str, count: usize) -> Result<()> {
    if count <= MAX_KEYS_PER_LOOKUP {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!(
        "`{argument}`: a peek returns at most {MAX_KEYS_PER_LOOKUP} items; got {count}; use `scan` to read more"
    )))
}
