//! Bounds the memory of the replies that clients have not read.
//!
//! A stream reserves the bytes of a reply before it creates the reply. The [`Reservation`] lasts until the reply is
//! sent. A stream waits for its reservation while its connection or the server has no room; of the waiting connections,
//! the one that holds the fewest bytes is served first. If reservations wait because the server has no room,
//! connections that do not read their replies are closed: first the one with the largest product of unsent bytes and
//! time without progress.
//!
//! A reply larger than a connection's share, a quarter of the budget, is large: its bytes do not count, but a server
//! has only one such reply at a time.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

/// Default budget of a server, for all its connections together, in bytes.
const MAX_SERVER_BYTES: u64 = 1 << 30;

/// A connection's share is the server's budget divided by this number.
const SHARES_PER_SERVER: u64 = 4;

/// A connection is stalled if it has unsent replies, and none of their messages was sent for this long.
const STALL_TIMEOUT: Duration = Duration::from_millis(100);

/// Time between checks for stalled connections, which run while reservations wait for memory of other connections.
const CHECK_INTERVAL: Duration = Duration::from_millis(25);

/// The budget of a server for the replies of all its connections.
#[derive(Clone, Debug)]
pub struct ReplyBudget {
    state: Arc<Mutex<State>>,
}

/// One connection's share of the budget.
#[derive(Clone, Debug)]
pub struct ConnectionBudget {
    connection: Arc<Connection>,
}

/// Bytes reserved for a reply. Dropping it frees them.
#[derive(Debug)]
pub struct Reservation {
    connection: Arc<Connection>,
    bytes: u64,
    /// True if the bytes that were requested exceed a connection's share.
    is_large: bool,
    /// True once the reply was created. Its bytes then count as unsent until the reservation is dropped.
    is_created: bool,
}

/// A future that returns the [`Reservation`] once the bytes are reserved. Dropping it cancels the reservation.
#[derive(Debug)]
pub struct PendingReservation {
    connection: Arc<Connection>,
    bytes: u64,
    is_large: bool,
    state: PendingState,
}

#[derive(Debug)]
enum PendingState {
    /// The reservation is in a queue of the budget.
    Waiting {
        id: u64,
        granted: oneshot::Receiver<()>,
    },
    /// The bytes were reserved at once; the future was not polled yet.
    Granted,
    /// The reservation was returned.
    Done,
}

#[derive(Debug)]
struct Connection {
    /// The state of the whole budget. The lock is never held across an `await`.
    state: Arc<Mutex<State>>,
    /// Its position in the state's `connections`.
    index: usize,
    close: Arc<CloseSignal>,
}

/// Set once a connection must be closed.
#[derive(Debug, Default)]
struct CloseSignal {
    is_set: AtomicBool,
    waker: AtomicWaker,
}

#[derive(Debug)]
struct State {
    /// Each connection's share of `max_server_bytes`.
    max_connection_bytes: u64,
    /// The budget of all connections together.
    max_server_bytes: u64,
    /// Bytes of all granted reservations, except the large one.
    used: u64,
    connections: Vec<ConnectionState>,
    /// Positions in `connections` that are not in use.
    free: Vec<usize>,
    /// Number of connections whose `is_ready` is true.
    num_ready: usize,
    /// The granted reservation that is larger than a connection's share.
    large: Option<Large>,
    /// Waiting reservations that are larger than a connection's share, with the positions of their connections.
    waiting_large: VecDeque<(usize, Waiting)>,
    /// True while a task checks for stalled connections.
    has_check_task: bool,
    /// Id of the next waiting reservation.
    next_id: u64,
}

#[derive(Debug)]
struct ConnectionState {
    /// Bytes of its granted reservations, except a large one.
    used: u64,
    /// The part of `used` that belongs to replies that were created.
    unsent: u64,
    /// When a reply was last created or a message was last sent.
    last_progress: Instant,
    /// Waiting reservations, except large ones.
    waiting: VecDeque<Waiting>,
    /// True if the first of `waiting` waits only for room in the server: it fits the connection's share, and the
    /// connection is not being closed.
    is_ready: bool,
    close: Arc<CloseSignal>,
    /// True once `close` is set, because the connection's replies were not read.
    is_closing: bool,
}

