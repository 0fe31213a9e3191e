//! Compares a table with a simple model: random calls, for every pair of sampler and remover.

#![expect(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "test helpers report failures by panicking; counts are small"
)]

mod insert_run;
mod model;
mod record;
mod saved;

use std::sync::Arc;

use engram_core::table::SESSION_IDLE;
use engram_core::{
    Admission, Chunk, DeferredDrops, Draw, Handle, NewItem, RateLimits, Removal, SelectorKind,
    SessionNumber, TableOptions, TableState,
};
use engram_testkit::{runs_all_tests, table_options};
use model::{Lease, Model};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use record::{Op, RecordingSink, chunks, trajectory};
use saved::Saved;

#[derive(Clone, Copy, Debug)]
enum Call {
    /// An item with a new key, of cells of the chunks `first` and `second`.
    Insert {
        priority: u8,
        first: usize,
        second: usize,
    },
    /// Items in one call.
    InsertRun {
        count: usize,
        max: usize,
        priority: u8,
    },
    /// An item with the key of an existing item, if there is one with this index.
    InsertAgain {
        index: usize,
    },
    /// An item whose session number is the session's last one plus `number - 1`: with 0 and 1, a number that was used
    /// already, if any. The item's key is new or, if `again`, that of an existing item.
    InsertNumbered {
        session: u64,
        number: u64,
        again: bool,
    },
    Draw {
        n: usize,
        leased: bool,
    },
    /// Acknowledges up to `count` open leases, starting with number `index`.
    Acknowledge {
        index: usize,
        count: usize,
    },
    /// Returns up to `count` open leases, starting with number `index`.
    ReturnLeases {
        index: usize,
        count: usize,
    },
    /// Sets the priority of the item with key `7 * index`, if it exists.
    Update {
        index: usize,
        priority: u8,
    },
    /// Deletes the item with key `7 * index`, if it exists.
    Delete {
        index: usize,
    },
    Reset,
    /// Sets the rate limits that [`limits`] returns for this index.
    SetLimits(usize),
    AdvanceClock {
        time: u64,
    },
}

fn call() -> impl Strategy<Value = Call> {
    let index = 0..40_usize;
    prop_oneof![
        12 => (0..4_u8, 0..7_usize, 0..7_usize)
            .prop_map(|(priority, first, second)| Call::Insert { priority, first, second }),
        4 => (1..5_usize, 1..5_usize, 0..4_u8)
            .prop_map(|(count, max, priority)| Call::InsertRun { count, max, priority }),
        1 => index.clone().prop_map(|index| Call::InsertAgain { index }),
        5 => (0..3_u64, 0..5_u64, prop::bool::weighted(0.2)).prop_map(|(session, number, again)| {
            Call::InsertNumbered { session, number, again }
        }),
        8 => (1..6_usize, any::<bool>()).prop_map(|(n, leased)| Call::Draw { n, leased }),
        4 => (index.clone(), 1..6_usize).prop_map(|(index, count)| Call::Acknowledge { index, count }),
        4 => (index.clone(), 1..6_usize).prop_map(|(index, count)| Call::ReturnLeases { index, count }),
        3 => (index.clone(), 0..4_u8).prop_map(|(index, priority)| Call::Update { index, priority }),
        2 => index.prop_map(|index| Call::Delete { index }),
        1 => Just(Call::Reset),
        1 => (0..4_usize).prop_map(Call::SetLimits),
        2 => (0..30_u64).prop_map(|time| Call::AdvanceClock { time }),
        1 => Just(Call::AdvanceClock { time: SESSION_IDLE / 2 }),
    ]
}

/// The limits of one of four rate limiters.
fn limits(index: usize) -> RateLimits {
    let ratio = |samples_per_insert, min_size, min_diff, max_diff| RateLimits {
        kind: "SampleToInsertRatio".into(),
        samples_per_insert,
        min_size,
        min_diff,
        max_diff,
    };
    match index {
        0 => RateLimits::min_size(1),
        1 => RateLimits::min_size(3),
        2 => RateLimits::queue(6),
        _ => ratio(1.5, 2, -2.0, 7.5),
    }
}

