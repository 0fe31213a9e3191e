//! Incoming connections: counted while they are open, and closed if no authenticated call arrives in time, or if their
//! replies are not read while replies of other connections need the memory.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use engram_codec::{ConnectionBudget, ReplyBudget};
use futures_util::{Stream, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Sleep, sleep};
use tonic::transport::server::Connected;

use super::accept_failures::AcceptFailures;
use super::counters::{OpenCounter, OpenGuard};

/// Wraps accepted connections. Each is closed unless an authenticated call arrives within `first_call_timeout`.
pub(super) fn accept_connections<IO>(
    incoming: impl Stream<Item = io::Result<IO>>,
    address: fn(&IO) -> String,
    counter: Arc<OpenCounter>,
    reply_budget: ReplyBudget,
    first_call_timeout: Duration,
    failures: AcceptFailures,
) -> impl Stream<Item = io::Result<Connection<IO>>> {
    incoming.then(move |accepted| {
        let accepted = accepted.map(|io| (address(&io), io));
        let connection = accepted.map(|(address, io)| Connection {
            io,
            info: ConnectionInfo {
                first_call: FirstCallFlag::default(),
                reply_budget: reply_budget.add_connection(),
                scans: Arc::default(),
                address: address.into(),
            },
            first_call_timeout,
            first_call_timer: None,
            _open: counter.begin(),
        });
        let failures = failures.clone();
        async move {
            match connection {
                Ok(connection) => Ok(connection),
                Err(error) => {
                    // Without this pause, the transport would try again at once.
                    failures.pause(&error).await;
                    Err(error)
                }
            }
        }
    })
}

/// What the calls of a connection share. The transport puts it into the extensions of all its requests.
#[derive(Clone, Debug)]
pub(super) struct ConnectionInfo {
    pub(super) first_call: FirstCallFlag,
    /// The connection's share of the memory of unread replies.
    pub(super) reply_budget: ConnectionBudget,
    /// Counts the connection's scans.
    pub(super) scans: Arc<OpenCounter>,
    /// Where the client is: `host:port`, or the process of a client that uses a Unix socket.
    pub(super) address: Arc<str>,
}

/// Where the client of a TCP connection is.
pub(super) fn tcp_address(stream: &TcpStream) -> String {
    let address = stream.peer_addr();
    address.map_or_else(|_| "unknown".into(), |address| address.to_string())
}

/// Which process the client of a Unix socket is.
pub(super) fn unix_address(stream: &UnixStream) -> String {
    let credentials = stream.peer_cred().ok();
    match credentials.and_then(|credentials| credentials.pid()) {
        Some(process) => format!("process {process}"),
        None => "this machine".into(),
    }
}

/// Set by the router once an authenticated call has arrived on a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct FirstCallFlag(Arc<AtomicBool>);

impl FirstCallFlag {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A connection, counted while it is open.
#[derive(Debug)]
pub(super) struct Connection<IO> {
    io: IO,
    info: ConnectionInfo,
    first_call_timeout: Duration,
    /// Started by the first read that has to wait; removed once a call has arrived.
    first_call_timer: Option<Pin<Box<Sleep>>>,
    _open: OpenGuard,
}

impl<IO> Connection<IO> {
    /// Returns true if no call has arrived in time. The first poll starts the timer; each poll registers the task to be
    /// woken when the timer ends.
    fn poll_overdue(&mut self, context: &mut Context<'_>) -> bool {
        if self.info.first_call.0.load(Ordering::Relaxed) {
            self.first_call_timer = None;
            return false;
        }
        let timer = self
            .first_call_timer
            .get_or_insert_with(|| Box::pin(sleep(self.first_call_timeout)));
        timer.as_mut().poll(context).is_ready()
    }

    /// Returns an error once the connection must be closed because its replies are not read. Until then, registers the
    /// task to be woken.
    fn check_replies(&self, context: &Context<'_>) -> io::Result<()> {
        match self.info.reply_budget.poll_closed(context) {
            Poll::Ready(()) => Err(ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl<IO> Connected for Connection<IO> {
    type ConnectInfo = ConnectionInfo;

    fn connect_info(&self) -> ConnectionInfo {
        self.info.clone()
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Connection<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_replies(context)?;
        let read = Pin::new(&mut self.io).poll_read(context, buffer);
        if read.is_pending() && self.poll_overdue(context) {
            return Poll::Ready(Err(ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Connection<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_replies(context)?;
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_replies(context)?;
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}
