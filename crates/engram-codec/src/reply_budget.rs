//! Bounds the memory of the replies that clients have not read.
//!
//! A stream reserves the bytes of a reply before it creates it. The [`Reservation`] lasts until the reply is sent. It
//! waits while its connection or the server has no room; of the waiting connections, the one that holds the fewest bytes
//! is served first. If reservations wait because the server has no room, connections that do not read their replies are
//! closed: first the one with the most bytes times time since its last progress.
//!
//! A reply larger than a connection's share counts separately: a server has one of them at a time.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

/// Default bound of all connections of a server together, in bytes.
const MAX_SERVER_BYTES: u64 = 1 << 30;

/// The bound of one connection is the server's bound divided by this.
const SHARES_PER_SERVER: u64 = 4;

/// A reply is stalled, because the client does not read it, if none of its messages was sent for this long.
const STALL_TIMEOUT: Duration = Duration::from_millis(100);

/// How often the connections are checked for stalled replies while reservations wait.
const CHECK_INTERVAL: Duration = Duration::from_millis(25);

/// The budget of a server.
#[derive(Clone, Debug)]
pub struct ReplyBudget {
    shared: Arc<Shared>,
}

/// The share of one connection.
#[derive(Clone, Debug)]
pub struct ConnectionReplies {
    connection: Arc<Connection>,
}

/// Bytes reserved for a reply. Dropping it frees them.
#[derive(Debug)]
pub struct Reservation {
    connection: Arc<Connection>,
    id: u64,
}

#[derive(Debug)]
struct Shared {
    max_connection_bytes: u64,
    max_server_bytes: u64,
    /// Locked for a few operations only, never while waiting.
    state: Mutex<State>,
}

#[derive(Debug)]
struct Connection {
    shared: Arc<Shared>,
    id: u64,
    close: Arc<CloseSignal>,
}

#[derive(Debug, Default)]
struct CloseSignal {
    is_set: AtomicBool,
    waker: AtomicWaker,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes of all granted reservations, except the large one.
    used: u64,
    /// The connection of the granted reservation that is larger than a connection's share.
    large: Option<u64>,
    connections: HashMap<u64, ConnectionState>,
    /// Number of waiting reservations.
    waiting: usize,
    /// True while a task checks for stalled replies.
    has_check_task: bool,
    /// Id of the next connection or reservation.
    next_id: u64,
}

#[derive(Debug)]
struct ConnectionState {
    used: u64,
    granted: HashMap<u64, Granted>,
    waiting: VecDeque<Waiting>,
    close: Arc<CloseSignal>,
    /// True once it is being closed because its replies were not read.
    is_closing: bool,
}

#[derive(Debug)]
struct Granted {
    bytes: u64,
    is_large: bool,
    /// When a message of the reply was last sent or, before the first one, when the reply was created. `None` until it
    /// is created.
    last_progress: Option<Instant>,
}

#[derive(Debug)]
struct Waiting {
    id: u64,
    bytes: u64,
    grant: oneshot::Sender<()>,
}

impl Default for ReplyBudget {
    fn default() -> Self {
        Self::new(MAX_SERVER_BYTES)
    }
}

impl ReplyBudget {
    /// A budget of this many bytes for all connections together.
    #[must_use]
    pub fn new(max_server_bytes: u64) -> Self {
        Self {
            shared: Arc::new(Shared {
                max_connection_bytes: max_server_bytes / SHARES_PER_SERVER,
                max_server_bytes,
                state: Mutex::default(),
            }),
        }
    }

    /// The share of a new connection.
    #[must_use]
    pub fn add_connection(&self) -> ConnectionReplies {
        let close = Arc::<CloseSignal>::default();
        let mut state = self.shared.state.lock();
        let id = state.take_id();
        state.connections.insert(
            id,
            ConnectionState {
                used: 0,
                granted: HashMap::new(),
                waiting: VecDeque::new(),
                close: Arc::clone(&close),
                is_closing: false,
            },
        );
        drop(state);
        ConnectionReplies {
            connection: Arc::new(Connection {
                shared: Arc::clone(&self.shared),
                id,
                close,
            }),
        }
    }
}

