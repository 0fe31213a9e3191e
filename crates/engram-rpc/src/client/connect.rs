//! Reaching a server, and reaching it again.

use std::error::Error as _;
use std::net::IpAddr;
use std::time::Duration;

use engram_core::{Error, Result};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};

use crate::pb;
use crate::pb::engram_client::EngramClient;
use crate::{
    CLIENT_WINDOW_BYTES, MAX_FRAME_BYTES, MAX_MESSAGE_BYTES, PROTOCOL_VERSION, enlarge_send_buffer,
};

/// Of a server that takes connections and says nothing that we understand: TLS answers so, or hangs up.
const TLS_HINT: &str = "; a server with a certificate wants a client with `ca`";

/// How to reach a server.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// `host:port`, or `unix:PATH`.
    pub address: String,
    /// What the server asks for, if it does.
    pub token: Option<String>,
    /// Encrypt, and check who the server is.
    pub tls: Option<ClientTls>,
    /// How long a server may be gone before calls fail.
    pub reconnect_timeout: Duration,
}

/// What a client needs for TLS; all of it PEM.
#[derive(Clone, Debug, Default)]
pub struct ClientTls {
    /// Who may have signed the server's certificate.
    pub ca: Vec<u8>,
    /// Our own certificate and key, where the server asks for one.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name in the server's certificate, where it is not the host's.
    pub domain: Option<String>,
}

/// The generated client, with our token on every call.
pub(crate) type GrpcClient = EngramClient<InterceptedService<Channel, BearerToken>>;

/// Puts the token on a call.
#[derive(Clone, Debug)]
pub(crate) struct BearerToken(Option<MetadataValue<Ascii>>);

impl Interceptor for BearerToken {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request
                .metadata_mut()
                .insert("authorization", token.clone());
        }
        Ok(request)
    }
}

/// Makes connections to one server.
#[derive(Debug)]
pub(crate) struct Connector {
    endpoint: Endpoint,
    bearer: BearerToken,
    options: ClientOptions,
    /// Of an address of this machine.
    local_port: Option<u16>,
    is_closed: watch::Sender<bool>,
}

/// First delay between two attempts; doubled after each, up to [`MAX_RETRY_DELAY`].
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(10);
const MAX_RETRY_DELAY: Duration = Duration::from_millis(300);

/// The longest that a server may be gone: the ends of longer times are beyond what clocks show.
const MAX_RECONNECT_TIMEOUT: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// What is left of a deadline for an answer that is on its way.
const REPLY_GRACE: Duration = Duration::from_millis(500);

/// How long the shorter way to a server may take to open; there is the one that we have.
const LOCAL_SOCKET_TIMEOUT: Duration = Duration::from_secs(1);

