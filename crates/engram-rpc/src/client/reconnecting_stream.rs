//! A bidirectional gRPC stream that outlives its connections.
//!
//! A stream is in one of four states:
//!
//! * *Waiting*: no connection, nothing to send, no response expected. The next command makes it *connecting*.
//! * *Connecting*: tries to reach the server for up to `reconnect_timeout`, and is *connected* if it succeeds.
//!   Otherwise all pending requests fail, and the stream is *waiting*.
//! * *Connected*: sends requests, handles responses and accepts commands. If the connection breaks, all unanswered
//!   requests are queued again, and the stream is *connecting*, or *waiting* if there are none. A server that moves to
//!   another address breaks it, too. If the server rejects the stream, all pending requests fail, and the stream is *waiting*. Once the command channel is closed and all
//!   requests are sent, the stream is *closing*.
//! * *Closing*: half-closed. Waits for the server to end its side, for up to [`CLOSE_TIMEOUT`].

use std::future::pending;
use std::sync::Arc;

use engram_core::Error;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::{Duration, Instant, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::connect::Connector;
use super::connection::GrpcClient;

/// Requests buffered between a stream and the transport.
const SEND_BUFFER: usize = 4;

/// A connection that lasts this long counts as working, even if the server sent nothing.
const STABLE_AFTER: Duration = Duration::from_secs(1);

/// Pause before reconnecting if the last connection ended before it counted as working.
const RETRY_DELAY: Duration = Duration::from_millis(10);

/// How long connecting continues after the command channel was closed.
const LAST_CONNECT_TIMEOUT: Duration = Duration::from_millis(250);

/// How long the server may take to read the last requests and end its side.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The reason if connections can be opened, but no stream.
const ENDS_STREAMS: &str = "it accepts connections but closes every stream immediately";

/// The client's side of one stream: what to send, what was received, and what to send again on a new connection.
pub(crate) trait ReconnectingStream: Send + 'static {
    type Command: Send;
    type Request: Send + 'static;
    type Response: Send + 'static;

    /// Opens the stream on a connection.
    fn open(
        client: GrpcClient,
        requests: ReceiverStream<Self::Request>,
    ) -> impl Future<Output = Result<Streaming<Self::Response>, Status>> + Send;

    /// Queues the requests that a command needs; [`Self::next_request`] returns them.
    fn handle_command(&mut self, command: Self::Command);

    /// Queues all unanswered requests again, and forgets what the server knew on the lost connection.
    fn on_disconnect(&mut self);

    /// Returns the next request to send, if any.
    fn next_request(&mut self) -> Option<Self::Request>;

    /// True if there is a request to send.
    fn has_request(&self) -> bool;

    /// True if a response that is expected leads to further requests: the stream is not closed before.
    fn awaits_requests(&self) -> bool {
        false
    }

    /// Handles a response; an error means that the server violates the protocol.
    fn handle_response(&mut self, message: Self::Response) -> Result<(), Error>;

    /// True if there is nothing to send and no response is expected.
    fn is_idle(&self) -> bool;

    /// Fails all pending requests with this error: the server cannot be reached, the server rejected the stream, or the
    /// client is closed. Afterwards the stream is idle.
    fn fail_pending(&mut self, error: &Error);

    /// Called for each new connection, before [`Self::open`].
    fn on_connect(&mut self, _connector: &Connector) {}

    /// If requests can be moved from a server that cannot be reached to another one: forgets what the first server knew
    /// and returns true.
    fn move_from(&mut self, _unreachable: &Arc<Connector>) -> bool {
        false
    }
}

/// Runs a stream until its command channel or the client is closed. Returns true if the server has read all requests
/// and the client has read all responses, except requests that [`ReconnectingStream::fail_pending`] has failed: the
/// server may have read these or not.
pub(crate) async fn run<T: ReconnectingStream>(
    connector: Arc<Connector>,
    mut stream: T,
    commands: UnboundedReceiver<T::Command>,
) -> bool {
    tokio::select! {
        complete = run_until_done(Arc::clone(&connector), &mut stream, commands) => return complete,
        () = connector.closed() => {}
    }
    stream.fail_pending(&closed_error());
    false
}

/// The error of calls to a closed client.
pub(crate) fn closed_error() -> Error {
    Error::Closed("this client is closed".into())
}

