//! Connects to a server, and reconnects.

use std::error::Error as _;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use engram_core::writer::ShardId;
use engram_core::{Error, Result};
use hyper_util::rt::TokioIo;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::connect_errors::{
    NO_CONNECTION, NO_RESPONSE, Peer, describe_call_failure, describe_open_failure,
    describe_tls_failure, is_tls_failure, join_causes,
};
use super::connect_failures::ConnectFailures;
use super::connection::{BearerToken, Connection, GrpcClient};
use super::failover::Failover;
use super::options::ClientOptions;
use super::target::Target;
use super::transport::{ObservedStream, OpenError, ReceivedBytes};
use crate::pb;
use crate::pb::engram_client::EngramClient;
use crate::{MAX_MESSAGE_BYTES, PROTOCOL_VERSION};

/// Opens connections to one server, which may move to other addresses.
#[derive(Debug)]
pub(crate) struct Connector {
    target: watch::Sender<Arc<Target>>,
    bearer: BearerToken,
    /// The address in them is the first one.
    options: ClientOptions,
    is_closed: watch::Sender<bool>,
    /// The server's `lease_timeout`, as the server last reported it. `None` before that, or if the server does not
    /// report it.
    lease_timeout: Mutex<Option<Duration>>,
    /// True if the server continues the leases of readers on a new connection, as it last reported.
    resumes_readers: AtomicBool,
    /// The server's id among the shards, as the server last reported it.
    shard: ShardId,
    /// All shards of the same tables, this one included. Empty if the tables are not sharded.
    pub(super) peers: RwLock<Vec<Weak<Connector>>>,
    pub(crate) failover: Failover,
    failures: ConnectFailures,
}

/// First delay between two attempts; doubled after each, up to [`MAX_RETRY_DELAY`].
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(10);
const MAX_RETRY_DELAY: Duration = Duration::from_millis(300);

/// A longer `reconnect_timeout` is reduced to this: clocks cannot represent deadlines that are much further away.
const MAX_RECONNECT_TIMEOUT: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// Extra time after `reconnect_timeout` for a response that is on its way.
const RESPONSE_GRACE: Duration = Duration::from_millis(500);

/// Minimum time for an attempt to connect, even if `reconnect_timeout` passed before the loss of the connection was
/// noticed.
const MIN_ATTEMPT_TIME: Duration = Duration::from_millis(250);

/// How long connecting to a server's local socket may take; after that, TCP is used.
const LOCAL_SOCKET_TIMEOUT: Duration = Duration::from_secs(1);

impl Connector {
    /// Checks the options, without connecting.
    pub(crate) fn new(mut options: ClientOptions) -> Result<Self> {
        options.reconnect_timeout = options.reconnect_timeout.min(MAX_RECONNECT_TIMEOUT);
        let target = Target::new(&options.address, &options)?;
        let bearer = BearerToken::new(options.token.as_deref())?;
        Ok(Self {
            target: watch::Sender::new(Arc::new(target)),
            bearer,
            options,
            is_closed: watch::Sender::new(false),
            lease_timeout: Mutex::default(),
            resumes_readers: AtomicBool::new(false),
            shard: ShardId::default(),
            peers: RwLock::default(),
            failover: Failover::default(),
            failures: ConnectFailures::default(),
        })
    }

    /// Ends all streams and calls.
    pub(crate) fn close(&self) {
        self.is_closed.send_replace(true);
    }

    pub(crate) fn is_closed(&self) -> bool {
        *self.is_closed.borrow()
    }

    /// Waits until the client is closed.
    pub(crate) async fn closed(&self) {
        // Cannot fail: `self` holds the sender.
        let _ = self.is_closed.subscribe().wait_for(|closed| *closed).await;
    }

    /// Where later connections go. Existing connections to another address are closed.
    pub(crate) fn set_address(&self, address: &str) -> Result<()> {
        let target = Arc::new(Target::new(address, &self.options)?);
        self.target.send_if_modified(|current| {
            let is_other = current.address != target.address;
            if is_other {
                *current = target;
            }
            is_other
        });
        Ok(())
    }

    /// The server's current address.
    pub(crate) fn address(&self) -> String {
        self.target.borrow().address.clone()
    }

    fn target(&self) -> Arc<Target> {
        Arc::clone(&self.target.borrow())
    }

    /// True if connections go to another address than this one.
    pub(crate) fn has_moved(&self, from: &Arc<Target>) -> bool {
        !Arc::ptr_eq(&self.target.borrow(), from)
    }

