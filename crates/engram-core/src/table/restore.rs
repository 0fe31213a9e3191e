//! Rebuilds a table from a saved snapshot.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::item::{HIDDEN, Item, NewItem, Rank, Slot};
use crate::op::{OpSink, Removal, SessionNumber, TableOp};
use crate::rate_limiter::RateLimiter;
use crate::table::{Counters, DeferredDrops, TableOptions, TableState};

/// A table being rebuilt. Its options may differ from those it was saved with.
#[derive(Debug)]
pub struct Restore {
    state: TableState,
    /// Saved orders of the sampler and of the remover, as positions of items in the snapshot. `None`: in the order of
    /// insertion.
    orders: [Option<Vec<u32>>; 2],
    /// Number of open leases of the items added so far. A lease is one draw.
    open_leases: u64,
}

/// Largest plausible counter: saved counters above it are corrupt.
const MAX_COUNT: u64 = 1 << 62;

/// Maximum number of items of a table: in the list of vacant slots, `Slot::MAX` marks the end.
const MAX_ITEMS: Slot = Slot::MAX - 1;

/// Maximum number of keys in one [`TableOp::ReturnLeases`] of [`TableState::end_leases`].
const MAX_LEASES_PER_OP: usize = 4096;

/// An item as it was saved.
#[derive(Debug)]
pub struct SavedItem {
    /// Key, trajectory and priority.
    pub item: NewItem,
    /// Insertion number.
    pub seq: u64,
    /// Number of its insert or, if later, its last priority update; not comparable with `seq`.
    pub update_number: u64,
    /// Samples taken, leased ones included.
    pub times_sampled: u32,
    /// Number of open leases, one for each draw; the highest bit is set if the item is hidden from the selectors.
    pub leases: u32,
    /// Clock reading at its insertion, nanoseconds; 0 if the table had no ttl.
    pub inserted_at: u64,
}

impl Restore {
    /// Starts with an empty table that has these counters.
    ///
    /// # Errors
    /// Those of [`TableOptions::check`]; [`Error::InvalidArgument`] if the saved limits are not allowed, or the
    /// counters are too large or contradict each other.
    pub fn new(
        options: Arc<TableOptions>,
        sink: Arc<dyn OpSink>,
        counters: Counters,
    ) -> Result<Self> {
        let mut state = TableState::new(options, sink)?;
        let RateLimiter {
            limits,
            inserts,
            samples,
            deletes,
        } = &counters.limiter;
        limits.check(&state.options.name, state.options.max_size)?;
        let counts = [
            *inserts,
            *samples,
            *deletes,
            counters.next_seq,
            counters.next_update_number,
            counters.num_deleted_episodes,
            counters.num_unique_samples,
            counters.last_lsn.0,
        ];
        if counts.iter().any(|count| *count > MAX_COUNT)
            || counters.first_seq > counters.next_seq
            || counters.leased > *samples
        {
            return Err(Error::InvalidArgument(format!(
                "the checkpoint's counters of table `{}` are inconsistent; the checkpoint is corrupt",
                state.options.name
            )));
        }
        state.counters = counters;
        Ok(Self {
            state,
            orders: [None, None],
            open_leases: 0,
        })
    }

    /// Adds the next item, in the order of the snapshot.
    ///
    /// # Errors
    /// Those of [`TableOptions::check_item`], except [`Error::Unsatisfiable`];
    /// [`Error::InvalidArgument`] for a duplicate key, numbers outside the range of the counters, more open
    /// leases than samples, or too many items.
    pub fn add_item(&mut self, saved: SavedItem) -> Result<()> {
        let state = &mut self.state;
        let name = &state.options.name;
        match state.options.check_item(&saved.item) {
            // Too large for the new options: evicted later, like other items beyond the bounds.
            Ok(()) | Err(Error::Unsatisfiable(_)) => {}
            Err(error) => return Err(error),
        }
        let invalid = |what: String| {
            Error::InvalidArgument(format!("item {} of table `{name}` {what}", saved.item.key))
        };
        if state.contents.keys.get(saved.item.key).is_some() {
            return Err(invalid(
                "is in the checkpoint twice; the checkpoint is corrupt".into(),
            ));
        }
        if !(state.counters.first_seq..state.counters.next_seq).contains(&saved.seq)
            || saved.update_number >= state.counters.next_update_number
        {
            return Err(invalid(
                "has an insertion or update number outside the range of the table's counters; the checkpoint is corrupt"
                    .into(),
            ));
        }
        if state.contents.slot_count == MAX_ITEMS {
            return Err(invalid(format!(
                "is one too many: a table can have at most {MAX_ITEMS} items; the checkpoint is corrupt"
            )));
        }
        let item_leases = saved.leases & !HIDDEN;
        self.open_leases += u64::from(item_leases);
        if item_leases > saved.times_sampled || self.open_leases > state.counters.leased {
            return Err(invalid(
                "has more open leases than its samples or the table's counters allow; the checkpoint is corrupt".into(),
            ));
        }
        let item = Item {
            key: saved.item.key,
            priority: saved.item.priority,
            seq: saved.seq,
            update_number: saved.update_number,
            trajectory: Some(saved.item.trajectory),
            times_sampled: saved.times_sampled,
            leases: saved.leases,
        };
        let contents = &mut state.contents;
        let slot = contents.slot_count;
        contents.slot_count += 1;
        contents.size += 1;
        contents.items.ensure_index(slot as usize);
        contents.keys.insert(item.key, slot);
        contents.hold_chunks(&item);
        if let Some(expiry) = &mut contents.expiry {
            expiry.inserted_at.set(slot as usize, saved.inserted_at);
        }
        contents.items[slot as usize] = item;
        Ok(())
    }

