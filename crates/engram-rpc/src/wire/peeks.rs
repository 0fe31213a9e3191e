//! Peeks and histograms.

use engram_core::table::PeekOrder;
use engram_core::{Error, Result};
use engram_engine::{Histogram, HistogramOf, Peek, PeekOptions, PeekedItem};

use crate::pb;

/// Encodes which items a peek reads.
#[must_use]
pub fn encode_peek_options(options: &PeekOptions) -> pb::Peek {
    let order = match options.order {
        PeekOrder::Oldest => pb::peek::Order::Oldest,
        PeekOrder::Newest => pb::peek::Order::Newest,
        PeekOrder::HighestPriority => pb::peek::Order::HighestPriority,
        PeekOrder::LowestPriority => pb::peek::Order::LowestPriority,
        PeekOrder::MostSampled => pb::peek::Order::MostSampled,
    };
    pb::Peek {
        order: order.into(),
        n: u32::try_from(options.n).unwrap_or(u32::MAX),
        max_bytes: options.max_bytes,
    }
}

/// Decodes which items a peek reads.
#[must_use]
pub fn decode_peek_options(options: &pb::Peek) -> PeekOptions {
    PeekOptions {
        order: match options.order() {
            pb::peek::Order::Oldest => PeekOrder::Oldest,
            pb::peek::Order::Newest => PeekOrder::Newest,
            pb::peek::Order::HighestPriority => PeekOrder::HighestPriority,
            pb::peek::Order::LowestPriority => PeekOrder::LowestPriority,
            pb::peek::Order::MostSampled => PeekOrder::MostSampled,
        },
        n: options.n as usize,
        max_bytes: options.max_bytes,
    }
}

/// Encodes what a peek has found.
#[must_use]
pub fn encode_peek(peek: &Peek) -> pb::Peeked {
    let items = peek.items.iter().map(|item| pb::PeekedItem {
        key: item.key,
        priority: item.priority,
        times_sampled: item.times_sampled,
        age: item.age,
        bytes: item.bytes,
        chunk: item.chunk,
        episode: item.episode,
        has_data: item.has_data,
    });
    pb::Peeked {
        items: items.collect(),
        num_compared: peek.num_compared,
        table_size: peek.table_size,
    }
}

/// Decodes what a peek has found.
#[must_use]
pub fn decode_peeked(peeked: pb::Peeked) -> Peek {
    let items = peeked.items.into_iter().map(|item| PeekedItem {
        key: item.key,
        priority: item.priority,
        times_sampled: item.times_sampled,
        age: item.age,
        bytes: item.bytes,
        chunk: item.chunk,
        episode: item.episode,
        has_data: item.has_data,
    });
    Peek {
        items: items.collect(),
        num_compared: peeked.num_compared,
        table_size: peeked.table_size,
    }
}

/// Encodes a request for a histogram.
#[must_use]
pub fn encode_histogram_query(table: &str, of: HistogramOf, bins: u32) -> pb::HistogramQuery {
    let of = match of {
        HistogramOf::Priority => pb::histogram_query::Of::Priority,
        HistogramOf::Age => pb::histogram_query::Of::Age,
        HistogramOf::TimesSampled => pb::histogram_query::Of::TimesSampled,
    };
    pb::HistogramQuery {
        table: table.into(),
        of: of.into(),
        bins,
    }
}

/// Decodes what a histogram counts the items by.
#[must_use]
pub fn decode_histogram_of(of: pb::histogram_query::Of) -> HistogramOf {
    match of {
        pb::histogram_query::Of::Priority => HistogramOf::Priority,
        pb::histogram_query::Of::Age => HistogramOf::Age,
        pb::histogram_query::Of::TimesSampled => HistogramOf::TimesSampled,
    }
}

/// Encodes a histogram.
#[must_use]
pub fn encode_histogram(histogram: Histogram) -> pb::Histogram {
    pb::Histogram {
        counts: histogram.counts,
        edges: histogram.edges,
        below: histogram.below,
        above: histogram.above,
        table_size: histogram.table_size,
    }
}

/// Decodes a histogram.
///
/// # Errors
/// [`Error::Payload`] if the numbers of counts and edges do not match.
pub fn decode_histogram(histogram: pb::Histogram) -> Result<Histogram> {
    if histogram.edges.len() != histogram.counts.len() + 1 {
        return Err(Error::Payload(
            "invalid response: a histogram must have one edge more than counts".into(),
        ));
    }
    Ok(Histogram {
        counts: histogram.counts,
        edges: histogram.edges,
        below: histogram.below,
        above: histogram.above,
        table_size: histogram.table_size,
    })
}