impl ConnectionReplies {
    /// Reserves bytes for a reply; waits until there is room. Must be called on a Tokio runtime.
    pub fn reserve(&self, bytes: usize) -> impl Future<Output = Reservation> + Send + use<> {
        let Connection { shared, id, .. } = &*self.connection;
        let bytes = bytes as u64;
        let mut state = shared.state.lock();
        let reservation = Reservation {
            connection: Arc::clone(&self.connection),
            id: state.take_id(),
        };
        let is_granted = state.waiting == 0 && shared.has_room(&state, *id, bytes);
        let granted = if is_granted {
            shared.grant(&mut state, *id, reservation.id, bytes);
            None
        } else {
            let (grant, granted) = oneshot::channel();
            if let Some(connection) = state.connections.get_mut(id) {
                connection.waiting.push_back(Waiting {
                    id: reservation.id,
                    bytes,
                    grant,
                });
                state.waiting += 1;
            }
            shared.serve_waiting(&mut state);
            shared.close_stalled(&mut state);
            self.spawn_check_task(&mut state);
            Some(granted)
        };
        drop(state);
        async move {
            if let Some(granted) = granted {
                // The sender is dropped only together with the reservation.
                let _ = granted.await;
            }
            reservation
        }
    }

    /// Ready once the connection must be closed because its replies are not read.
    pub fn poll_closed(&self, context: &Context<'_>) -> Poll<()> {
        let close = &self.connection.close;
        if !close.is_set.load(Ordering::Acquire) {
            close.waker.register(context.waker());
        }
        if close.is_set.load(Ordering::Acquire) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    fn spawn_check_task(&self, state: &mut MutexGuard<'_, State>) {
        if state.waiting == 0 || state.has_check_task {
            return;
        }
        state.has_check_task = true;
        let shared = Arc::clone(&self.connection.shared);
        tokio::spawn(async move {
            loop {
                sleep(CHECK_INTERVAL).await;
                let mut state = shared.state.lock();
                if state.waiting == 0 {
                    state.has_check_task = false;
                    return;
                }
                shared.close_stalled(&mut state);
            }
        });
    }
}

impl Reservation {
    /// Records that the reply was created or that a message of it was sent.
    pub fn progress(&self) {
        let mut state = self.connection.shared.state.lock();
        if let Some(granted) = self.granted(&mut state) {
            granted.last_progress = Some(Instant::now());
        }
    }

    /// Increases the number of bytes to `bytes`. Returns false, without a change, if there is no room, if other
    /// reservations wait, or if the reply is or would become larger than a connection's share.
    #[must_use]
    pub fn try_grow(&self, bytes: usize) -> bool {
        let Connection { shared, id, .. } = &*self.connection;
        let mut state = shared.state.lock();
        let Some(granted) = self.granted(&mut state).filter(|it| !it.is_large) else {
            return false;
        };
        let more = (bytes as u64).saturating_sub(granted.bytes);
        if state.waiting > 0 || shared.is_large(bytes as u64) || !shared.has_room(&state, *id, more)
        {
            return false;
        }
        drop(state);
        self.resize(bytes);
        true
    }

    /// Sets the number of bytes, even if there is no room for them: other reservations then wait. Does nothing for a
    /// reply larger than a connection's share.
    pub fn resize(&self, bytes: usize) {
        let shared = &self.connection.shared;
        let bytes = bytes as u64;
        let mut state = shared.state.lock();
        let Some(granted) = self.granted(&mut state).filter(|granted| !granted.is_large) else {
            return;
        };
        let previous = std::mem::replace(&mut granted.bytes, bytes);
        if let Some(connection) = state.connections.get_mut(&self.connection.id) {
            connection.used = connection.used - previous + bytes;
        }
        state.used = state.used - previous + bytes;
        if bytes < previous {
            shared.serve_waiting(&mut state);
        }
    }

    /// Reduces the number of bytes to `max_bytes` if it is larger. Does nothing for a reply larger than a connection's
    /// share.
    pub fn shrink(&self, max_bytes: usize) {
        let mut state = self.connection.shared.state.lock();
        let bytes = self.granted(&mut state).map(|granted| granted.bytes);
        drop(state);
        if bytes.is_some_and(|bytes| bytes > max_bytes as u64) {
            self.resize(max_bytes);
        }
    }