    /// Sets the order of the items, as their positions in the snapshot: in the sampler if `of_sampler`, otherwise in
    /// the remover.
    pub fn set_order(&mut self, of_sampler: bool, positions: Vec<u32>) {
        self.orders[usize::from(!of_sampler)] = Some(positions);
    }

    /// Adds a session: its last applied number and the clock reading of its last use. Sessions must
    /// be added in the order of their last use.
    pub fn add_session(&mut self, number: SessionNumber, last_use: u64) {
        self.state.mark_applied(number, last_use);
    }

    /// Builds the table. Leases stay open, because the journal that is replayed next may end them; see
    /// [`TableState::end_leases`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if two items have the same insertion number, or an order does not contain each
    /// visible item exactly once.
    pub fn finish(mut self) -> Result<TableState> {
        let state = &mut self.state;
        let contents = &mut state.contents;
        let visible = |slot: &Slot| !contents.items[*slot as usize].is_hidden();
        let seq = |slot: &Slot| contents.items[*slot as usize].seq;
        let mut by_age: Vec<Slot> = (0..contents.slot_count).collect();
        by_age.sort_unstable_by_key(seq);
        if by_age.windows(2).any(|pair| seq(&pair[0]) == seq(&pair[1])) {
            return Err(Error::InvalidArgument(format!(
                "two items of table `{}` have the same insertion number; the checkpoint is corrupt",
                state.options.name
            )));
        }
        by_age.retain(visible);
        let rank = |slot: Slot| -> Rank { contents.items[slot as usize].rank() };
        let selectors = [&mut contents.sampler, &mut contents.remover];
        for (selector, order) in selectors.into_iter().zip(self.orders) {
            // A position in the snapshot is also the item's slot: `add_item` fills the slots in order.
            let order = match order.filter(|_| selector.slots().is_some()) {
                Some(order) => {
                    let mut distinct = order.clone();
                    distinct.sort_unstable();
                    distinct.dedup();
                    let is_visible = |slot: &Slot| *slot < contents.slot_count && visible(slot);
                    if order.len() != by_age.len()
                        || distinct.len() != order.len()
                        || !distinct.iter().all(is_visible)
                    {
                        return Err(Error::InvalidArgument(format!(
                            "the checkpoint's selector of table `{}` lists {} items ({} distinct); expected each of \
                             the {} visible items once; the checkpoint is corrupt",
                            state.options.name,
                            order.len(),
                            distinct.len(),
                            by_age.len()
                        )));
                    }
                    order
                }
                None => by_age.clone(),
            };
            for slot in order {
                selector.insert(slot, rank(slot));
            }
        }
        if let Some(expiry) = &mut contents.expiry {
            for slot in &by_age {
                expiry.order.insert(*slot, rank(*slot));
            }
        }
        Ok(self.state)
    }
}

/// The error for a stored item that the options given for its table do not allow. `stored_name` is the table's name in
/// the directory, which `table` may replace.
fn misfit(key: u64, table: &str, stored_name: &str, error: Error) -> Error {
    let about = |reason: String| {
        format!(
            "stored item {key} does not fit the options given for table `{table}`: {reason}; give options that fit, \
             or delete this table with all its items from the directory: \
             `engram.Store.open(path, drop=[{stored_name:?}])`"
        )
    };
    match error {
        Error::Priority(reason) => Error::Priority(about(reason)),
        Error::Signature(reason) => Error::Signature(about(reason)),
        other => other,
    }
}

