//! Serves the metrics over HTTP/1.1: one path, one request per connection.
//!
//! A client that is silent, sends garbage or reads slowly occupies a connection for at most [`CONNECTION_TIMEOUT`], or
//! until newer connections displace it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::render;
use crate::server::accept_failures::AcceptFailures;
use crate::server::auth::TokenCheck;
use crate::server::service_state::ServiceState;
use crate::server::shutdown::ShutdownSignal;

/// Maximum number of connections at a time. A further connection closes the oldest, which is probably idle: a scrape
/// takes milliseconds.
const MAX_CONNECTIONS: usize = 64;

/// Timeout of the TLS handshake, and of reading the request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Timeout of a whole connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum bytes of a request's head.
const MAX_HEAD_BYTES: usize = 16 << 10;

/// How an HTTP client passes a token, for error texts.
const TOKEN_HINT: &str = "send the server's token in the header `Authorization: Bearer TOKEN` (Prometheus: \
                          `authorization: {credentials: TOKEN}`)";

type HttpResponse = Response<Full<Bytes>>;

/// The metrics of one server, for clients with its token.
#[derive(Clone)]
pub(in crate::server) struct MetricsEndpoint {
    pub(in crate::server) state: Arc<ServiceState>,
    pub(in crate::server) token_check: TokenCheck,
    pub(in crate::server) tls: Option<TlsAcceptor>,
}

impl MetricsEndpoint {
    /// Serves requests until the server shuts down.
    pub(in crate::server) async fn serve(
        self,
        listener: TcpListener,
        failures: AcceptFailures,
        mut shutdown: ShutdownSignal,
    ) {
        // Dropping the set closes the remaining connections.
        let mut connections = JoinSet::new();
        // The connections, oldest first; some may have ended.
        let mut by_age = VecDeque::new();
        loop {
            tokio::select! {
                () = shutdown.wait() => return,
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((tcp, _)) => {
                        by_age.retain(|connection: &AbortHandle| !connection.is_finished());
                        if by_age.len() >= MAX_CONNECTIONS && let Some(oldest) = by_age.pop_front() {
                            oldest.abort();
                        }
                        let serving = timeout(CONNECTION_TIMEOUT, self.clone().serve_connection(tcp));
                        by_age.push_back(connections.spawn(serving));
                    }
                    Err(error) => failures.pause(&error).await,
                },
            }
        }
    }

    /// Serves one connection, with TLS if configured; an error ends it.
    async fn serve_connection(self, tcp: TcpStream) {
        let _ = match self.tls.clone() {
            None => self.serve_request(tcp).await,
            Some(tls) => match timeout(REQUEST_TIMEOUT, tls.accept(tcp)).await {
                Ok(Ok(io)) => self.serve_request(io).await,
                Ok(Err(_)) | Err(_) => return,
            },
        };
    }

    async fn serve_request<IO>(self, io: IO) -> hyper::Result<()>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        // `check_storage` accesses the file system, which may block.
        let engine = Arc::clone(&self.state.engine);
        let _ = tokio::task::spawn_blocking(move || engine.check_storage()).await;
        let service = service_fn(move |request| {
            let response = self.respond(&request);
            async move { Ok::<_, Infallible>(response) }
        });
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(REQUEST_TIMEOUT)
            .max_buf_size(MAX_HEAD_BYTES)
            .keep_alive(false)
            .serve_connection(TokioIo::new(io), service)
            .await
    }

    fn respond(&self, request: &Request<Incoming>) -> HttpResponse {
        let token = request.headers().get(AUTHORIZATION);
        if let Err(reason) = self.token_check.check(token.map(HeaderValue::as_bytes)) {
            let text = format!("{reason}; {TOKEN_HINT}");
            let mut response = error_response(StatusCode::UNAUTHORIZED, &text);
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
            return response;
        }
        let (method, path) = (request.method(), request.uri().path());
        if path != "/metrics" {
            let reason = format!("not found: `{path}`; the metrics are at `/metrics`");
            return error_response(StatusCode::NOT_FOUND, &reason);
        }
        if !matches!(*method, Method::GET | Method::HEAD) {
            let reason = format!("the method {method} is not allowed; use GET");
            let mut response = error_response(StatusCode::METHOD_NOT_ALLOWED, &reason);
            let allowed = HeaderValue::from_static("GET, HEAD");
            response.headers_mut().insert(ALLOW, allowed);
            return response;
        }
        match render(&self.state) {
            Ok(text) => response(StatusCode::OK, super::CONTENT_TYPE, text),
            Err(error) => error_response(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    }
}

fn error_response(status: StatusCode, reason: &str) -> HttpResponse {
    response(status, "text/plain; charset=utf-8", format!("{reason}\n"))
}

fn response(status: StatusCode, content_type: &'static str, text: String) -> HttpResponse {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}
