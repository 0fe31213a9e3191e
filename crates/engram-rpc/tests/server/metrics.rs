//! Metrics over HTTP: their text, the token, invalid requests and slow clients.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use engram_core::{Error, TableOptions};
use engram_engine::Engine;
use engram_rpc::{Server, ServerOptions};

use crate::support::{STEP_TIMEOUT, engine, fill, options, start};

pub(crate) fn start_with_metrics(engine: &Arc<Engine>) -> (Server, SocketAddr) {
    let options = ServerOptions {
        metrics_port: Some(0),
        ..ServerOptions::default()
    };
    let server = Server::start(Arc::clone(engine), options).unwrap();
    let address = server.metrics_address().unwrap();
    (server, address)
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(STEP_TIMEOUT)).unwrap();
    stream
}

/// Sends bytes on a new connection; returns what the server sends until it closes the connection.
fn exchange(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = connect(address);
    stream.write_all(bytes).unwrap();
    let mut response = Vec::new();
    // The server may close the connection before it has read everything.
    let _ = stream.read_to_end(&mut response);
    String::from_utf8(response).unwrap()
}

pub(crate) fn get(address: SocketAddr, path: &str) -> String {
    exchange(
        address,
        format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes(),
    )
}

#[test]
fn metrics_are_current() {
    let table = TableOptions {
        max_bytes: Some(1 << 30),
        ..options("quo\"te \\ line\nend")
    };
    let engine = engine(vec![options("plain"), table]);
    let (_server, address) = start_with_metrics(&engine);
    assert!(get(address, "/metrics").contains("engram_table_items{table=\"plain\"} 0\n"));
    fill(&engine.table("plain").unwrap(), 1, 3, 1);
    let response = get(address, "/metrics");
    let (head, text) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(
        head.contains(
            "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"
        ),
        "{head}"
    );
    for line in [
        "# TYPE engram_table_inserts counter",
        "engram_table_inserts_total{table=\"plain\"} 3",
        "engram_table_items{table=\"plain\"} 3",
        "engram_table_items{table=\"quo\\\"te \\\\ line\\nend\"} 0",
        "engram_table_max_bytes{table=\"quo\\\"te \\\\ line\\nend\"} 1073741824",
        "engram_table_sampling_blocked{table=\"plain\"} 0",
        "engram_table_sampling_blocked{table=\"quo\\\"te \\\\ line\\nend\"} 1",
        "engram_server_connections_total 0",
        "engram_server_open_calls{protocol=\"engram\",call=\"insert\"} 0",
    ] {
        assert!(text.lines().any(|actual| actual == line), "{line}\n{text}");
    }
    assert!(!text.contains("engram_table_max_bytes{table=\"plain\"}"));
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn a_closed_store_has_no_table_metrics() {
    let engine = engine(vec![options("t")]);
    let (_server, address) = start_with_metrics(&engine);
    engine.close().unwrap();
    let response = get(address, "/metrics");
    assert!(
        response.contains("engram_server_connections_total 0"),
        "{response}"
    );
    assert!(!response.contains("engram_table"), "{response}");
}

#[test]
fn other_requests_are_rejected() {
    let (_server, address) = start_with_metrics(&engine(vec![]));
    let missing = get(address, "/");
    assert!(
        missing.starts_with("HTTP/1.1 404 Not Found\r\n"),
        "{missing}"
    );
    assert!(
        missing.ends_with("\r\n\r\nnot found: `/`; the metrics are at `/metrics`\n"),
        "{missing}"
    );
    let post = exchange(address, b"POST /metrics HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(
        post.starts_with("HTTP/1.1 405 Method Not Allowed\r\n"),
        "{post}"
    );
    assert!(post.contains("allow: GET, HEAD\r\n"), "{post}");
    assert!(
        post.ends_with("\r\n\r\nthe method POST is not allowed; use GET\n"),
        "{post}"
    );
    let head = exchange(address, b"HEAD /metrics HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn garbage_is_rejected() {
    let (_server, address) = start_with_metrics(&engine(vec![options("t")]));
    let long = format!("GET /{}", "a".repeat(100_000));
    for garbage in [
        &b"\0\0\0\0\r\n\r\n"[..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /metrics SMTP/1.0\r\n\r\n",
        long.as_bytes(),
    ] {
        let response = exchange(address, garbage);
        assert!(!response.starts_with("HTTP/1.1 200"), "{response}");
    }
    assert!(get(address, "/metrics").starts_with("HTTP/1.1 200"));
}

#[test]
fn slow_clients_delay_neither_a_scrape_nor_closing() {
    let engine = engine(vec![options("t")]);
    let (server, address) = start_with_metrics(&engine);
    // Clients that never finish their request.
    let idle: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut stream = connect(address);
            stream.write_all(b"GET /met").unwrap();
            stream
        })
        .collect();
    fill(&engine.table("t").unwrap(), 1, 3, 1);
    let response = get(address, "/metrics");
    assert!(
        response.contains("engram_table_items{table=\"t\"} 3\n"),
        "{response}"
    );
    let more_idle: Vec<TcpStream> = (0..20).map(|_| connect(address)).collect();
    let began = Instant::now();
    server.close();
    assert!(
        began.elapsed() < Duration::from_secs(1),
        "{:?}",
        began.elapsed()
    );
    drop((idle, more_idle));
}

#[test]
fn silent_connections_do_not_delay_a_scrape() {
    let engine = engine(vec![options("t")]);
    let (_server, address) = start_with_metrics(&engine);
    let silent: Vec<TcpStream> = (0..200).map(|_| connect(address)).collect();
    let began = Instant::now();
    let response = get(address, "/metrics");
    let elapsed = began.elapsed();
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    assert!(elapsed < Duration::from_secs(5), "{elapsed:?}");
    drop(silent);
}

#[test]
fn a_used_metrics_port_is_rejected_and_free_after_close() {
    let engine = engine(vec![]);
    let (server, address) = start_with_metrics(&engine);
    let again = ServerOptions {
        metrics_port: Some(address.port()),
        ..ServerOptions::default()
    };
    let text = match Server::start(Arc::clone(&engine), again.clone()) {
        Err(Error::InvalidArgument(text)) => text,
        other => panic!("{other:?} is not an error"),
    };
    assert_eq!(
        text,
        format!(
            "`metrics_port` {} is already in use; choose another, or 0 for any free port",
            address.port()
        )
    );
    server.close();
    let server = Server::start(engine, again).unwrap();
    assert_eq!(server.metrics_address(), Some(address));
}

#[test]
fn there_is_no_metrics_port_by_default() {
    assert_eq!(start(&engine(vec![])).metrics_address(), None);
}

#[test]
fn metrics_require_the_token() {
    let options = ServerOptions {
        token: Some("s3cret".into()),
        metrics_port: Some(0),
        ..ServerOptions::default()
    };
    let server = Server::start(engine(vec![]), options).unwrap();
    let address = server.metrics_address().unwrap();
    let missing = get(address, "/metrics");
    assert!(
        missing.starts_with("HTTP/1.1 401 Unauthorized\r\n"),
        "{missing}"
    );
    assert!(
        missing.contains("www-authenticate: Bearer\r\n"),
        "{missing}"
    );
    let advice = "send the server's token in the header `Authorization: Bearer TOKEN` (Prometheus: \
                  `authorization: {credentials: TOKEN}`)\n";
    let expected = format!("\r\n\r\ntoken required, none sent; {advice}");
    assert!(missing.ends_with(&expected), "{missing}");
    let get_with = |token: &str| {
        let request =
            format!("GET /metrics HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\n\r\n");
        exchange(address, request.as_bytes())
    };
    let wrong = get_with("s3cre7");
    assert!(
        wrong.starts_with("HTTP/1.1 401 Unauthorized\r\n"),
        "{wrong}"
    );
    let expected = format!("\r\n\r\nwrong token; {advice}");
    assert!(wrong.ends_with(&expected), "{wrong}");
    assert!(get_with("s3cret").starts_with("HTTP/1.1 200 OK\r\n"));
}