    /// Waits until connections go to another address than this one.
    pub(crate) async fn moved(&self, from: &Arc<Target>) {
        let mut target = self.target.subscribe();
        // Cannot fail: `self` holds the sender.
        let _ = target.wait_for(|now| !Arc::ptr_eq(now, from)).await;
    }

    pub(crate) fn reconnect_timeout(&self) -> Duration {
        self.options.reconnect_timeout
    }

    /// The time after which the server returns leased items to their table, if it is known.
    pub(crate) fn lease_timeout(&self) -> Option<Duration> {
        *self.lease_timeout.lock()
    }

    /// True if the server continues the leases of readers on a new connection.
    pub(crate) fn resumes_readers(&self) -> bool {
        self.resumes_readers.load(Ordering::Relaxed)
    }

    /// The server's id among the shards: none before the first connection.
    pub(crate) fn shard(&self) -> &ShardId {
        &self.shard
    }

    /// When calls stop waiting for a server that has been unreachable since `since`. Includes the time for a response
    /// that is on its way.
    pub(crate) fn latest_response(&self, since: Instant) -> Instant {
        since + self.options.reconnect_timeout + RESPONSE_GRACE
    }

    /// Connects; tries at least once, and again until `reconnect_timeout` after `since`.
    pub(crate) async fn connect(&self, since: Instant) -> Result<Connection> {
        let deadline = since + self.options.reconnect_timeout;
        let mut latest = (self.latest_response(since)).max(Instant::now() + MIN_ATTEMPT_TIME);
        let mut delay = FIRST_RETRY_DELAY;
        let mut recognised = None;
        let attempts = self.failures.begin();
        loop {
            let target = self.target();
            let attempt = tokio::select! {
                attempt = self.try_connect(&target, latest) => attempt,
                () = self.moved(&target) => {
                    latest = latest.max(Instant::now() + MIN_ATTEMPT_TIME);
                    delay = FIRST_RETRY_DELAY;
                    continue;
                }
            };
            let reason = match attempt {
                Ok(connection) => match self.failover.delete_moved_items(&connection).await {
                    Ok(()) => {
                        self.failover.set_reachable();
                        return Ok(connection);
                    }
                    Err(status) => describe_call_failure(&status),
                },
                Err(AttemptError::Permanent(error)) => return Err(error),
                Err(AttemptError::Retry(why)) => why,
                Err(AttemptError::OtherProgram(why)) => {
                    recognised = Some(why.clone());
                    why
                }
                // A connection that is closed early can lose the bytes by which an earlier attempt recognised the
                // program.
                Err(AttemptError::Closed(why)) => recognised.clone().unwrap_or(why),
            };
            attempts.record(&reason);
            if Instant::now() + delay > deadline {
                self.set_unreachable();
                return Err(self.unreachable(&reason));
            }
            tokio::select! {
                () = sleep(delay) => delay = MAX_RETRY_DELAY.min(delay * 2),
                () = self.moved(&target) => {}
            }
        }
    }

    /// The error for a server that could not be reached within `reconnect_timeout`.
    pub(crate) fn unreachable(&self, reason: &str) -> Error {
        Error::Unavailable(format!(
            "the server at {} cannot be reached: {reason}; tried for {} s (`reconnect_timeout`)",
            self.address(),
            self.options.reconnect_timeout.as_secs_f64()
        ))
    }

    /// Why the last attempt to connect failed, while others follow; `None` if no connection is being opened, or none has
    /// failed.
    pub(crate) fn connect_failure(&self) -> Option<String> {
        self.failures.reason()
    }