fn options(sampler: SelectorKind, remover: SelectorKind) -> impl Strategy<Value = TableOptions> {
    (
        prop_oneof![Just(0), Just(1), Just(3)],
        0..4_usize,
        prop_oneof![Just(None), Just(Some(6_000))],
        prop_oneof![Just(None), Just(Some(50))],
        any::<u64>(),
    )
        .prop_map(
            move |(max_times_sampled, index, max_bytes, ttl, seed)| TableOptions {
                max_size: 6,
                max_bytes,
                max_times_sampled,
                ttl,
                sampler,
                remover,
                limits: limits(index),
                seed,
                ..table_options("t")
            },
        )
}

/// A table, its model and the open leases.
struct TableAndModel {
    table: TableState,
    model: Model,
    sink: Arc<RecordingSink>,
    chunks: Vec<Arc<Chunk>>,
    leases: Vec<(Handle, Lease)>,
    next_key: u64,
    now: u64,
}

impl TableAndModel {
    fn new(options: TableOptions) -> Self {
        let options = Arc::new(options);
        let sink = Arc::new(RecordingSink::default());
        Self {
            table: TableState::new(Arc::clone(&options), sink.clone()).unwrap(),
            model: Model::new(options),
            sink,
            chunks: chunks(),
            leases: Vec::new(),
            next_key: 0,
            now: 0,
        }
    }

    fn apply(&mut self, call: Call) {
        match call {
            Call::Insert {
                priority,
                first,
                second,
            } => {
                self.next_key += 7;
                self.insert(self.next_key, priority, first, second);
            }
            Call::InsertRun {
                count,
                max,
                priority,
            } => self.insert_run(count, max, priority),
            Call::InsertAgain { index } => {
                let entries = &self.model.entries;
                if let Some(key) = entries.get(index % 6).map(|entry| entry.key) {
                    self.insert(key, 1, 0, 0);
                }
            }
            Call::InsertNumbered {
                session,
                number,
                again,
            } => {
                self.next_key += 7;
                let existing = self.model.entries.first().filter(|_| again);
                let key = existing.map_or(self.next_key, |entry| entry.key);
                let last = self.model.last_number(session, self.now);
                let number = SessionNumber {
                    session,
                    number: (last + number).saturating_sub(1).max(1),
                };
                let applied = self.table.is_applied(number, self.now);
                assert_eq!(applied, number.number <= last);
                if !applied {
                    self.insert_numbered(key, 1, (0, 0), Some(number));
                }
            }
            Call::Draw { n, leased } => self.draw(n, leased),
            Call::Acknowledge { index, count } => {
                let ended = self.take_leases(index, count);
                let handles: Vec<Handle> = ended.iter().map(|lease| lease.0).collect();
                self.table
                    .acknowledge(handles.into_iter(), &mut DeferredDrops::default());
                for (_, lease) in ended {
                    if self.model.acknowledge(lease) {
                        self.model.remove(lease.key);
                    }
                }
            }
            Call::ReturnLeases { index, count } => {
                let ended = self.take_leases(index, count);
                let handles: Vec<Handle> = ended.iter().map(|lease| lease.0).collect();
                self.table.return_leases(handles.into_iter());
                for (_, lease) in ended {
                    self.model.return_lease(lease);
                }
            }
            Call::Update { index, priority } => {
                let key = index as u64 * 7;
                let priority = f64::from(priority);
                let updates = [(key, priority), (u64::MAX >> 1, 1.0)];
                let matched = self.table.update(updates.into_iter());
                assert_eq!(matched, usize::from(self.model.set_priority(key, priority)));
            }
            Call::Delete { index } => {
                let key = index as u64 * 7;
                let matched = self
                    .table
                    .delete(&[key, key, 1], &mut DeferredDrops::default());
                assert_eq!(matched, usize::from(self.model.find(key).is_some()));
                if matched == 1 {
                    self.model.remove(key);
                }
            }
            Call::Reset => {
                self.table.reset(&mut DeferredDrops::default());
                self.model.reset();
            }
            Call::SetLimits(index) => {
                self.table.set_limits(limits(index)).unwrap();
                self.model.limits = limits(index);
            }
            Call::AdvanceClock { time } => self.advance_clock(time),
        }
    }

    fn insert(&mut self, key: u64, priority: u8, first: usize, second: usize) {
        self.insert_numbered(key, priority, (first, second), None);
    }

