//! Connections on which nobody calls.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use engram_rpc::{Server, ServerOptions};

use crate::sample::ask;
use crate::support::{SOON, connect, engine, fill, options, samples};

/// What an HTTP/2 client says first: who it is, and that it has no wishes.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Longer than it takes to call.
pub(crate) const FIRST_CALL: Duration = Duration::from_secs(2);

/// Reads until the other end closes.
fn ends(peer: &mut impl Read) {
    match peer.read_to_end(&mut Vec::new()) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "it is kept"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_never_call_are_let_go() {
    let folder = std::env::temp_dir().join(format!("engram-silence-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("socket");
    let engine = engine(vec![options("t")]);
    let options = ServerOptions {
        unix_socket: Some(path.clone()),
        first_call_timeout: FIRST_CALL,
        ..ServerOptions::default()
    };
    let server = Server::start(Arc::clone(&engine), options).unwrap();
    let mut client = connect(&server).await;
    let mut stream = samples(&mut client).await;
    stream.ask(ask(1, 1)).await;

    let address = server.address();
    let silent = tokio::task::spawn_blocking(move || {
        let mut peers = [&b""[..], &PREFACE[..10], PREFACE].map(|said| {
            let mut peer = TcpStream::connect(address).unwrap();
            peer.write_all(said).unwrap();
            peer
        });
        let mut local = UnixStream::connect(path).unwrap();
        for peer in &mut peers {
            peer.set_read_timeout(Some(SOON)).unwrap();
            ends(peer);
        }
        local.set_read_timeout(Some(SOON)).unwrap();
        ends(&mut local);
    });
    silent.await.unwrap();
    // By now, who has called would be gone too.
    fill(&engine.table("t").unwrap(), 0, 1, 1);
    assert_eq!(stream.batch().await.0, 1);
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}