    /// Makes one attempt to connect, until `latest`.
    async fn try_connect(
        &self,
        target: &Arc<Target>,
        latest: Instant,
    ) -> Result<Connection, AttemptError> {
        let retry = |why: &str| AttemptError::Retry(why.into());
        let address = &target.address;
        let open = async {
            match address.strip_prefix("unix:") {
                Some(path) => ObservedStream::open_unix(path).await.map_err(OpenError::Io),
                None => ObservedStream::open_tcp(address).await,
            }
        };
        let stream = (timeout_at(latest, open).await)
            .map_err(|_| retry(NO_CONNECTION))?
            .map_err(|error| AttemptError::Retry(describe_open_failure(&error)))?;
        let received = stream.received();
        let attempt = async {
            let mut connection = (self.open_channel(target, stream).await)
                .map_err(|error| self.connect_error(&received, &join_causes(&error), None))?;
            match self.handshake(&mut connection.client).await {
                Ok(hello) => {
                    let lease_timeout = hello.lease_timeout_s.map(Duration::try_from_secs_f64);
                    *self.lease_timeout.lock() = lease_timeout.and_then(Result::ok);
                    (self.resumes_readers).store(hello.resumes_readers, Ordering::Relaxed);
                    self.shard.set(u16::try_from(hello.shard_id).unwrap_or(0));
                    Ok(self
                        .connect_local(target, &hello)
                        .await
                        .unwrap_or(connection))
                }
                Err(status) => Err(if let Some(error) = self.permanent_error(&status) {
                    AttemptError::Permanent(error)
                } else {
                    // A server that requires a client certificate rejects a client without one only here.
                    let causes = status.source().map_or_else(String::new, join_causes);
                    self.connect_error(&received, &causes, Some(&status))
                }),
            }
        };
        match timeout_at(latest, attempt).await {
            Ok(connected) => connected,
            // A frozen server, or a program that waits for bytes in another protocol.
            Err(_) => Err(self
                .peer_error(&received)
                .unwrap_or_else(|| retry(NO_RESPONSE))),
        }
    }