    fn insert_numbered(
        &mut self,
        key: u64,
        priority: u8,
        chunks: (usize, usize),
        number: Option<SessionNumber>,
    ) {
        let item = NewItem {
            key,
            trajectory: trajectory(&self.chunks, chunks.0, chunks.1),
            priority: f64::from(priority),
        };
        let bytes = self.model.options.item_bytes(&item);
        let before = self.sink.len();
        let admission = self.table.admit(&item);
        assert_eq!(admission, self.model.admission(bytes));
        match admission {
            Admission::Wait => {}
            Admission::Shrink => {
                assert!(self.table.shrink(&mut DeferredDrops::default()));
                self.follow_evictions(before);
                assert_ne!(self.table.admit(&item), Admission::Shrink);
            }
            Admission::Ready => {
                let new = self.model.find(key).is_none();
                let trajectory = item.trajectory.clone();
                let priority = item.priority;
                let deferred = &mut DeferredDrops::default();
                let inserted = self.table.insert_numbered(item, number, self.now, deferred);
                assert_eq!(inserted, new);
                if let Some(number) = number {
                    self.model.mark_applied(number, self.now);
                }
                if new {
                    self.model.insert(key, priority, trajectory, self.now);
                }
                self.follow_evictions(before);
            }
        }
    }

    /// Checks each eviction that was recorded as change number `start` or later, and removes its item from the model.
    fn follow_evictions(&mut self, start: usize) {
        for key in self.sink.removed(start, Removal::Evicted) {
            assert!(self.model.must_evict());
            let choices = self.model.evictable();
            assert!(choices.contains(&key), "evicted {key} of {choices:?}");
            self.model.remove(key);
        }
        assert!(!self.model.must_evict());
    }

    fn draw(&mut self, n: usize, leased: bool) {
        let before = self.sink.len();
        let at_once = self.table.can_draw_at_once(n);
        let mut draws = Vec::new();
        let count = self
            .table
            .draw(n, leased, &mut draws, &mut DeferredDrops::default());
        assert_eq!(count, draws.len());
        assert!(count == n || !at_once);
        let mut exhausted = Vec::new();
        for draw in &draws {
            assert!(self.model.can_sample());
            self.check_draw(draw);
            let seq = self.model.entries[self.model.find(draw.key).unwrap()].seq;
            if self.model.sample(draw.key, leased) {
                self.model.remove(draw.key);
                exhausted.push(draw.key);
            }
            if leased {
                let lease = Lease { key: draw.key, seq };
                self.leases.push((draw.handle, lease));
            }
        }
        assert_eq!(self.sink.removed(before, Removal::Exhausted), exhausted);
        let could_draw_more = self.model.can_sample() && self.model.visible().count() > 0;
        assert!(count == n || !could_draw_more);
    }

    fn check_draw(&self, draw: &Draw) {
        let choices = self.model.choices(self.model.options.sampler);
        let expected = choices.get(&draw.key);
        let Some(expected) = expected else {
            panic!("drew {} of {choices:?}", draw.key);
        };
        assert!((draw.probability - expected).abs() < 1e-12);
        let smallest = choices.values().copied().fold(f64::INFINITY, f64::min);
        assert!((draw.distribution.min_probability - smallest).abs() < 1e-12);
        assert_eq!(draw.distribution.candidates, choices.len() as u64);
        let entry = &self.model.entries[self.model.find(draw.key).unwrap()];
        assert!(draw.priority.total_cmp(&entry.priority).is_eq());
        assert_eq!(draw.table_size, self.model.entries.len() as u64);
        assert_eq!(draw.times_sampled, entry.times_sampled + 1);
    }

    /// Removes and returns up to `count` open leases, starting with number `index`.
    fn take_leases(&mut self, index: usize, count: usize) -> Vec<(Handle, Lease)> {
        let start = index.min(self.leases.len());
        let end = (start + count).min(self.leases.len());
        self.leases.drain(start..end).collect()
    }

    fn advance_clock(&mut self, time: u64) {
        self.now += time;
        let before = self.sink.len();
        assert!(self.table.expire(self.now, &mut DeferredDrops::default()));
        for key in self.sink.removed(before, Removal::Expired) {
            let oldest = self.model.oldest().unwrap();
            assert_eq!(oldest.key, key);
            assert!(oldest.inserted_at + self.model.options.ttl.unwrap() <= self.now);
            self.model.remove(key);
        }
        let oldest = self.model.oldest().zip(self.model.options.ttl);
        let due = oldest.map(|(entry, ttl)| entry.inserted_at + ttl);
        assert_eq!(self.table.next_expiry(), due);
        assert!(due.is_none_or(|due| due > self.now));
    }

