//! The lease on a batch whose items are from several shards.

use std::pin::Pin;

use engram_core::Result;
use engram_engine::BatchLease;

use crate::client::sample_requests::RemoteLease;

/// Waits until acknowledgements are durable.
type Durable = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// The lease on a batch from several shards, in the order of its items.
#[derive(Debug)]
pub struct ShardedLease(pub(super) Vec<(usize, RemoteLease)>);

impl ShardedLease {
    /// True if a server has returned its items of the batch to their table, or cannot be reached.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        (self.0.iter()).any(|(_, part)| !matches!(part.has_ended(), Ok(false)))
    }

    /// Waits until it is known whether the lease has ended.
    pub async fn until_known(&self) {
        for (_, part) in &self.0 {
            part.until_known().await;
        }
    }
}

impl BatchLease for ShardedLease {
    type Durable = Durable;

    fn acknowledge_first(self, n: usize) -> Option<Durable> {
        let mut left = n;
        let mut responses = Vec::new();
        for (items, lease) in self.0 {
            responses.extend(match left {
                0 => None, // dropping the lease returns the items
                left if left >= items => lease.acknowledge(),
                left => lease.acknowledge_first(left),
            });
            left = left.saturating_sub(items);
        }
        if responses.is_empty() {
            return None;
        }
        Some(Box::pin(async move {
            futures_util::future::join_all(responses)
                .await
                .into_iter()
                .collect()
        }))
    }
}