impl Connector {
    /// Checks the options; connects nowhere.
    pub(crate) fn new(mut options: ClientOptions) -> Result<Self> {
        options.reconnect_timeout = options.reconnect_timeout.min(MAX_RECONNECT_TIMEOUT);
        let invalid = |what: String| Error::InvalidArgument(what);
        let address = &options.address;
        let bad = |why: &str| invalid(format!("address is `{address}`: {why}; give `host:port`"));
        let uri = match address.strip_prefix("unix:") {
            Some("") => return Err(bad("it has no path")),
            Some(path) => format!("unix:{path}"),
            None => {
                let (host, port) = address.rsplit_once(':').ok_or_else(|| bad("no port"))?;
                if host.is_empty() || port.parse::<u16>().is_err() {
                    return Err(bad("it has no host, or no port number"));
                }
                let scheme = if options.tls.is_some() {
                    "https"
                } else {
                    "http"
                };
                format!("{scheme}://{address}")
            }
        };
        let endpoint = Endpoint::from_shared(uri).map_err(|error| bad(&error.to_string()))?;
        let mut endpoint = endpoint
            .tcp_nodelay(true)
            .initial_stream_window_size(CLIENT_WINDOW_BYTES)
            .initial_connection_window_size(CLIENT_WINDOW_BYTES)
            .max_frame_size(MAX_FRAME_BYTES)
            .http2_keep_alive_interval(Duration::from_secs(2))
            .keep_alive_timeout(Duration::from_secs(3))
            .keep_alive_while_idle(true);
        if let Some(tls) = &options.tls {
            let first = CertificateDer::pem_slice_iter(&tls.ca).next();
            if !matches!(first, Some(Ok(_))) {
                let why = "TLS options are unusable: the file given as `ca` holds no certificate; \
                           it must be PEM, with who signed the server's";
                return Err(invalid(why.into()));
            }
            let mut config =
                ClientTlsConfig::new().ca_certificate(Certificate::from_pem(tls.ca.clone()));
            if let Some((certificate, key)) = &tls.identity {
                config = config.identity(Identity::from_pem(certificate, key));
            }
            if let Some(domain) = &tls.domain {
                config = config.domain_name(domain.clone());
            }
            endpoint = endpoint.tls_config(config).map_err(|error| {
                invalid(format!("TLS options are unusable: {}", causes(&error)))
            })?;
        }
        let bearer = match &options.token {
            None => BearerToken(None),
            Some(token) => {
                let value = format!("Bearer {token}").parse();
                let mut value: MetadataValue<Ascii> = value.map_err(|_| {
                    invalid("the token has characters other than visible ASCII".into())
                })?;
                value.set_sensitive(true);
                BearerToken(Some(value))
            }
        };
        Ok(Self {
            endpoint,
            bearer,
            local_port: local_port(&options.address),
            options,
            is_closed: watch::Sender::new(false),
        })
    }

    /// Ends every conversation.
    pub(crate) fn close(&self) {
        self.is_closed.send_replace(true);
    }

    pub(crate) fn is_closed(&self) -> bool {
        *self.is_closed.borrow()
    }

    /// Waits until somebody closes.
    pub(crate) async fn closed(&self) {
        // The sender lives as long as we do.
        let _ = self.is_closed.subscribe().wait_for(|closed| *closed).await;
    }

    pub(crate) fn address(&self) -> &str {
        &self.options.address
    }

    pub(crate) fn reconnect_timeout(&self) -> Duration {
        self.options.reconnect_timeout
    }

    /// Connects, trying again and again from now on for as long as a server may be gone.
    pub(crate) async fn connect(&self, since: Instant) -> Result<GrpcClient> {
        let until = since + self.options.reconnect_timeout;
        let mut delay = FIRST_RETRY_DELAY;
        loop {
            let problem = match timeout_at(until + REPLY_GRACE, self.attempt()).await {
                Ok(Ok(client)) => return Ok(client),
                Ok(Err(AttemptError::Permanent(error))) => return Err(error),
                Ok(Err(AttemptError::Retry(why))) => why,
                Err(_) => "it did not answer".into(),
            };
            if Instant::now() + delay > until {
                return Err(self.unreachable(&problem));
            }
            sleep(delay).await;
            delay = MAX_RETRY_DELAY.min(delay * 2);
        }
    }

    /// The error for a server that has been gone for too long.
    pub(crate) fn unreachable(&self, why: &str) -> Error {
        Error::Unavailable(format!(
            "the server at {} cannot be reached, for {} s (reconnect_timeout): {why}",
            self.options.address,
            self.options.reconnect_timeout.as_secs_f64()
        ))
    }

    async fn attempt(&self) -> Result<GrpcClient, AttemptError> {
        let channel = self.endpoint.connect().await.map_err(|error| {
            let why = causes(&error);
            self.tls_error(&why).unwrap_or(AttemptError::Retry(why))
        })?;
        let mut client = self.client(channel);
        match self.handshake(&mut client).await {
            Ok(found) => Ok(self.connect_local(&found).await.unwrap_or(client)),
            Err(status) => Err(self.permanent_error(&status).map_or_else(
                || {
                    // A server that misses our certificate says so only now; one that has its own, in no words.
                    let why = status.source().map_or_else(String::new, causes);
                    let is_plain =
                        self.options.tls.is_none() && !self.options.address.starts_with("unix:");
                    let hint = if is_plain && !why.is_empty() {
                        TLS_HINT
                    } else {
                        ""
                    };
                    let again = AttemptError::Retry(format!("{}{hint}", status.message()));
                    self.tls_error(&why).unwrap_or(again)
                },
                AttemptError::Permanent,
            )),
        }
    }