/// The granted large reservation.
#[derive(Debug)]
struct Large {
    /// Position of its connection.
    connection: usize,
    /// True once its reply was created.
    is_created: bool,
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
            state: Arc::new(Mutex::new(State {
                max_connection_bytes: max_server_bytes / SHARES_PER_SERVER,
                max_server_bytes,
                used: 0,
                connections: Vec::new(),
                free: Vec::new(),
                num_ready: 0,
                large: None,
                waiting_large: VecDeque::new(),
                has_check_task: false,
                next_id: 0,
            })),
        }
    }

    /// Adds a connection; returns its share of the budget.
    #[must_use]
    pub fn add_connection(&self) -> ConnectionBudget {
        let close = Arc::<CloseSignal>::default();
        let connection = ConnectionState {
            used: 0,
            unsent: 0,
            last_progress: Instant::now(),
            waiting: VecDeque::new(),
            is_ready: false,
            close: Arc::clone(&close),
            is_closing: false,
        };
        let mut state = self.state.lock();
        let index = state.free.pop().unwrap_or(state.connections.len());
        if index < state.connections.len() {
            state.connections[index] = connection;
        } else {
            state.connections.push(connection);
        }
        drop(state);
        ConnectionBudget {
            connection: Arc::new(Connection {
                state: Arc::clone(&self.state),
                index,
                close,
            }),
        }
    }
}