    fn check(&mut self) {
        let stats = self.table.stats();
        let model = &self.model;
        assert_eq!(stats.size, model.entries.len() as u64);
        assert_eq!(stats.hidden_items, model.hidden());
        assert_eq!(stats.bytes, model.bytes());
        assert_eq!(stats.num_episodes, model.episodes().len() as u64);
        assert_eq!(stats.num_deleted_episodes, model.deleted_episodes);
        assert_eq!(stats.num_unique_samples, model.unique_samples);
        let limiter = &stats.limiter;
        assert_eq!(
            (limiter.inserts, limiter.samples, limiter.deletes),
            (model.inserts, model.samples, model.deletes)
        );
        assert_eq!(limiter.limits, model.limits);
        let mut entries: Vec<_> = model.entries.iter().collect();
        entries.sort_by_key(|entry| entry.seq);
        assert_eq!(
            items(&mut self.table),
            entries
                .iter()
                .map(|e| (e.seq, e.key, e.priority.to_bits(), e.times_sampled))
                .collect::<Vec<_>>()
        );
    }

    /// Checks that replaying the recorded changes gives an equal table, whose next draws are the same.
    fn check_replay(&mut self) {
        let sink = Arc::new(RecordingSink::default());
        let copy = TableState::new(Arc::clone(self.table.options()), sink.clone()).unwrap();
        self.check_copy(copy, &sink, 0);
    }

    /// Like `check_replay`, for a table restored from a snapshot: replays the changes from number `since` on.
    fn check_restore(&mut self, (saved, since): (Saved, usize)) {
        let sink = Arc::new(RecordingSink::default());
        let copy = saved.restore(Arc::clone(self.table.options()), sink.clone());
        self.check_copy(copy, &sink, since);
    }

    fn check_copy(&mut self, mut copy: TableState, sink: &RecordingSink, since: usize) {
        self.sink
            .since(since)
            .iter()
            .for_each(|op| op.replay(&mut copy));
        assert_eq!(sink.len(), 0, "restoring and replaying record no changes");
        assert_eq!(items(&mut copy), items(&mut self.table));
        let (actual, expected) = (copy.stats(), self.table.stats());
        assert_eq!(format!("{actual:?}"), format!("{expected:?}"));
        assert_eq!(copy.next_expiry(), self.table.next_expiry());
        let now = self.now;
        assert_eq!(sessions(&mut copy, now), sessions(&mut self.table, now));
        for _ in 0..6 {
            let next = |state: &mut TableState| {
                let mut draws = Vec::new();
                state.draw(1, true, &mut draws, &mut DeferredDrops::default());
                let draw = draws.pop()?;
                let probability = draw.probability.to_bits();
                Some((draw.key, draw.times_sampled, probability))
            };
            assert_eq!(next(&mut copy), next(&mut self.table));
        }
    }
}

/// Id, last number and last use of each session that is not idle.
fn sessions(table: &mut TableState, now: u64) -> Vec<(u64, u64, u64)> {
    let snapshot = table.snapshot();
    let active = snapshot
        .sessions()
        .filter(|(_, used)| now - used < SESSION_IDLE);
    let mut sessions: Vec<_> = active
        .map(|(number, used)| (number.session, number.number, used))
        .collect();
    sessions.sort_unstable();
    sessions
}

/// Insertion number, key, priority and number of samples of each item.
fn items(table: &mut TableState) -> Vec<(u64, u64, u64, u32)> {
    let snapshot = table.snapshot();
    let items = snapshot.items();
    let mut items: Vec<_> = items
        .map(|item| {
            (
                item.seq,
                item.key,
                item.priority.to_bits(),
                item.times_sampled,
            )
        })
        .collect();
    items.sort_unstable();
    items
}

