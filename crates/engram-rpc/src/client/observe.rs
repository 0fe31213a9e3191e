//! Calls that only look at a server and its tables.

use engram_engine::{Histogram, HistogramOf};

use super::{Client, PendingResponse};
use crate::pb::manage_request::Call;
use crate::pb::manage_response::Outcome;
use crate::wire::{decode_histogram, encode_histogram_query};

impl Client {
    /// Counts the items of a table by a value, in at most `bins` bins.
    #[must_use]
    pub fn histogram(&self, table: &str, of: HistogramOf, bins: u32) -> PendingResponse<Histogram> {
        let query = encode_histogram_query(table, of, bins);
        self.manage(Call::Histogram(query), |outcome| match outcome {
            Outcome::Histogram(histogram) => Some(decode_histogram(histogram)),
            _ => None,
        })
    }
}