impl ConnectionBudget {
    /// Reserves bytes for a reply. The returned future waits until there is room. Must be called on a Tokio runtime.
    #[must_use]
    pub fn reserve(&self, bytes: usize) -> PendingReservation {
        let Connection { state, index, .. } = &*self.connection;
        let bytes = bytes as u64;
        let mut locked = state.lock();
        let pending = if locked.try_grant(*index, bytes) {
            PendingState::Granted
        } else {
            let (grant, granted) = oneshot::channel();
            let id = locked.add_waiting(*index, bytes, grant);
            locked.serve_waiting();
            locked.close_stalled();
            if locked.needs_checks() && !locked.has_check_task {
                locked.has_check_task = true;
                tokio::spawn(check_stalled(Arc::clone(state)));
            }
            PendingState::Waiting { id, granted }
        };
        PendingReservation {
            connection: Arc::clone(&self.connection),
            bytes,
            is_large: locked.is_large(bytes),
            state: pending,
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
}

/// Closes stalled connections while reservations of others wait for their memory. Ends once none waits for that.
async fn check_stalled(state: Arc<Mutex<State>>) {
    loop {
        sleep(CHECK_INTERVAL).await;
        let mut state = state.lock();
        if !state.needs_checks() {
            state.has_check_task = false;
            return;
        }
        state.close_stalled();
    }
}

impl PendingReservation {
    /// Returns the reservation. It must have been granted.
    fn take(&mut self) -> Reservation {
        self.state = PendingState::Done;
        Reservation {
            connection: Arc::clone(&self.connection),
            bytes: self.bytes,
            is_large: self.is_large,
            is_created: false,
        }
    }
}

impl Future for PendingReservation {
    type Output = Reservation;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reservation> {
        match &mut self.state {
            PendingState::Waiting { granted, .. } => {
                // Never an error: the sender sends before it is dropped, unless this future is being dropped.
                let _ = ready!(Pin::new(granted).poll(context));
            }
            PendingState::Granted => {}
            PendingState::Done => return Poll::Pending,
        }
        Poll::Ready(self.take())
    }
}

impl Drop for PendingReservation {
    fn drop(&mut self) {
        let is_granted = match self.state {
            PendingState::Waiting { id, .. } => {
                let Connection { state, index, .. } = &*self.connection;
                !state.lock().remove_waiting(*index, id)
            }
            PendingState::Granted => true,
            PendingState::Done => false,
        };
        if is_granted {
            drop(self.take());
        }
    }
}

impl Reservation {
    /// Records that the reply was created and has this many bytes. The size of a large reply is not recorded.
    pub fn set_created(&mut self, bytes: usize) {
        let now = Instant::now();
        let Connection { state, index, .. } = &*self.connection;
        let mut state = state.lock();
        if self.is_large {
            if let Some(large) = &mut state.large {
                large.is_created = true;
            }
        } else {
            let previous = std::mem::replace(&mut self.bytes, bytes as u64);
            state.connections[*index].unsent += self.bytes;
            state.resize(*index, previous, self.bytes);
        }
        state.connections[*index].last_progress = now;
        self.is_created = true;
    }

    /// Records that a message of the reply, or a slice of it, was sent: progress of the whole connection.
    pub fn record_progress(&self) {
        let now = Instant::now();
        let Connection { state, index, .. } = &*self.connection;
        state.lock().connections[*index].last_progress = now;
    }

    /// Increases the number of bytes to `bytes`. Returns false, without a change, if there is no room, if a
    /// reservation waits in the same connection or for room in the server, or if the reply is or would become larger
    /// than a connection's share.
    #[must_use]
    pub fn try_grow(&mut self, bytes: usize) -> bool {
        let bytes = bytes as u64;
        let Connection { state, index, .. } = &*self.connection;
        let mut state = state.lock();
        let more = bytes.saturating_sub(self.bytes);
        let may_grow = !self.is_large && !state.is_large(bytes) && state.has_room(*index, more);
        if may_grow {
            state.resize(*index, self.bytes, bytes);
            self.bytes = bytes;
        }
        may_grow
    }

    /// Sets the number of bytes of a reply that is not created yet. More bytes are granted even if there is no room:
    /// later reservations then wait. No effect if the reservation was larger than a connection's share from the start.
    pub fn resize(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        if !self.is_large && bytes != self.bytes {
            let Connection { state, index, .. } = &*self.connection;
            state.lock().resize(*index, self.bytes, bytes);
            self.bytes = bytes;
        }
    }

    /// Reduces the number of bytes to at most `max_bytes`. No effect if the reservation was larger than a connection's
    /// share from the start.
    pub fn shrink(&mut self, max_bytes: usize) {
        let bytes = max_bytes as u64;
        if !self.is_large && bytes < self.bytes {
            let Connection { state, index, .. } = &*self.connection;
            let mut state = state.lock();
            if self.is_created {
                state.connections[*index].unsent -= self.bytes - bytes;
            }
            state.resize(*index, self.bytes, bytes);
            self.bytes = bytes;
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let now = self.is_created.then(Instant::now);
        let Connection { state, index, .. } = &*self.connection;
        let mut state = state.lock();
        if let Some(now) = now {
            let connection = &mut state.connections[*index];
            connection.last_progress = now;
            if !self.is_large {
                connection.unsent -= self.bytes;
            }
        }
        if self.is_large {
            state.large = None;
            state.serve_waiting();
        } else {
            state.resize(*index, self.bytes, 0);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.state.lock().free.push(self.index);
    }
}

impl State {
    fn is_large(&self, bytes: u64) -> bool {
        bytes > self.max_connection_bytes
    }

    /// True if the connection's share has room for this many more bytes.
    fn fits_connection(&self, connection: usize, bytes: u64) -> bool {
        let used = self.connections[connection].used;
        used.saturating_add(bytes) <= self.max_connection_bytes
    }

    /// True if the server has room for this many more bytes.
    fn fits_server(&self, bytes: u64) -> bool {
        self.used.saturating_add(bytes) <= self.max_server_bytes
    }

    /// True if a connection can have this many more bytes, and no waiting reservation must be served first.
    fn has_room(&self, connection: usize, bytes: u64) -> bool {
        self.num_ready == 0
            && self.connections[connection].waiting.is_empty()
            && self.fits_connection(connection, bytes)
            && self.fits_server(bytes)
    }

    /// Grants a new reservation if there is room; returns true if so.
    fn try_grant(&mut self, connection: usize, bytes: u64) -> bool {
        if self.is_large(bytes) {
            let is_free = self.large.is_none();
            if is_free {
                self.large = Some(Large::new(connection));
            }
            return is_free;
        }
        let has_room = self.has_room(connection, bytes);
        if has_room {
            self.resize(connection, 0, bytes);
        }
        has_room
    }

    /// Changes the bytes of a reservation that is not large; if this frees bytes, serves waiting reservations.
    fn resize(&mut self, connection: usize, previous: u64, bytes: u64) {
        let used = &mut self.connections[connection].used;
        *used = *used - previous + bytes;
        self.used = self.used - previous + bytes;
        self.update_ready(connection);
        if bytes < previous {
            self.serve_waiting();
        }
    }

    /// Updates `is_ready` of a connection. Must be called after each change of its `used`, `waiting` or `is_closing`.
    fn update_ready(&mut self, index: usize) {
        let connection = &self.connections[index];
        let next = connection.waiting.front();
        let is_ready = !connection.is_closing
            && next.is_some_and(|next| self.fits_connection(index, next.bytes));
        let connection = &mut self.connections[index];
        self.num_ready -= usize::from(connection.is_ready);
        self.num_ready += usize::from(is_ready);
        connection.is_ready = is_ready;
    }

    /// Adds a waiting reservation; returns its id.
    fn add_waiting(&mut self, connection: usize, bytes: u64, grant: oneshot::Sender<()>) -> u64 {
        self.next_id += 1;
        let id = self.next_id;
        let waiting = Waiting { id, bytes, grant };
        if self.is_large(bytes) {
            self.waiting_large.push_back((connection, waiting));
        } else {
            self.connections[connection].waiting.push_back(waiting);
            self.update_ready(connection);
        }
        id
    }

    /// Removes a waiting reservation. Returns false if it was granted already.
    fn remove_waiting(&mut self, connection: usize, id: u64) -> bool {
        let waiting = &mut self.connections[connection].waiting;
        let count = waiting.len() + self.waiting_large.len();
        waiting.retain(|waiting| waiting.id != id);
        self.waiting_large.retain(|(_, waiting)| waiting.id != id);
        let is_removed = waiting.len() + self.waiting_large.len() < count;
        self.update_ready(connection);
        self.serve_waiting();
        is_removed
    }

    /// The connection that is served next once the server has room, and the bytes of its next reservation.
    fn next_ready(&self) -> Option<(usize, u64)> {
        if self.num_ready == 0 {
            return None;
        }
        let ready = self.connections.iter().enumerate();
        let ready = ready.filter(|(_, connection)| connection.is_ready);
        let waiting = ready.filter_map(|(index, connection)| {
            let next = connection.waiting.front()?;
            Some(((connection.used, next.id), (index, next.bytes)))
        });
        let least = waiting.min_by_key(|(order, _)| *order);
        least.map(|(_, next)| next)
    }

    /// Grants waiting reservations while there is room.
    fn serve_waiting(&mut self) {
        if self.large.is_none() {
            let connections = &self.connections;
            let mut waiting = self.waiting_large.iter();
            let next = waiting.position(|(connection, _)| !connections[*connection].is_closing);
            if let Some((connection, waiting)) = next.and_then(|at| self.waiting_large.remove(at)) {
                self.large = Some(Large::new(connection));
                waiting.grant();
            }
        }
        while let Some((index, bytes)) = self.next_ready()
            && self.fits_server(bytes)
            && let Some(waiting) = self.connections[index].waiting.pop_front()
        {
            self.resize(index, 0, bytes);
            waiting.grant();
        }
    }

    /// True if reservations wait for room in the server, or large ones for the current large one.
    fn needs_checks(&self) -> bool {
        self.num_ready > 0 || !self.waiting_large.is_empty()
    }

    /// Closes stalled connections whose memory others wait for: that of the large reply, and only as many others as the
    /// next reservation needs, first the one with the largest product of unsent bytes and time without progress.
    fn close_stalled(&mut self) {
        let now = Instant::now();
        let stalled_time = |connection: &ConnectionState| {
            let time = now.saturating_duration_since(connection.last_progress);
            let is_stalled = time >= STALL_TIMEOUT && !connection.is_closing;
            is_stalled.then_some(time)
        };
        if let Some(large) = self.large.as_ref().filter(|large| large.is_created)
            && !self.waiting_large.is_empty()
            && stalled_time(&self.connections[large.connection]).is_some()
        {
            self.close(large.connection);
        }
        let Some((_, bytes)) = self.next_ready() else {
            return;
        };
        // The bytes that connections being closed will free.
        let closing = self.connections.iter().filter(|it| it.is_closing);
        let closing: u64 = closing.map(|it| it.used).sum();
        let mut remaining = self.used.saturating_sub(closing);
        while remaining.saturating_add(bytes) > self.max_server_bytes {
            let connections = self.connections.iter().enumerate();
            // Bytes times milliseconds.
            let stalled = connections.filter_map(|(index, connection)| {
                let time = stalled_time(connection).filter(|_| connection.unsent > 0)?;
                Some((u128::from(connection.unsent) * time.as_millis(), index))
            });
            let Some((_, index)) = stalled.max() else {
                return;
            };
            remaining = remaining.saturating_sub(self.connections[index].used);
            self.close(index);
        }
    }

    fn close(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        connection.is_closing = true;
        connection.close.is_set.store(true, Ordering::Release);
        connection.close.waker.wake();
        self.update_ready(index);
    }
}

impl Large {
    fn new(connection: usize) -> Self {
        Self {
            connection,
            is_created: false,
        }
    }
}

impl Waiting {
    fn grant(self) {
        // Never an error: a dropped future removes its reservation from the queue before it drops the receiver.
        let _ = self.grant.send(());
    }
}

#[cfg(test)]
mod tests;
