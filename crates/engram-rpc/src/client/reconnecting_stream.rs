//! A conversation that outlives its connections.

use std::future::pending;
use std::sync::Arc;

use engram_core::Error;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::{Duration, Instant, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::connect::{Connector, GrpcClient};

/// Messages handed to the transport ahead of it.
const SEND_BUFFER: usize = 4;

/// A conversation that lasts so long is one, even if the server had nothing to say.
const STABLE_AFTER: Duration = Duration::from_secs(1);

/// How long to wait before the next conversation, should it end as soon as the last one.
const RETRY_DELAY: Duration = Duration::from_millis(10);

/// How long a connection is tried for when there will be no more to say than there is.
const LAST_ATTEMPT: Duration = Duration::from_millis(250);

/// How long a server may take to read the last messages.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// One side of a stream: what to say, what was received, and what to repeat on a new connection.
pub(crate) trait ReconnectingStream: Send + 'static {
    type Command: Send;
    type Request: Send + 'static;
    type Response: Send + 'static;

    /// Opens the stream.
    fn open(
        api: GrpcClient,
        out: ReceiverStream<Self::Request>,
    ) -> impl Future<Output = Result<Streaming<Self::Response>, Status>> + Send;

    /// Takes a command; what it makes us say waits for [`ReconnectingStream::next_request`].
    fn handle_command(&mut self, command: Self::Command);

    /// The next connection knows nothing: whatever is unanswered must be said again.
    fn on_disconnect(&mut self);

    /// The next message, if there is anything to say.
    fn next_request(&mut self) -> Option<Self::Request>;

    /// Whether there is anything to say.
    fn has_request(&self) -> bool;

    /// Takes an answer; an error means that the server does not keep to the protocol.
    fn handle_response(&mut self, message: Self::Response) -> Result<(), Error>;

    /// True when no answer is due and nothing is to be said.
    fn is_idle(&self) -> bool;

    /// The server cannot be reached: ends what waits. Afterwards the stream is idle.
    fn fail_pending(&mut self, error: &Error);
}

/// Talks until the commands end or the client is closed. True when the server has received the last
/// word, and we have received its own.
pub(crate) async fn run<T: ReconnectingStream>(
    connector: Arc<Connector>,
    mut stream: T,
    commands: UnboundedReceiver<T::Command>,
) -> bool {
    tokio::select! {
        received = run_until_closed(&connector, &mut stream, commands) => return received,
        () = connector.closed() => {}
    }
    stream.fail_pending(&closed_error());
    false
}

/// What calls of a closed client end with.
pub(crate) fn closed_error() -> Error {
    Error::Closed("this client is closed".into())
}

async fn run_until_closed<T: ReconnectingStream>(
    connector: &Connector,
    stream: &mut T,
    mut commands: UnboundedReceiver<T::Command>,
) -> bool {
    // Since when there has been no answer from a server.
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
            // Nobody is left who would hear how it ends.
            () = last_attempt(stream, &mut commands) => return false,
        };
        let api = match connected {
            Ok(api) => api,
            Err(error) => {
                stream.fail_pending(&error);
                continue;
            }
        };
        let began = Instant::now();
        let ended = exchange(connector, stream, &mut commands, api).await;
        stream.on_disconnect();
        match ended {
            StreamEnd::Done { received } => return received,
            StreamEnd::Disconnected { received } if received || began.elapsed() >= STABLE_AFTER => {
                unreachable_since = None
            }
            StreamEnd::Disconnected { .. } if since.elapsed() > connector.reconnect_timeout() => {
                stream.fail_pending(&connector.unreachable("it ends every stream"));
            }
            StreamEnd::Disconnected { .. } => sleep(RETRY_DELAY).await,
            StreamEnd::Refused(error) => stream.fail_pending(&error),
        }
    }
}

/// Takes commands, to be said on the next connection, until there will be no more; a server that is
/// there has a moment to say so then.
async fn last_attempt<T: ReconnectingStream>(
    stream: &mut T,
    commands: &mut UnboundedReceiver<T::Command>,
) {
    while let Some(command) = commands.recv().await {
        stream.handle_command(command);
    }
    sleep(LAST_ATTEMPT).await;
}

enum StreamEnd {
    /// There are no more commands, and everything is said.
    Done {
        /// The server has said its last word.
        received: bool,
    },
    /// The connection is gone.
    Disconnected {
        /// The server had answered something.
        received: bool,
    },
    /// The server does not want to stream.
    Refused(Error),
}

async fn exchange<T: ReconnectingStream>(
    connector: &Connector,
    stream: &mut T,
    commands: &mut UnboundedReceiver<T::Command>,
    api: GrpcClient,
) -> StreamEnd {
    let (sender, receiver) = mpsc::channel(SEND_BUFFER);
    let mut inbound = match T::open(api, ReceiverStream::new(receiver)).await {
        Ok(inbound) => inbound,
        Err(status) => return stream_end(connector, &status, false),
    };
    let (mut received, mut open) = (false, true);
    let mut sender = Some(sender);
    loop {
        if !open && !stream.has_request() && sender.take().is_some() {
            // Half closed: the server reads what is on its way, then ends its side.
            let rest = async {
                loop {
                    match inbound.message().await {
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
            let received = timeout(CLOSE_TIMEOUT, rest).await.unwrap_or(false);
            return StreamEnd::Done { received };
        }
        let ready_sender = sender.clone().filter(|_| stream.has_request());
        let permit = async move {
            match ready_sender {
                Some(sender) => sender.reserve_owned().await.ok(),
                None => pending().await,
            }
        };
        tokio::select! {
            message = inbound.message() => match message {
                Ok(Some(message)) => {
                    received = true;
                    if let Err(error) = stream.handle_response(message) {
                        return StreamEnd::Refused(error);
                    }
                }
                Ok(None) => return StreamEnd::Disconnected { received },
                Err(status) => return stream_end(connector, &status, received),
            },
            command = commands.recv(), if open => match command {
                Some(command) => {
                    stream.handle_command(command);
                    while let Ok(command) = commands.try_recv() {
                        stream.handle_command(command);
                    }
                }
                None => open = false,
            },
            permit = permit => match permit {
                Some(permit) => if let Some(message) = stream.next_request() {
                    permit.send(message);
                },
                // The stream is ending: its status says why.
                None => sender = None,
            },
        }
    }
}

fn stream_end(connector: &Connector, status: &Status, received: bool) -> StreamEnd {
    connector
        .permanent_error(status)
        .map_or(StreamEnd::Disconnected { received }, StreamEnd::Refused)
}
