//! A conversation that outlives its connections.

use std::future::pending;
use std::sync::Arc;

use engram_core::Error;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::{Duration, Instant, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::connect::{Api, Connector};

/// Messages handed to the transport ahead of it.
const AHEAD: usize = 4;

/// A conversation that lasts so long is one, even if the server had nothing to say.
const STEADY: Duration = Duration::from_secs(1);

/// How long to wait before the next conversation, should it end as soon as the last one.
const PAUSE: Duration = Duration::from_millis(10);

/// How long a connection is tried for when there will be no more to say than there is.
const LAST_TRY: Duration = Duration::from_millis(250);

/// How long a server may take to read the last messages.
const FAREWELL: Duration = Duration::from_secs(1);

/// One side of a stream: what to say, what was heard, and what to repeat on a new connection.
pub(crate) trait Talk: Send + 'static {
    type Command: Send;
    type Out: Send + 'static;
    type In: Send + 'static;

    /// Opens the stream.
    fn open(
        api: Api,
        out: ReceiverStream<Self::Out>,
    ) -> impl Future<Output = Result<Streaming<Self::In>, Status>> + Send;

    /// Takes a command; what it makes us say waits for [`Talk::next_out`].
    fn command(&mut self, command: Self::Command);

    /// The next connection knows nothing: whatever is unanswered must be said again.
    fn disconnected(&mut self);

    /// The next message, if there is anything to say.
    fn next_out(&mut self) -> Option<Self::Out>;

    /// Whether there is anything to say.
    fn has_out(&self) -> bool;

    /// Takes an answer; an error means that the server does not keep to the protocol.
    fn heard(&mut self, message: Self::In) -> Result<(), Error>;

    /// True when no answer is due and nothing is to be said.
    fn is_idle(&self) -> bool;

    /// The server cannot be reached: ends what waits. Afterwards the talk is idle.
    fn fail(&mut self, error: &Error);
}

/// Talks until the commands end or the client is closed. True when the server has heard the last
/// word, and we have heard its own.
pub(crate) async fn run<T: Talk>(
    connector: Arc<Connector>,
    mut talk: T,
    commands: UnboundedReceiver<T::Command>,
) -> bool {
    tokio::select! {
        heard = talk_on(&connector, &mut talk, commands) => return heard,
        () = connector.closed() => {}
    }
    talk.fail(&closed_error());
    false
}

/// What calls of a closed client end with.
pub(crate) fn closed_error() -> Error {
    Error::Closed("this client is closed".into())
}

async fn talk_on<T: Talk>(
    connector: &Connector,
    talk: &mut T,
    mut commands: UnboundedReceiver<T::Command>,
) -> bool {
    // Since when there has been no answer from a server.
    let mut trouble: Option<Instant> = None;
    loop {
        while talk.is_idle() {
            trouble = None;
            match commands.recv().await {
                Some(command) => talk.command(command),
                None => return true,
            }
        }
        let since = *trouble.get_or_insert_with(Instant::now);
        let connected = tokio::select! {
            connected = connector.connect(since) => connected,
            // Nobody is left who would hear how it ends.
            () = last_try(talk, &mut commands) => return false,
        };
        let api = match connected {
            Ok(api) => api,
            Err(error) => {
                talk.fail(&error);
                continue;
            }
        };
        let began = Instant::now();
        let ended = converse(connector, talk, &mut commands, api).await;
        talk.disconnected();
        match ended {
            Ended::Done { heard } => return heard,
            Ended::Broken { heard } if heard || began.elapsed() >= STEADY => trouble = None,
            Ended::Broken { .. } if since.elapsed() > connector.reconnect_timeout() => {
                talk.fail(&connector.gone("it ends every stream"));
            }
            Ended::Broken { .. } => sleep(PAUSE).await,
            Ended::Refused(error) => talk.fail(&error),
        }
    }
}

/// Takes commands, to be said on the next connection, until there will be no more; a server that is
/// there has a moment to say so then.
async fn last_try<T: Talk>(talk: &mut T, commands: &mut UnboundedReceiver<T::Command>) {
    while let Some(command) = commands.recv().await {
        talk.command(command);
    }
    sleep(LAST_TRY).await;
}

enum Ended {
    /// There are no more commands, and everything is said.
    Done {
        /// The server has said its last word.
        heard: bool,
    },
    /// The connection is gone.
    Broken {
        /// The server had answered something.
        heard: bool,
    },
    /// The server does not want to talk.
    Refused(Error),
}

async fn converse<T: Talk>(
    connector: &Connector,
    talk: &mut T,
    commands: &mut UnboundedReceiver<T::Command>,
    api: Api,
) -> Ended {
    let (sender, receiver) = mpsc::channel(AHEAD);
    let mut inbound = match T::open(api, ReceiverStream::new(receiver)).await {
        Ok(inbound) => inbound,
        Err(status) => return broken(connector, &status, false),
    };
    let (mut heard, mut open) = (false, true);
    let mut sender = Some(sender);
    loop {
        if !open && !talk.has_out() && sender.take().is_some() {
            // Half closed: the server reads what is on its way, then ends its side.
            let rest = async {
                loop {
                    match inbound.message().await {
                        Ok(None) => return true,
                        Ok(Some(message)) => {
                            if talk.heard(message).is_err() {
                                return false;
                            }
                        }
                        Err(_) => return false,
                    }
                }
            };
            let heard = timeout(FAREWELL, rest).await.unwrap_or(false);
            return Ended::Done { heard };
        }
        let to_say = sender.clone().filter(|_| talk.has_out());
        let room = async move {
            match to_say {
                Some(sender) => sender.reserve_owned().await.ok(),
                None => pending().await,
            }
        };
        tokio::select! {
            message = inbound.message() => match message {
                Ok(Some(message)) => {
                    heard = true;
                    if let Err(error) = talk.heard(message) {
                        return Ended::Refused(error);
                    }
                }
                Ok(None) => return Ended::Broken { heard },
                Err(status) => return broken(connector, &status, heard),
            },
            command = commands.recv(), if open => match command {
                Some(command) => {
                    talk.command(command);
                    while let Ok(command) = commands.try_recv() {
                        talk.command(command);
                    }
                }
                None => open = false,
            },
            room = room => match room {
                Some(permit) => if let Some(message) = talk.next_out() {
                    permit.send(message);
                },
                // The stream is ending: its status says why.
                None => sender = None,
            },
        }
    }
}

fn broken(connector: &Connector, status: &Status, heard: bool) -> Ended {
    connector
        .refused(status)
        .map_or(Ended::Broken { heard }, Ended::Refused)
}