    /// SampleRequests who is there, and whether it speaks our language.
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

    /// The end of all attempts, if this is why one failed.
    fn tls_error(&self, why: &str) -> Option<AttemptError> {
        (self.options.tls.is_some() && is_tls_failure(why)).then(|| {
            AttemptError::Permanent(Error::Handshake(format!(
                "the server at {} and this client do not agree on TLS: {why}",
                self.options.address
            )))
        })
    }

    fn client(&self, channel: Channel) -> GrpcClient {
        EngramClient::with_interceptor(channel, self.bearer.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// The shorter way to a server of this machine, unless something stands between on purpose.
    async fn connect_local(&self, found: &pb::HelloResponse) -> Option<GrpcClient> {
        let port = self.local_port?;
        // What is at the other end chooses the name: it may not lead us to others' sockets.
        let is_servers = (found.local_socket).starts_with(&format!("engram-{port}-"));
        if !is_servers || u32::from(port) != found.port {
            return None;
        }
        let name = format!("\0{}", found.local_socket);
        let connect = tower::service_fn(move |_| {
            let name = name.clone();
            async {
                let stream = UnixStream::connect(name).await?;
                enlarge_send_buffer(&stream);
                Ok::<_, std::io::Error>(TokioIo::new(stream))
            }
        });
        let opened = timeout(LOCAL_SOCKET_TIMEOUT, async {
            let channel = self.endpoint.connect_with_connector(connect).await.ok()?;
            let mut client = self.client(channel);
            let reply = self.handshake(&mut client).await.ok()?;
            (reply.instance == found.instance).then_some(client)
        });
        opened.await.ok().flatten()
    }

    /// The error for a status that trying again would not change.
    pub(crate) fn permanent_error(&self, status: &Status) -> Option<Error> {
        let address = &self.options.address;
        let message = status.message();
        match status.code() {
            Code::Unauthenticated | Code::PermissionDenied | Code::FailedPrecondition => Some(
                Error::Handshake(format!("the server at {address} refuses: {message}")),
            ),
            Code::Unimplemented => Some(Error::Handshake(format!(
                "what listens at {address} is not a server of this kind: {message}"
            ))),
            Code::InvalidArgument | Code::ResourceExhausted | Code::OutOfRange => Some(
                Error::InvalidArgument(format!("the server at {address} refuses: {message}")),
            ),
            _ => None,
        }
    }
}

/// The port of an address that cannot be another machine's.
fn local_port(address: &str) -> Option<u16> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_local = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    is_local.then(|| port.parse().ok())?
}

enum AttemptError {
    /// No use trying again.
    Permanent(Error),
    Retry(String),
}

/// An error's whole chain: the outermost says little.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

fn is_tls_failure(why: &str) -> bool {
    let why = why.to_lowercase();
    // It went away: it may be stopping, and come back.
    if why.contains("handshake eof") {
        return false;
    }
    [
        "certificate",
        "tls",
        "alert",
        "handshake",
        "invaliddata",
        "corrupt message",
    ]
    .iter()
    .any(|word| why.contains(word))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::ErrorKind;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    use super::*;

    #[tokio::test]
    async fn a_shorter_way_that_leads_nowhere_is_not_taken() {
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
            // It accepts connections, and never answers.
            let name = format!("{name}{:016x}", crate::random_u64().unwrap());
            let address = SocketAddr::from_abstract_name(&name).unwrap();
            let silent = UnixListener::bind_addr(&address).unwrap();
            silent.set_nonblocking(true).unwrap();
            let found = pb::HelloResponse {
                port: 7,
                local_socket: name,
                ..pb::HelloResponse::default()
            };
            assert!(connector.connect_local(&found).await.is_none());
            match silent.accept() {
                Ok(_) => assert!(is_tried, "{}", found.local_socket),
                Err(error) => assert_eq!((error.kind(), is_tried), (ErrorKind::WouldBlock, false)),
            }
        }
    }
}
