//! Runs a server: starts its runtime, serves until shutdown, and waits for connections to close.

use std::error::Error as _;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use engram_codec::ReplyBudget;
use engram_core::{Error, Result};
use futures_util::TryStreamExt as _;
use futures_util::stream::{self, StreamExt as _, select_all};
use tokio::net::{TcpListener, UnixListener};
use tokio::time::timeout;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::service::InterceptorLayer;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Certificate, Identity, Server as Transport, ServerTlsConfig};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use super::accept_failures::AcceptFailures;
use super::auth::TokenCheck;
use super::connection::{accept_connections, tcp_address, unix_address};
use super::listeners::Listeners;
use super::metrics::{self, MetricsEndpoint};
use super::options::{ServerOptions, ServerTls};
use super::reverb::ReverbService;
use super::router::Router;
use super::service::Service;
use super::shutdown::ShutdownSignal;
use crate::pb::engram_server::{EngramServer, SERVICE_NAME};
use crate::{MAX_FRAME_BYTES, MAX_MESSAGE_BYTES, enlarge_send_buffer};

/// How long connections may take to close at shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the remaining tasks may take to end after [`DRAIN_TIMEOUT`].
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(200);

/// HTTP/2 window of a stream, in bytes: how far a writer can send ahead while the server does not read.
const STREAM_WINDOW_BYTES: u32 = 8 << 20;

/// HTTP/2 window of a connection, in bytes: enough for 128 streams that the server does not read because their tables
/// block. The stream that would unblock the tables may use the same connection, because gRPC's C++ library shares one
/// connection among all channels of a process.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 30;

/// Maximum number of open calls per connection.
const MAX_CALLS_PER_CONNECTION: u32 = 1024;

/// A server that is ready to run.
pub(super) struct ServerRuntime {
    tcp: Transport,
    unix: Transport,
    service: Service,
    reverb: ReverbService,
    token_check: TokenCheck,
    metrics_endpoint: MetricsEndpoint,
    first_call_timeout: Duration,
    max_unread_bytes: u64,
    log: fn(String),
    shutdown: ShutdownSignal,
}

impl ServerRuntime {
    /// # Errors
    /// [`Error::InvalidArgument`] if a certificate or key is unusable, [`Error::Unavailable`] if the system provides no
    /// random numbers.
    pub(super) fn new(
        service: Service,
        token_check: TokenCheck,
        options: &ServerOptions,
        shutdown: ShutdownSignal,
    ) -> Result<Self> {
        let tls = options.tls.as_ref();
        let first_call_timeout = options.first_call_timeout;
        let tcp = match tls {
            Some(tls) => build_transport()
                .tls_config(build_tls_config(tls).timeout(first_call_timeout))
                .map_err(|error| tls_error(&error))?,
            None => build_transport(),
        };
        let engine = Arc::clone(&service.state().engine);
        let reverb = ReverbService::new(engine, shutdown.receiver())?;
        let metrics_endpoint = MetricsEndpoint {
            state: Arc::clone(service.state()),
            token_check: token_check.clone(),
            tls: tls.map(metrics::build_acceptor).transpose()?,
        };
        Ok(Self {
            tcp,
            unix: build_transport(),
            reverb,
            service,
            token_check,
            metrics_endpoint,
            first_call_timeout,
            max_unread_bytes: options.max_unread_bytes,
            log: options.log,
            shutdown,
        })
    }