#[test]
fn a_table_agrees_with_the_model() {
    for &sampler in SelectorKind::ALL {
        for &remover in SelectorKind::ALL {
            let mut runner = TestRunner::new(Config {
                cases: if runs_all_tests() { 96 } else { 32 },
                failure_persistence: None,
                ..Config::default()
            });
            let calls = prop::collection::vec(call(), 1..120);
            let input = (options(sampler, remover), calls, 0..120_usize);
            let outcome = runner.run(&input, |(options, calls, saved_at)| {
                let mut pair = TableAndModel::new(options);
                let mut saved = None;
                for (index, call) in calls.into_iter().enumerate() {
                    if index == saved_at {
                        saved = Some((Saved::of(&pair.table.snapshot()), pair.sink.len()));
                    }
                    pair.apply(call);
                    pair.check();
                }
                // Both checks draw from the table at their end, so only one can run.
                match saved {
                    Some(saved) => pair.check_restore(saved),
                    None => pair.check_replay(),
                }
                Ok(())
            });
            if let Err(error) = outcome {
                panic!("{sampler:?} and {remover:?}: {error}");
            }
        }
    }
}

#[test]
fn session_numbers_survive_deletes_and_resets() {
    let mut pair = TableAndModel::new(queue_options());
    let next = |again| Call::InsertNumbered {
        session: 1,
        number: 2,
        again,
    };
    pair.apply(next(false));
    // The key exists, so the item is not inserted; its number is recorded.
    pair.apply(next(true));
    assert!(
        matches!(pair.sink.since(1)[..], [Op::SkipInsert { number, now: 0 }] if number.number == 2)
    );
    pair.apply(Call::Delete { index: 1 });
    pair.apply(Call::Reset);
    let applied = |pair: &TableAndModel, number| {
        let number = SessionNumber { session: 1, number };
        pair.table.is_applied(number, pair.now)
    };
    assert_eq!([1, 2, 3].map(|n| applied(&pair, n)), [true, true, false]);
    pair.check_replay();
    pair.advance_clock(SESSION_IDLE - 1);
    assert!(applied(&pair, 2));
    pair.advance_clock(1);
    assert!(!applied(&pair, 1));
    assert_eq!(pair.table.snapshot().sessions().count(), 0);
}

#[test]
fn replay_returns_leases_of_removed_items() {
    let mut pair = TableAndModel::new(TableOptions {
        max_times_sampled: 1,
        ..queue_options()
    });
    pair.insert(7, 1, 0, 0);
    pair.draw(1, true);
    pair.apply(Call::Delete { index: 1 });
    pair.apply(Call::ReturnLeases { index: 0, count: 1 });
    pair.check();
    assert!(
        matches!(pair.sink.since(0).last(), Some(Op::ReturnLeases { keys, samples: 1 }) if keys.is_empty())
    );
    pair.check_replay();
}

#[test]
fn chunks_that_outlive_a_table_lose_its_references() {
    let mut pair = TableAndModel::new(queue_options());
    let unreferenced = format!("{:?}", pair.chunks[3].holders());
    pair.insert(7, 1, 3, 3);
    pair.apply(Call::Reset);
    assert_eq!(format!("{:?}", pair.chunks[3].holders()), unreferenced);
    pair.insert(14, 1, 2, 3);
    pair.sink = Arc::default();
    pair.table = TableState::new(Arc::new(queue_options()), pair.sink.clone()).unwrap();
    // The test's copies of items do not count as references.
    assert_eq!(format!("{:?}", pair.chunks[3].holders()), unreferenced);
}

#[test]
fn a_full_queue_blocks_inserts_instead_of_evicting_while_items_are_leased() {
    let mut pair = TableAndModel::new(queue_options());
    for key in 1..=6 {
        pair.insert(key * 7, 1, 0, 0);
    }
    pair.draw(2, true);
    pair.insert(70, 1, 0, 0);
    assert_eq!(pair.model.entries.len(), 6);
    assert_eq!((pair.model.deletes, pair.model.hidden()), (0, 2));
    pair.apply(Call::Acknowledge { index: 0, count: 1 });
    pair.insert(70, 1, 0, 0);
    pair.check();
    assert_eq!((pair.model.deletes, pair.model.entries.len()), (1, 6));
}

fn queue_options() -> TableOptions {
    TableOptions {
        max_size: 6,
        max_times_sampled: 1,
        limits: RateLimits::queue(6),
        ..table_options("t")
    }
}
