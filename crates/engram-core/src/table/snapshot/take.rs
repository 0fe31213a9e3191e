//! Takes a snapshot in steps.

use super::{
    SlotOrder, Snapshot, SnapshotBuffers, SnapshotInProgress, SnapshotPageCounts, SnapshotParts,
    SnapshotStep,
};
use crate::cow::FrozenPages;
use crate::table::{Contents, TableState};

impl TableState {
    /// Number of pages that a snapshot would need now.
    #[must_use]
    pub fn snapshot_page_counts(&mut self, parts: SnapshotParts) -> SnapshotPageCounts {
        let contents = &mut self.contents;
        if parts == SnapshotParts::Items {
            return SnapshotPageCounts {
                items: contents.items.page_count(),
                ..SnapshotPageCounts::default()
            };
        }
        let expiry = contents.expiry.as_ref();
        let sessions = self.sessions.as_ref();
        SnapshotPageCounts {
            items: contents.items.page_count(),
            orders: [&mut contents.sampler, &mut contents.remover]
                .map(|selector| selector.slots().map_or(0, |slots| slots.page_count())),
            inserted_at: expiry.map_or(0, |expiry| expiry.inserted_at.page_count()),
            sessions: sessions.map_or(0, |sessions| sessions.entries().page_count()),
        }
    }

    /// Begins a snapshot of the current state; [`TableState::continue_snapshot`] completes it.
    /// Drops a snapshot in progress.
    pub fn begin_snapshot(&mut self, parts: SnapshotParts, mut buffers: SnapshotBuffers) {
        let items = std::mem::take(&mut buffers.items);
        self.contents.items.begin_snapshot(items);
        let orders = match parts {
            SnapshotParts::All => self.begin_other_copies(buffers),
            SnapshotParts::Items => [None, None],
        };
        self.snapshot_in_progress = Some(SnapshotInProgress {
            parts,
            needs_items: true,
            needs_sessions: parts == SnapshotParts::All && self.sessions.is_some(),
            snapshot: Snapshot {
                counters: self.counters.clone(),
                items: FrozenPages::default(),
                orders,
                inserted_at: None,
                sessions: None,
            },
        });
    }

    /// Begins to copy all parts but the items. Returns the orders with their lengths; their slots are copied later.
    fn begin_other_copies(&mut self, buffers: SnapshotBuffers) -> [Option<SlotOrder>; 2] {
        let contents = &mut self.contents;
        if let Some(expiry) = &mut contents.expiry {
            expiry.inserted_at.begin_copy(buffers.inserted_at);
        }
        if let Some(sessions) = &mut self.sessions {
            sessions.entries_mut().begin_copy(buffers.sessions);
        }
        let [of_sampler, of_remover] = buffers.orders;
        let selectors = [
            (&mut contents.sampler, of_sampler),
            (&mut contents.remover, of_remover),
        ];
        selectors.map(|(selector, buffer)| {
            let len = selector.len();
            selector.slots()?.begin_copy(buffer);
            Some(SlotOrder { slots: None, len })
        })
    }

    /// Takes one bounded step of the snapshot in progress.
    pub fn continue_snapshot(&mut self) -> SnapshotStep {
        let Some(mut in_progress) = self.snapshot_in_progress.take() else {
            return SnapshotStep::Aborted;
        };
        if self.copy_next_part(&mut in_progress) {
            return SnapshotStep::Done(Box::new(in_progress.snapshot));
        }
        self.snapshot_in_progress = Some(in_progress);
        SnapshotStep::More
    }

    /// Copies a bounded part of the table into the snapshot; returns true once the snapshot is
    /// complete.
    fn copy_next_part(&mut self, in_progress: &mut SnapshotInProgress) -> bool {
        let Contents {
            items: live_items,
            sampler,
            remover,
            expiry,
            ..
        } = &mut self.contents;
        let Snapshot {
            items,
            orders,
            inserted_at,
            sessions,
            ..
        } = &mut in_progress.snapshot;
        if in_progress.needs_items {
            let Some(frozen) = live_items.continue_snapshot() else {
                return false;
            };
            *items = frozen;
            in_progress.needs_items = false;
        }
        if in_progress.parts == SnapshotParts::Items {
            return true;
        }
        for (selector, order) in [sampler, remover].into_iter().zip(orders) {
            if let (Some(order), Some(slots)) = (order, selector.slots())
                && order.slots.is_none()
            {
                order.slots = slots.continue_copy();
                return false;
            }
        }
        if let Some(expiry) = expiry
            && inserted_at.is_none()
        {
            *inserted_at = expiry.inserted_at.continue_copy();
            return false;
        }
        if in_progress.needs_sessions
            && let Some(live) = &mut self.sessions
            && sessions.is_none()
        {
            *sessions = live.entries_mut().continue_copy();
            return false;
        }
        true
    }

    /// Takes a snapshot in one call, for tables that no other thread uses.
    #[must_use]
    pub fn snapshot(&mut self) -> Box<Snapshot> {
        let parts = SnapshotParts::All;
        let buffers = SnapshotBuffers::new(self.snapshot_page_counts(parts));
        self.begin_snapshot(parts, buffers);
        loop {
            if let SnapshotStep::Done(snapshot) = self.continue_snapshot() {
                return snapshot;
            }
        }
    }
}
