//! Leases of the batches that a reader has received and not completely acknowledged.

use std::collections::VecDeque;

use crate::lease::BatchLease;

/// Leases of the batches that a reader has received, oldest first.
///
/// A reader reports with one number how many items it has delivered so far. These are always the first items that it
/// received, so the number determines which batches are delivered.
#[derive(Debug)]
pub struct DeliveryTracker<L: BatchLease> {
    /// Number of items and lease of each batch.
    leases: VecDeque<(u64, L)>,
    /// Number of items in the batches that were acknowledged and removed from the front of `leases`.
    acknowledged: u64,
    /// Number of items that the reader has delivered.
    pub delivered: u64,
    /// Ready when the acknowledgements that must be durable are; `None` if they are, or if there are none.
    pub durable: Option<L::Durable>,
}

impl<L: BatchLease> Default for DeliveryTracker<L> {
    fn default() -> Self {
        Self {
            leases: VecDeque::new(),
            acknowledged: 0,
            delivered: 0,
            durable: None,
        }
    }
}

impl<L: BatchLease> DeliveryTracker<L> {
    /// Adds a batch of this many items, which the reader receives now.
    pub fn push(&mut self, items: usize, lease: L) {
        self.leases.push_back((items as u64, lease));
    }

    /// Number of batches that are not acknowledged.
    #[must_use]
    pub fn num_batches(&self) -> usize {
        self.leases.len()
    }

    /// Returns the items of the newest batch, which did not reach its reader, to the table.
    pub fn return_newest(&mut self) {
        drop(self.leases.pop_back());
    }

    /// Acknowledges the oldest batch, whether it is delivered or not.
    pub fn acknowledge_oldest(&mut self) {
        if let Some((items, lease)) = self.leases.pop_front() {
            self.acknowledged += items;
            // Later acknowledgements become durable after earlier ones.
            self.durable = lease.acknowledge().or_else(|| self.durable.take());
        }
    }

    /// Acknowledges the batches that are delivered completely.
    pub fn acknowledge_delivered(&mut self) {
        while let Some((items, _)) = self.leases.front()
            && *items <= self.delivered.saturating_sub(self.acknowledged)
        {
            self.acknowledge_oldest();
        }
    }

    /// Acknowledges the delivered items, for a reader that receives no more batches; the others return to their tables.
    pub fn finish(&mut self) {
        self.acknowledge_delivered();
        let mut leases = std::mem::take(&mut self.leases).into_iter();
        let delivered = self.delivered.saturating_sub(self.acknowledged);
        if delivered > 0
            && let Some((_, lease)) = leases.next()
        {
            let delivered = usize::try_from(delivered).unwrap_or(usize::MAX);
            self.durable = lease
                .acknowledge_first(delivered)
                .or_else(|| self.durable.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Ready;
    use std::sync::{Arc, Mutex};

    use engram_core::Result;

    use super::*;

    type Log = Arc<Mutex<Vec<String>>>;

    /// Logs its name, and how many of its items are acknowledged.
    struct LoggedLease(char, Option<Log>);

    impl LoggedLease {
        fn log(&mut self, acknowledged: &str) {
            if let Some(log) = self.1.take() {
                log.lock()
                    .unwrap()
                    .push(format!("{} {acknowledged}", self.0));
            }
        }
    }

    impl BatchLease for LoggedLease {
        type Durable = Ready<Result<()>>;

        fn acknowledge_first(mut self, n: usize) -> Option<Self::Durable> {
            match n {
                usize::MAX => self.log("all"),
                n => self.log(&n.to_string()),
            }
            None
        }
    }

    impl Drop for LoggedLease {
        fn drop(&mut self) {
            self.log("none");
        }
    }

    /// Returns a tracker of three batches, and a function that returns what was logged.
    fn three_batches() -> (DeliveryTracker<LoggedLease>, Log, impl Fn() -> String) {
        let log = Log::default();
        let mut deliveries = DeliveryTracker::default();
        for (items, lease) in [(2, 'a'), (3, 'b'), (1, 'c')] {
            deliveries.push(items, LoggedLease(lease, Some(Arc::clone(&log))));
        }
        let taken = Arc::clone(&log);
        let take = move || std::mem::take(&mut *taken.lock().unwrap()).join(", ");
        (deliveries, log, take)
    }

    #[test]
    fn the_number_of_delivered_items_acknowledges_the_first_ones() {
        for (delivered, expected) in [
            (0, "a none, b none, c none"),
            (1, "a 1, b none, c none"),
            (2, "a all, b none, c none"),
            (4, "a all, b 2, c none"),
            (5, "a all, b all, c none"),
            (6, "a all, b all, c all"),
            (u64::MAX, "a all, b all, c all"),
        ] {
            let (mut deliveries, _, logged) = three_batches();
            deliveries.delivered = delivered;
            deliveries.finish();
            assert_eq!(logged(), expected);
        }
    }

    #[test]
    fn only_completely_delivered_batches_are_acknowledged() {
        let (mut deliveries, log, logged) = three_batches();
        deliveries.delivered = 1;
        deliveries.acknowledge_delivered();
        assert_eq!(logged(), "");
        deliveries.delivered = 4;
        deliveries.acknowledge_delivered();
        assert_eq!((logged().as_str(), deliveries.num_batches()), ("a all", 2));
        deliveries.return_newest();
        assert_eq!(logged(), "c none");
        deliveries.push(2, LoggedLease('d', Some(log)));
        deliveries.delivered = 6;
        deliveries.finish();
        assert_eq!(
            (logged().as_str(), deliveries.num_batches()),
            ("b all, d 1", 0)
        );
    }

    #[test]
    fn items_of_an_acknowledged_batch_count_once() {
        let (mut deliveries, _, logged) = three_batches();
        deliveries.acknowledge_oldest();
        deliveries.acknowledge_delivered();
        assert_eq!((logged().as_str(), deliveries.num_batches()), ("a all", 2));
        deliveries.delivered = 3;
        deliveries.finish();
        assert_eq!(logged(), "b 1, c none");
        deliveries.acknowledge_oldest();
        assert_eq!(logged(), "");
    }
}