    fn granted<'a>(&self, state: &'a mut MutexGuard<'_, State>) -> Option<&'a mut Granted> {
        let connection = state.connections.get_mut(&self.connection.id)?;
        connection.granted.get_mut(&self.id)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let shared = &self.connection.shared;
        let mut state = shared.state.lock();
        let Some(connection) = state.connections.get_mut(&self.connection.id) else {
            return;
        };
        if let Some(granted) = connection.granted.remove(&self.id) {
            if granted.is_large {
                state.large = None;
            } else {
                connection.used -= granted.bytes;
                state.used -= granted.bytes;
            }
        } else {
            let waiting = connection.waiting.len();
            connection.waiting.retain(|waiting| waiting.id != self.id);
            let removed = waiting - connection.waiting.len();
            state.waiting -= removed;
        }
        shared.serve_waiting(&mut state);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.state.lock().connections.remove(&self.id);
    }
}

impl CloseSignal {
    fn set(&self) {
        self.is_set.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl State {
    fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

impl Shared {
    fn is_large(&self, bytes: u64) -> bool {
        bytes > self.max_connection_bytes
    }

    /// True if the connection's share has room.
    fn fits_connection(&self, connection: &ConnectionState, bytes: u64) -> bool {
        connection.used.saturating_add(bytes) <= self.max_connection_bytes
    }

    fn fits_server(&self, state: &State, bytes: u64) -> bool {
        state.used.saturating_add(bytes) <= self.max_server_bytes
    }

    fn has_room(&self, state: &State, connection: u64, bytes: u64) -> bool {
        if self.is_large(bytes) {
            return state.large.is_none();
        }
        let connection = state.connections.get(&connection);
        connection.is_some_and(|connection| self.fits_connection(connection, bytes))
            && self.fits_server(state, bytes)
    }

    fn grant(&self, state: &mut State, connection_id: u64, id: u64, bytes: u64) {
        let is_large = self.is_large(bytes);
        let Some(connection) = state.connections.get_mut(&connection_id) else {
            return;
        };
        if is_large {
            state.large = Some(connection_id);
        } else {
            connection.used += bytes;
            state.used += bytes;
        }
        let granted = Granted {
            bytes,
            is_large,
            last_progress: None,
        };
        connection.granted.insert(id, granted);
    }

    /// The reservation to grant once the server has room: its connection, its index in the connection's queue, and its
    /// bytes. Skips large ones while a large one is granted.
    fn next_waiting(&self, state: &State) -> Option<(u64, usize, u64)> {
        let has_large = state.large.is_some();
        let candidates = state.connections.iter().filter(|(_, it)| !it.is_closing);
        let candidates =
            candidates.filter_map(|(id, connection)| {
                let mut waiting = connection.waiting.iter().enumerate();
                let (index, next) =
                    waiting.find(|(_, waiting)| !has_large || !self.is_large(waiting.bytes))?;
                (self.is_large(next.bytes) || self.fits_connection(connection, next.bytes))
                    .then_some((connection.used, next.id, (*id, index, next.bytes)))
            });
        let least = candidates.min_by_key(|(used, arrival, _)| (*used, *arrival));
        least.map(|(_, _, candidate)| candidate)
    }

    /// Grants waiting reservations while there is room.
    fn serve_waiting(&self, state: &mut State) {
        while state.waiting > 0
            && let Some((connection_id, index, bytes)) = self.next_waiting(state)
            && (self.is_large(bytes) || self.fits_server(state, bytes))
        {
            let connection = state.connections.get_mut(&connection_id);
            let Some(waiting) = connection.and_then(|it| it.waiting.remove(index)) else {
                return;
            };
            state.waiting -= 1;
            self.grant(state, connection_id, waiting.id, bytes);
            // If the receiver was dropped, its reservation is dropped next and frees the bytes.
            let _ = waiting.grant.send(());
        }
    }

    /// Closes connections whose replies are stalled while reservations wait for their memory: first those with the most
    /// bytes times stall time.
    fn close_stalled(&self, state: &mut State) {
        let now = Instant::now();
        // Bytes times milliseconds without progress; 0 if the reply is not stalled.
        let stall_cost = |granted: &Granted| {
            let last = granted.last_progress.unwrap_or(now);
            let time = now.saturating_duration_since(last);
            let bytes = if time < STALL_TIMEOUT {
                0
            } else {
                granted.bytes
            };
            u128::from(bytes) * time.as_millis()
        };
        let mut waiting = state.connections.values().flat_map(|it| &it.waiting);
        if let Some(id) = state.large
            && waiting.any(|waiting| self.is_large(waiting.bytes))
            && let Some(connection) = state.connections.get_mut(&id)
            && (connection.granted.values()).any(|it| it.is_large && stall_cost(it) > 0)
        {
            connection.close();
        }
        let Some((_, _, bytes)) = self.next_waiting(state) else {
            return;
        };
        let connections = state.connections.values();
        let closing = connections.filter(|it| it.is_closing).map(|it| it.used);
        let mut remaining = state.used.saturating_sub(closing.sum::<u64>());
        while remaining.saturating_add(bytes) > self.max_server_bytes {
            let connections = state.connections.values_mut();
            let costs = connections.filter(|it| !it.is_closing).map(|connection| {
                let granted = connection.granted.values().filter(|it| !it.is_large);
                (granted.map(stall_cost).sum::<u128>(), connection)
            });
            let highest = costs.max_by_key(|(cost, _)| *cost);
            let Some((1.., connection)) = highest else {
                return;
            };
            remaining = remaining.saturating_sub(connection.used);
            connection.close();
        }
    }
}

impl ConnectionState {
    fn close(&mut self) {
        self.is_closing = true;
        self.close.set();
    }
}

#[cfg(test)]
mod tests;
