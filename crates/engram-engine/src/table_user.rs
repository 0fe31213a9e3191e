//! The writers and readers that use a table over the network: what each has done, for [`TableInfo`](crate::TableInfo).

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::meter::Meter;

/// Maximum number of users that an info lists: those that were active last.
const MAX_LISTED: usize = 1000;

/// What a user of a table uses a table for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableUserKind {
    /// Inserts items.
    Writer,
    /// Samples batches.
    Reader,
}

/// A stream of a client that uses a table.
#[derive(Debug)]
pub struct TableUser {
    kind: TableUserKind,
    session: Option<u64>,
    address: Arc<str>,
    activity: Mutex<Activity>,
}

#[derive(Debug, Default)]
struct Activity {
    /// Counts the items as inserts.
    meter: Meter,
    in_flight: u64,
    last_seen: u64,
}

/// What a user has done until one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct TableUserInfo {
    /// What it uses the table for.
    pub kind: TableUserKind,
    /// Id of a writer's session.
    pub session: Option<u64>,
    /// Where the client is: `host:port`, or `local` for a Unix socket.
    pub address: String,
    /// Number of items that it has sent or requested.
    pub items: u64,
    /// The same per second, over the last few seconds.
    pub items_per_s: f64,
    /// Number of items that it has sent or requested, and that are not in the table or not acknowledged yet.
    pub in_flight: u64,
    /// Seconds since its last message.
    pub idle_s: f64,
}

impl TableUser {
    pub(crate) fn new(kind: TableUserKind, session: Option<u64>, address: &Arc<str>) -> Self {
        Self {
            kind,
            session,
            address: Arc::clone(address),
            activity: Mutex::default(),
        }
    }

    /// Counts a message with this many items.
    pub(crate) fn record(&self, items: u64, now: u64) {
        let mut activity = self.activity.lock();
        activity.last_seen = now;
        activity.meter.tick(now);
        activity.meter.inserts += items;
    }

    /// Sets the number of items in flight.
    pub fn set_in_flight(&self, items: u64) {
        self.activity.lock().in_flight = items;
    }

    fn info(&self, now: u64) -> TableUserInfo {
        let mut activity = self.activity.lock();
        #[expect(
            clippy::cast_precision_loss,
            reason = "53 bits are enough for a duration"
        )]
        let idle_s = now.saturating_sub(activity.last_seen) as f64 / 1e9;
        TableUserInfo {
            kind: self.kind,
            session: self.session,
            address: self.address.to_string(),
            items: activity.meter.inserts,
            items_per_s: activity.meter.rates(now).0,
            in_flight: activity.in_flight,
            idle_s,
        }
    }
}

/// The users of a table.
#[derive(Debug, Default)]
pub(crate) struct TableUsers(Mutex<Vec<Weak<TableUser>>>);

impl TableUsers {
    pub(crate) fn add(&self, user: &Arc<TableUser>) {
        let mut all = self.0.lock();
        all.retain(|each| each.strong_count() > 0);
        all.push(Arc::downgrade(user));
    }

    /// The users whose streams are open, those that were active last first.
    pub(crate) fn infos(&self, now: u64) -> Vec<TableUserInfo> {
        let open: Vec<_> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        let mut infos: Vec<_> = open.iter().map(|each| each.info(now)).collect();
        infos.sort_by(|left, right| left.idle_s.total_cmp(&right.idle_s));
        infos.truncate(MAX_LISTED);
        infos
    }
}
