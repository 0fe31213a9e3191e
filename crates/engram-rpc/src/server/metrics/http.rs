//! Where the numbers are fetched: plain HTTP/1.1, one path, one request per connection.
//!
//! Whoever sends garbage or reads slowly costs one of a few places, for a few seconds.

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
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::text;
use crate::server::auth::Guard;
use crate::server::connection::PAUSE;
use crate::server::service::Shared;
use crate::server::stopping::Stopping;

/// Connections served at once; the kernel keeps others waiting.
const PLACES: usize = 16;

/// A handshake, and the request after it, must be there by then.
const REQUEST: Duration = Duration::from_secs(2);

/// A connection ends by then, whatever it is doing.
const CONNECTION: Duration = Duration::from_secs(10);

/// Longest request head.
const HEAD: usize = 16 << 10;

type Answer = Response<Full<Bytes>>;

/// The numbers of one server, for those who may see them.
#[derive(Clone)]
pub(in crate::server) struct Scraped {
    pub(in crate::server) shared: Arc<Shared>,
    pub(in crate::server) guard: Guard,
    pub(in crate::server) tls: Option<TlsAcceptor>,
}

impl Scraped {
    /// Answers until the server stops.
    pub(in crate::server) async fn serve(self, listener: TcpListener, mut stopping: Stopping) {
        // Dropped with the connections that are still in it.
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = stopping.wait() => return,
                Some(_) = connections.join_next() => {}
                accepted = listener.accept(), if connections.len() < PLACES => match accepted {
                    Ok((tcp, _)) => {
                        connections.spawn(timeout(CONNECTION, self.clone().connection(tcp)));
                    }
                    Err(_) => sleep(PAUSE).await,
                },
            }
        }
    }

    /// What goes wrong with a connection ends it, and is nobody else's matter.
    async fn connection(self, tcp: TcpStream) {
        let _ = match self.tls.clone() {
            None => self.answer_one(tcp).await,
            Some(tls) => match timeout(REQUEST, tls.accept(tcp)).await {
                Ok(Ok(io)) => self.answer_one(io).await,
                Ok(Err(_)) | Err(_) => return,
            },
        };
    }

    async fn answer_one<IO>(self, io: IO) -> hyper::Result<()>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let service = service_fn(move |request| {
            let answer = self.answer(&request);
            async move { Ok::<_, Infallible>(answer) }
        });
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(REQUEST)
            .max_buf_size(HEAD)
            .keep_alive(false)
            .serve_connection(TokioIo::new(io), service)
            .await
    }

    fn answer(&self, request: &Request<Incoming>) -> Answer {
        let token = request.headers().get(AUTHORIZATION);
        if let Err(why) = self.guard.check(token.map(HeaderValue::as_bytes)) {
            let mut answer = refusal(StatusCode::UNAUTHORIZED, &why);
            let scheme = HeaderValue::from_static("Bearer");
            answer.headers_mut().insert(WWW_AUTHENTICATE, scheme);
            return answer;
        }
        let (method, path) = (request.method(), request.uri().path());
        if path != "/metrics" {
            let why = format!("there is nothing at `{path}`; the numbers are at `/metrics`");
            return refusal(StatusCode::NOT_FOUND, &why);
        }
        if !matches!(*method, Method::GET | Method::HEAD) {
            let why = format!("{method} means nothing here; GET tells the numbers");
            let mut answer = refusal(StatusCode::METHOD_NOT_ALLOWED, &why);
            let allowed = HeaderValue::from_static("GET, HEAD");
            answer.headers_mut().insert(ALLOW, allowed);
            return answer;
        }
        match text(&self.shared) {
            Ok(text) => answer(StatusCode::OK, super::CONTENT_TYPE, text),
            Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    }
}

fn refusal(status: StatusCode, why: &str) -> Answer {
    answer(status, "text/plain; charset=utf-8", format!("{why}\n"))
}

fn answer(status: StatusCode, content_type: &'static str, text: String) -> Answer {
    let mut answer = Response::new(Full::from(text));
    *answer.status_mut() = status;
    let content_type = HeaderValue::from_static(content_type);
    answer.headers_mut().insert(CONTENT_TYPE, content_type);
    answer
}
