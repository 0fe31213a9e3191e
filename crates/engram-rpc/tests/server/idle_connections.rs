//! Connections without calls are closed.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use engram_rpc::{Server, ServerOptions};

use crate::sample::batch_request;
use crate::support::{STEP_TIMEOUT, connect, engine, fill, open_sample_stream, options};

/// The first bytes of an HTTP/2 client: the preface and empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Longer than it takes to open a connection and make a call.
pub(crate) const FIRST_CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// Reads until the server closes the connection; panics if that takes longer than the read timeout.
fn wait_until_closed(connection: &mut impl Read) {
    match connection.read_to_end(&mut Vec::new()) {
        Ok(_) => {}
        Err(error) => assert_eq!(
            error.kind(),
            ErrorKind::ConnectionReset,
            "the connection stays open"
        ),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_without_calls_are_closed() {
    let folder = std::env::temp_dir().join(format!("engram-idle-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("socket");
    let engine = engine(vec![options("t")]);
    let options = ServerOptions {
        unix_socket: Some(path.clone()),
        first_call_timeout: FIRST_CALL_TIMEOUT,
        ..ServerOptions::default()
    };
    let server = Server::start(Arc::clone(&engine), options).unwrap();
    let mut client = connect(&server).await;
    let mut stream = open_sample_stream(&mut client).await;
    stream.request_batch(batch_request(1, 1)).await;

    let address = server.address();
    let clients_without_calls = tokio::task::spawn_blocking(move || {
        let mut peers = [&b""[..], &PREFACE[..10], PREFACE].map(|bytes| {
            let mut peer = TcpStream::connect(address).unwrap();
            peer.write_all(bytes).unwrap();
            peer
        });
        let mut local = UnixStream::connect(path).unwrap();
        for peer in &mut peers {
            peer.set_read_timeout(Some(STEP_TIMEOUT)).unwrap();
            wait_until_closed(peer);
        }
        local.set_read_timeout(Some(STEP_TIMEOUT)).unwrap();
        wait_until_closed(&mut local);
    });
    clients_without_calls.await.unwrap();
    // The connection with a call is still open.
    fill(&engine.table("t").unwrap(), 0, 1, 1);
    assert_eq!(stream.receive_batch().await.0, 1);
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}