impl TableState {
    /// Rebuilds the table with other options and another clock.
    ///
    /// `to_new_clock` converts readings of the old clock to the new one; items without a reading count as inserted
    /// `now`. All leases end, and their samples no longer count. Items beyond the new bounds are evicted. Rate limits
    /// that were set at run time stay, unless the new options have other limits than the old ones.
    ///
    /// # Errors
    /// Those of [`TableOptions::check`]; [`Error::InvalidArgument`] if the limits that stay do not fit the new
    /// `max_size`; those of [`TableOptions::check_item`] for the items, except [`Error::Unsatisfiable`].
    pub fn with_options(
        mut self,
        options: TableOptions,
        to_new_clock: &dyn Fn(u64) -> u64,
        now: u64,
        deferred: &mut DeferredDrops,
    ) -> Result<Self> {
        let snapshot = self.snapshot();
        let mut counters = snapshot.counters.clone();
        if options.limits != self.options.limits {
            counters.limiter.limits = options.limits.clone();
        } else if counters.limiter.limits != options.limits {
            let checked = counters
                .limiter
                .limits
                .check(&options.name, options.max_size);
            checked.map_err(|error| {
                Error::InvalidArgument(format!(
                    "{error}; this limiter was set with `set_rate_limiter` and is kept unless the given table has \
                     another `rate_limiter` than the one it was created with: give a larger `max_size`, or another \
                     `rate_limiter`"
                ))
            })?;
        }
        let mut restore = Restore::new(Arc::new(options), Arc::clone(&self.sink), counters)?;
        for item in snapshot.items() {
            let added = restore.add_item(SavedItem {
                item: NewItem {
                    key: item.key,
                    priority: item.priority,
                    trajectory: item.trajectory.clone(),
                },
                seq: item.seq,
                update_number: item.update_number,
                times_sampled: item.times_sampled,
                leases: item.leases,
                inserted_at: item.inserted_at.map_or(now, to_new_clock),
            });
            added.map_err(|error| {
                let table = &restore.state.options.name;
                misfit(item.key, table, &self.options.name, error)
            })?;
        }
        for (order, of_sampler) in snapshot.orders().into_iter().zip([true, false]) {
            if let Some(order) = order {
                restore.set_order(of_sampler, order);
            }
        }
        let mut sessions: Vec<_> = snapshot.sessions().collect();
        sessions.sort_unstable_by_key(|(_, last_use)| *last_use);
        for (number, last_use) in sessions {
            restore.add_session(number, to_new_clock(last_use));
        }
        let mut table = restore.finish()?;
        table.end_leases(deferred);
        self.discard(deferred);
        Ok(table)
    }

    /// Ends the leases of all draws and undoes the counts of their samples; then removes items sampled as often as
    /// allowed and evicts items beyond the bounds. For a table whose readers no longer exist.
    pub fn end_leases(&mut self, deferred: &mut DeferredDrops) {
        self.had_leases = self.counters.leased > 0;
        for slot in 0..self.contents.slot_count {
            let item = &self.contents.items[slot as usize];
            if item.trajectory.is_none() {
                continue;
            }
            let (key, mut open_leases) = (item.key, item.open_leases() as usize);
            while open_leases > 0 {
                let count = open_leases.min(MAX_LEASES_PER_OP);
                self.record_returned_leases(&vec![key; count], count as u64);
                for _ in 0..count {
                    self.end_lease(slot);
                    self.undo_sample(slot);
                }
                open_leases -= count;
            }
            let item = &self.contents.items[slot as usize];
            let max = self.options.max_times_sampled;
            if item.is_hidden() || max > 0 && item.times_sampled >= max {
                self.remove(slot, Removal::Exhausted, deferred);
            }
        }
        // The remaining leases are those of removed items.
        self.record_returned_leases(&[], self.counters.leased);
        while !self.shrink(deferred) {}
    }

    /// Records that leases were returned, and undoes their counts in the table and its limiter.
    pub(super) fn record_returned_leases(&mut self, keys: &[u64], samples: u64) {
        if samples == 0 {
            return;
        }
        self.record(&TableOp::ReturnLeases { keys, samples });
        self.counters.leased = self.counters.leased.saturating_sub(samples);
        self.undo_limiter_samples(samples);
    }
}
