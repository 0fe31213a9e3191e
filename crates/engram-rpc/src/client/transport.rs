//! The byte stream below a connection to a server: how it is opened, and what was received on it.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::{Instant, timeout};

use crate::enlarge_send_buffer;

/// Number of bytes that suffice to recognise the protocol of another program.
const FIRST_BYTES: usize = 16;

/// How long an address of a host may take before the next one is tried as well, as in RFC 8305.
const NEXT_ADDRESS_DELAY: Duration = Duration::from_millis(300);

/// If an address has failed and no further one is left, how long to wait for the pending attempts. The caller then
/// tries all addresses again: the server may be restarting at the one that failed.
const LAST_ADDRESSES_TIMEOUT: Duration = Duration::from_secs(3);

/// What was received on one connection.
#[derive(Debug)]
pub(crate) struct ReceivedBytes {
    opened: Instant,
    /// Nanoseconds from `opened` to the last time that bytes, or the end of the connection, were received.
    last: AtomicU64,
    /// The bytes of the first read, up to [`FIRST_BYTES`].
    first: OnceLock<Vec<u8>>,
}

impl ReceivedBytes {
    fn new() -> Self {
        Self {
            opened: Instant::now(),
            last: AtomicU64::new(0),
            first: OnceLock::new(),
        }
    }

    /// When bytes, or the end of the connection, were received last.
    pub(crate) fn last_time(&self) -> Instant {
        self.opened + Duration::from_nanos(self.last.load(Ordering::Relaxed))
    }

    /// The first bytes that were received, at most [`FIRST_BYTES`]; empty if none were.
    pub(crate) fn first_bytes(&self) -> &[u8] {
        self.first.get().map_or(&[], Vec::as_slice)
    }

    fn record(&self, bytes: &[u8]) {
        let elapsed = u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.last.store(elapsed, Ordering::Relaxed);
        if !bytes.is_empty() && self.first.get().is_none() {
            let first = bytes[..bytes.len().min(FIRST_BYTES)].to_vec();
            // Only one task reads from the connection.
            let _ = self.first.set(first);
        }
    }
}

/// A byte stream that records what it receives.
#[derive(Debug)]
pub(crate) struct ObservedStream {
    socket: Socket,
    received: Arc<ReceivedBytes>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Why no byte stream could be opened.
pub(crate) enum OpenError {
    /// The host name has no address.
    UnknownHost(io::Error),
    Io(io::Error),
}

impl ObservedStream {
    fn new(socket: Socket) -> Self {
        Self {
            socket,
            received: Arc::new(ReceivedBytes::new()),
        }
    }

    /// Connects to a TCP address, `host:port`.
    pub(crate) async fn open_tcp(address: &str) -> Result<Self, OpenError> {
        let resolved = lookup_host(address).await;
        let resolved = resolved.map_err(|error| match error.raw_os_error() {
            Some(_) => OpenError::Io(error),
            None => OpenError::UnknownHost(error),
        })?;
        let socket = connect_to_first(resolved, TcpStream::connect).await?;
        socket.set_nodelay(true).map_err(OpenError::Io)?;
        Ok(Self::new(Socket::Tcp(socket)))
    }

    /// Connects to a Unix socket: a path, or an abstract name that begins with a zero byte.
    pub(crate) async fn open_unix(path: &str) -> io::Result<Self> {
        let socket = UnixStream::connect(path).await?;
        enlarge_send_buffer(&socket);
        Ok(Self::new(Socket::Unix(socket)))
    }

    /// What the stream has received; the stream continues to update it.
    pub(crate) fn received(&self) -> Arc<ReceivedBytes> {
        Arc::clone(&self.received)
    }

    /// Records that a write failed because the connection has ended.
    fn observe_write(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Err(_)) = &written {
            self.received.record(&[]);
        }
        written
    }
}

fn no_address() -> OpenError {
    OpenError::UnknownHost(io::Error::other("it has no address"))
}

/// Connects to the address of a host that answers first. Tries the next address whenever one fails or does not answer
/// soon, so that an address that never answers does not hide the others.
async fn connect_to_first<T, F: Future<Output = io::Result<T>>>(
    addresses: impl Iterator<Item = SocketAddr>,
    connect: impl Fn(SocketAddr) -> F,
) -> Result<T, OpenError> {
    let mut addresses = addresses.peekable();
    let (mut attempts, mut failure) = (FuturesUnordered::new(), None);
    loop {
        attempts.extend(addresses.next().map(&connect));
        let is_last = addresses.peek().is_none();
        let delay = if is_last {
            LAST_ADDRESSES_TIMEOUT
        } else {
            NEXT_ADDRESS_DELAY
        };
        match timeout(delay, attempts.next()).await {
            Ok(Some(Ok(socket))) => return Ok(socket),
            Ok(Some(Err(error))) => failure = Some(OpenError::Io(error)),
            Err(_) if !is_last || failure.is_none() => {}
            Ok(None) | Err(_) => return Err(failure.unwrap_or_else(no_address)),
        }
    }
}

impl AsyncRead for ObservedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_read(context, buffer),
            Socket::Unix(socket) => Pin::new(socket).poll_read(context, buffer),
        };
        if read.is_ready() {
            self.received.record(&buffer.filled()[before..]);
        }
        read
    }
}

impl AsyncWrite for ObservedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_write(context, bytes),
            Socket::Unix(socket) => Pin::new(socket).poll_write(context, bytes),
        };
        self.observe_write(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_write_vectored(context, bytes),
            Socket::Unix(socket) => Pin::new(socket).poll_write_vectored(context, bytes),
        };
        self.observe_write(written)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.socket {
            Socket::Tcp(socket) => socket.is_write_vectored(),
            Socket::Unix(socket) => socket.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_flush(context),
            Socket::Unix(socket) => Pin::new(socket).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_shutdown(context),
            Socket::Unix(socket) => Pin::new(socket).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    /// Connects to addresses with these ports; returns the port that answered. Port 1 never answers, 2 refuses, 3
    /// answers, and 4 answers late.
    async fn connect(ports: &[u16]) -> Result<u16, io::ErrorKind> {
        let addresses = (ports.iter()).map(|port| SocketAddr::from(([127, 0, 0, 1], *port)));
        let connected = connect_to_first(addresses, |address| async move {
            match address.port() {
                1 => pending().await,
                2 => Err(io::ErrorKind::ConnectionRefused.into()),
                3 => Ok(3),
                late => {
                    tokio::time::sleep(NEXT_ADDRESS_DELAY + Duration::from_millis(50)).await;
                    Ok(late)
                }
            }
        });
        connected.await.map_err(|error| match error {
            OpenError::Io(error) => error.kind(),
            OpenError::UnknownHost(_) => io::ErrorKind::AddrNotAvailable,
        })
    }

    #[tokio::test]
    async fn addresses_that_do_not_answer_do_not_hide_others() {
        for (ports, expected) in [
            (&[1, 3][..], Ok(3)),
            (&[1, 2, 1, 3], Ok(3)),
            // An attempt continues while others are made.
            (&[4, 1], Ok(4)),
            (&[2, 2], Err(io::ErrorKind::ConnectionRefused)),
            // The caller can try again: the address that refused may answer later.
            (&[1, 2], Err(io::ErrorKind::ConnectionRefused)),
            (&[], Err(io::ErrorKind::AddrNotAvailable)),
        ] {
            let connected = timeout(Duration::from_secs(20), connect(ports)).await;
            assert_eq!(connected.expect("no result"), expected, "{ports:?}");
        }
    }
}