    /// Sends whether the server could start, then serves until shutdown. The sockets are closed when this returns.
    pub(super) fn run(self, listeners: Listeners, started: &Sender<io::Result<()>>) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .thread_name("engram-server")
            .enable_all()
            .build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            // Sending fails only if the caller no longer waits.
            Err(error) => return started.send(Err(error)).unwrap_or_default(),
        };
        runtime.block_on(self.serve(listeners, started));
        runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    }

    async fn serve(mut self, listeners: Listeners, started: &Sender<io::Result<()>>) {
        let _close_on_fork = listeners.close_on_fork;
        let failures = AcceptFailures::new(listeners.address, self.log);
        let register_listeners = || {
            let (unix, socket_file) = listeners.unix.unzip();
            let unix = unix
                .into_iter()
                .chain(listeners.local.map(|(local, _)| local));
            let unix = unix.map(|unix| UnixListener::from_std(unix).map(UnixListenerStream::new));
            let unix: Vec<_> = unix.collect::<io::Result<_>>()?;
            let metrics = listeners.metrics.map(|(_, tcp)| TcpListener::from_std(tcp));
            Ok((
                TcpListener::from_std(listeners.tcp)?,
                unix,
                socket_file,
                metrics.transpose()?,
            ))
        };
        let (tcp, unix, socket_file, metrics) = match register_listeners() {
            Ok(listeners) => listeners,
            Err(error) => return started.send(Err(error)).unwrap_or_default(),
        };
        let _ = started.send(Ok(()));
        let (health, health_service) = tonic_health::server::health_reporter();
        health
            .set_service_status(SERVICE_NAME, ServingStatus::Serving)
            .await;
        let state = Arc::clone(self.service.state());
        let open_connections = Arc::clone(&state.counters.connections);
        let first_call_timeout = self.first_call_timeout;
        let reply_budget = ReplyBudget::new(self.max_unread_bytes);
        let engram = EngramServer::new(self.service)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        let router = Router {
            engram,
            reverb: self.reverb,
            health: health_service,
            state,
        };
        let layer = InterceptorLayer::new(self.token_check);
        let incoming = TcpIncoming::from(tcp).with_nodelay(Some(true));
        let mut stopped = self.shutdown.clone();
        let tcp = (self.tcp.layer(layer.clone())).serve_with_incoming_shutdown(
            router.clone(),
            accept_connections(
                incoming,
                tcp_address,
                Arc::clone(&open_connections),
                reply_budget.clone(),
                first_call_timeout,
                failures.clone(),
            ),
            async move { stopped.wait().await },
        );
        let tcp = tokio::spawn(tcp);
        let mut stopped = self.shutdown.clone();
        // A transport stops when its stream of connections ends, so this stream never ends, even without Unix sockets.
        let incoming = select_all(unix)
            .inspect_ok(enlarge_send_buffer)
            .chain(stream::pending());
        let unix = (self.unix.layer(layer)).serve_with_incoming_shutdown(
            router,
            accept_connections(
                incoming,
                unix_address,
                open_connections,
                reply_budget,
                first_call_timeout,
                failures.clone(),
            ),
            async move { stopped.wait().await },
        );
        let unix = tokio::spawn(unix);
        let metrics = metrics.map(|listener| {
            let endpoint = self.metrics_endpoint;
            tokio::spawn(endpoint.serve(listener, failures, self.shutdown.clone()))
        });

        self.shutdown.wait().await;
        clear_health(&health).await;
        // Connections that are still open after the timeout are dropped with the runtime.
        let _ = timeout(DRAIN_TIMEOUT, async {
            if let Some(metrics) = metrics {
                let _ = metrics.await;
            }
            let _ = (tcp.await, unix.await);
        })
        .await;
        drop(socket_file);
    }
}

/// Removes the health status, which ends the calls that watch it.
async fn clear_health(health: &HealthReporter) {
    let mut health = health.clone();
    for service in ["", SERVICE_NAME] {
        health.clear_service_status(service).await;
    }
}

fn build_transport() -> Transport {
    Transport::builder()
        .max_frame_size(MAX_FRAME_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(MAX_CALLS_PER_CONNECTION)
        .http2_keepalive_interval(Some(Duration::from_secs(10)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5)))
}

fn build_tls_config(tls: &ServerTls) -> ServerTlsConfig {
    let identity = Identity::from_pem(&tls.certificate_pem, &tls.key_pem);
    let config = ServerTlsConfig::new().identity(identity);
    match &tls.client_ca_pem {
        Some(pem) => config.client_ca_root(Certificate::from_pem(pem)),
        None => config,
    }
}

fn tls_error(error: &tonic::transport::Error) -> Error {
    let cause = error.source().map_or_else(String::new, |cause| {
        format!(": {}", cause.to_string().trim_end_matches('.'))
    });
    Error::InvalidArgument(format!(
        "`certificate`, `key` or `client_ca` cannot be used{cause}; each must be a PEM file, and \
         `key` must belong to `certificate`"
    ))
}