    /// Opens a channel over a byte stream. The channel does not reconnect: [`Connector::connect`] opens another.
    async fn open_channel(
        &self,
        target: &Arc<Target>,
        stream: ObservedStream,
    ) -> Result<Connection, tonic::transport::Error> {
        let received = stream.received();
        let mut stream = Some(stream);
        let connect = tower::service_fn(move |_| {
            let stream = stream.take().map(TokioIo::new);
            async move { stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)) }
        });
        let channel = target.endpoint.connect_with_connector(connect).await?;
        Ok(Connection {
            client: self.client(channel),
            received_bytes: received,
            target: Arc::clone(target),
        })
    }

    /// Returns the error for an attempt to connect that failed on an open byte stream.
    fn connect_error(
        &self,
        received: &ReceivedBytes,
        causes: &str,
        status: Option<&Status>,
    ) -> AttemptError {
        let recognised = self.peer_error(received).or_else(|| self.tls_error(causes));
        recognised.unwrap_or_else(|| {
            let why = status.map_or("it closed the connection".into(), describe_call_failure);
            let hint = if received.first_bytes().is_empty() {
                " before it sent anything (is it an Engram server?)"
            } else {
                ""
            };
            AttemptError::Closed(format!("{why}{hint}"))
        })
    }

    /// Returns the error for a program that is recognised by its first bytes. Returns `None` if it may be a server that
    /// suits this client, or has sent nothing.
    fn peer_error(&self, received: &ReceivedBytes) -> Option<AttemptError> {
        let address = self.address();
        let uses_tls = self.options.tls.is_some();
        let why = match (Peer::recognise(received.first_bytes())?, uses_tls) {
            (Peer::Tls, true) | (Peer::Http2, false) => return None,
            (Peer::Tls, false) => {
                return Some(AttemptError::Permanent(Error::Handshake(format!(
                    "the server at {address} uses TLS; pass the PEM file of its certificate authority as `ca`"
                ))));
            }
            (Peer::Http2, true) => {
                return Some(AttemptError::Permanent(Error::Handshake(format!(
                    "the TLS handshake with the server at {address} failed: it does not use TLS; omit `ca`"
                ))));
            }
            (Peer::Http1, _) => "a web server (HTTP/1) listens there, not an Engram server",
            (Peer::Other, _) => "another program listens there, not an Engram server",
        };
        // Not permanent: a proxy may report that its server is restarting.
        Some(AttemptError::OtherProgram(format!(
            "{why}; is the port right?"
        )))
    }

    /// Checks that the server is an Engram server of the same protocol version.
    pub(crate) async fn handshake(
        &self,
        client: &mut GrpcClient,
    ) -> Result<pb::HelloResponse, Status> {
        let hello = pb::HelloRequest {
            protocol: PROTOCOL_VERSION,
            version: env!("CARGO_PKG_VERSION").into(),
        };
        Ok(client.hello(hello).await?.into_inner())
    }

    /// Returns a permanent error if TLS is the reason why an attempt failed.
    fn tls_error(&self, causes: &str) -> Option<AttemptError> {
        let tls = self.options.tls.as_ref()?;
        let address = self.address();
        let host = address.rsplit_once(':').map_or(&*address, |(host, _)| host);
        let name = tls.server_name.as_deref().unwrap_or(host);
        is_tls_failure(causes).then(|| {
            AttemptError::Permanent(Error::Handshake(format!(
                "the TLS handshake with the server at {address} failed: {}",
                describe_tls_failure(causes, name)
            )))
        })
    }

    fn client(&self, channel: Channel) -> GrpcClient {
        EngramClient::with_interceptor(channel, self.bearer.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// Connects to the local socket of a server on this machine, which is faster than TCP. Returns `None` if the
    /// address is not a loopback address, the server is behind a TCP proxy, or its socket cannot be used.
    async fn connect_local(
        &self,
        target: &Arc<Target>,
        hello: &pb::HelloResponse,
    ) -> Option<Connection> {
        let port = target.local_port?;
        // The peer chooses the name: it must not lead the client to sockets of other programs.
        let is_expected = (hello.local_socket).starts_with(&format!("engram-{port}-"));
        if !is_expected || u32::from(port) != hello.port {
            return None;
        }
        let name = format!("\0{}", hello.local_socket);
        let opened = timeout(LOCAL_SOCKET_TIMEOUT, async {
            let stream = ObservedStream::open_unix(&name).await.ok()?;
            let mut connection = self.open_channel(target, stream).await.ok()?;
            let reply = self.handshake(&mut connection.client).await.ok()?;
            (reply.instance == hello.instance).then_some(connection)
        });
        opened.await.ok().flatten()
    }

    /// Returns the error for a status; `None` if trying again may help.
    pub(crate) fn permanent_error(&self, status: &Status) -> Option<Error> {
        let address = self.address();
        let message = status.message();
        match status.code() {
            Code::Unauthenticated | Code::PermissionDenied | Code::FailedPrecondition => {
                Some(Error::Handshake(format!(
                    "the server at {address} rejected the call: {message}"
                )))
            }
            Code::Unimplemented => Some(Error::Handshake(format!(
                "the server at {address} is not an Engram server: it does not implement the gRPC \
                 service `engram.v1.Engram`; does another gRPC server, such as dm-reverb's, use this port?"
            ))),
            Code::InvalidArgument | Code::ResourceExhausted | Code::OutOfRange => {
                Some(Error::InvalidArgument(format!(
                    "the server at {address} rejected the call: {message}"
                )))
            }
            _ => None,
        }
    }
}

/// Why an attempt to connect failed. The texts describe the failure.
enum AttemptError {
    /// Trying again would not help.
    Permanent(Error),
    /// Trying again may help.
    Retry(String),
    /// Trying again may help, although another program was recognised.
    OtherProgram(String),
    /// Trying again may help; the peer closed the connection.
    Closed(String),
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::ErrorKind;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    use super::*;
    use crate::client::management_calls::send_with_retry;
    use crate::pb::manage_request::Call;

    #[tokio::test]
    async fn a_call_that_only_waited_for_another_one_does_not_blame_the_server() {
        let connector = Connector::new(ClientOptions {
            address: "127.0.0.1:7".into(),
            token: None,
            tls: None,
            reconnect_timeout: Duration::ZERO,
        })
        .unwrap();
        let connection = tokio::sync::Mutex::new(None);
        let _other_call = connection.lock().await;
        let call = Call::Checkpoint(pb::Empty {});
        let failed = send_with_retry(&connector, &connection, call, Instant::now()).await;
        assert_eq!(
            failed.err().unwrap().to_string(),
            "the server at 127.0.0.1:7 cannot be reached: another call of this client is still connecting; tried for 0 s \
             (`reconnect_timeout`)"
        );
    }

    #[tokio::test]
    async fn a_local_socket_that_does_not_respond_is_not_used() {
        let options = ClientOptions {
            address: "127.0.0.1:7".into(),
            token: None,
            tls: None,
            reconnect_timeout: Duration::from_secs(60),
        };
        let connector = Connector::new(options).unwrap();
        for (name, is_tried) in [
            ("engram-7-", true),
            ("engram-77-", false),
            ("other-", false),
        ] {
            // A socket that accepts connections, and never responds.
            let name = format!("{name}{:016x}", crate::random_u64().unwrap());
            let address = SocketAddr::from_abstract_name(&name).unwrap();
            let silent = UnixListener::bind_addr(&address).unwrap();
            silent.set_nonblocking(true).unwrap();
            let hello = pb::HelloResponse {
                port: 7,
                local_socket: name,
                ..pb::HelloResponse::default()
            };
            assert!(
                connector
                    .connect_local(&connector.target(), &hello)
                    .await
                    .is_none()
            );
            match silent.accept() {
                Ok(_) => assert!(is_tried, "{}", hello.local_socket),
                Err(error) => assert_eq!((error.kind(), is_tried), (ErrorKind::WouldBlock, false)),
            }
        }
    }
}