/// Runs a stream until its command channel is closed. The result is that of [`run`].
async fn run_until_done<T: ReconnectingStream>(
    mut connector: Arc<Connector>,
    stream: &mut T,
    mut commands: UnboundedReceiver<T::Command>,
) -> bool {
    // When the server was last known to respond, or since when the stream has tried to reach it. `None` while nothing
    // is requested.
    let mut unreachable_since: Option<Instant> = None;
    loop {
        while stream.is_idle() {
            unreachable_since = None;
            match commands.recv().await {
                Some(command) => stream.handle_command(command),
                None => return true,
            }
        }
        let since = *unreachable_since.get_or_insert_with(Instant::now);
        let connected = tokio::select! {
            connected = connector.connect(since) => connected,
            // No caller is left to receive an error.
            () = handle_commands_while_connecting(stream, &mut commands) => return false,
        };
        let connection = match connected {
            Ok(connection) => connection,
            Err(error) => {
                let other = match error {
                    Error::Unavailable(_) => connector.reachable_peer(),
                    _ => None,
                };
                match other {
                    Some(other) if stream.move_from(&connector) => {
                        connector = other;
                        unreachable_since = None;
                    }
                    _ => stream.fail_pending(&error),
                }
                continue;
            }
        };
        let connected_at = Instant::now();
        stream.on_connect(&connector);
        let end = tokio::select! {
            end = exchange_messages(&connector, stream, &mut commands, connection.client) => end,
            () = connector.moved(&connection.target) => StreamEnd::Moved,
        };
        stream.on_disconnect();
        match end {
            StreamEnd::Closed { complete } => return complete,
            StreamEnd::Moved => unreachable_since = None,
            StreamEnd::Disconnected { received }
                if received || connected_at.elapsed() >= STABLE_AFTER =>
            {
                // The server may have stopped responding long before the connection was found to be broken.
                unreachable_since = Some(connection.received_bytes.last_time());
            }
            StreamEnd::Disconnected { .. } if since.elapsed() > connector.reconnect_timeout() => {
                stream.fail_pending(&connector.unreachable(ENDS_STREAMS));
            }
            StreamEnd::Disconnected { .. } => sleep(RETRY_DELAY).await,
            StreamEnd::Rejected(error) => stream.fail_pending(&error),
        }
    }
}

/// Handles commands while connecting. Once there are no more, ends after [`LAST_CONNECT_TIMEOUT`].
async fn handle_commands_while_connecting<T: ReconnectingStream>(
    stream: &mut T,
    commands: &mut UnboundedReceiver<T::Command>,
) {
    while let Some(command) = commands.recv().await {
        stream.handle_command(command);
    }
    sleep(LAST_CONNECT_TIMEOUT).await;
}

/// How a stream on one connection ended.
enum StreamEnd {
    /// There are no more commands, and all requests are sent.
    Closed {
        /// The server has read all requests and ended its side.
        complete: bool,
    },
    /// The server has another address.
    Moved,
    /// The connection broke.
    Disconnected {
        /// At least one response arrived.
        received: bool,
    },
    /// The server rejected the stream or violated the protocol; reconnecting would not help.
    Rejected(Error),
}

/// Runs the stream on one connection, until the connection breaks or the stream ends.
async fn exchange_messages<T: ReconnectingStream>(
    connector: &Connector,
    stream: &mut T,
    commands: &mut UnboundedReceiver<T::Command>,
    client: GrpcClient,
) -> StreamEnd {
    let (sender, requests) = mpsc::channel(SEND_BUFFER);
    let mut responses = match T::open(client, ReceiverStream::new(requests)).await {
        Ok(responses) => responses,
        Err(status) => return failed_stream(connector, &status, false),
    };
    let (mut received, mut commands_open) = (false, true);
    let mut sender = Some(sender);
    loop {
        let is_done = !commands_open && !stream.has_request() && !stream.awaits_requests();
        if is_done && sender.take().is_some() {
            // Half-closed: the server reads the remaining requests, then ends its side.
            let remaining = async {
                loop {
                    match responses.message().await {
                        Ok(None) => return true,
                        Ok(Some(message)) => {
                            if stream.handle_response(message).is_err() {
                                return false;
                            }
                        }
                        Err(_) => return false,
                    }
                }
            };
            let complete = timeout(CLOSE_TIMEOUT, remaining).await.unwrap_or(false);
            return StreamEnd::Closed { complete };
        }
        let ready_sender = sender.clone().filter(|_| stream.has_request());
        let permit = async move {
            match ready_sender {
                Some(sender) => sender.reserve_owned().await.ok(),
                None => pending().await,
            }
        };
        tokio::select! {
            message = responses.message() => match message {
                Ok(Some(message)) => {
                    received = true;
                    if let Err(error) = stream.handle_response(message) {
                        return StreamEnd::Rejected(error);
                    }
                }
                Ok(None) => return StreamEnd::Disconnected { received },
                Err(status) => return failed_stream(connector, &status, received),
            },
            command = commands.recv(), if commands_open => match command {
                Some(command) => {
                    stream.handle_command(command);
                    while let Ok(command) = commands.try_recv() {
                        stream.handle_command(command);
                    }
                }
                None => commands_open = false,
            },
            permit = permit => match permit {
                Some(permit) => if let Some(message) = stream.next_request() {
                    permit.send(message);
                },
                // The stream is ending: `responses` returns the reason.
                None => sender = None,
            },
        }
    }
}

/// Returns how a stream ended that failed with this status.
fn failed_stream(connector: &Connector, status: &Status, received: bool) -> StreamEnd {
    connector
        .permanent_error(status)
        .map_or(StreamEnd::Disconnected { received }, StreamEnd::Rejected)
}
