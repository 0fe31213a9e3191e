//! Connecting: protocol versions, tokens, addresses, sockets, health checks.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engram_core::Error;
use engram_engine::wait_by;
use engram_rpc::client::{Client, ClientOptions};
use engram_rpc::pb::engram_client::EngramClient;
use engram_rpc::{PROTOCOL_VERSION, Server, ServerOptions, ServerTls, pb};
use tonic::metadata::MetadataValue;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};

use crate::support::{STEP_TIMEOUT, connect, engine, start};

fn hello(protocol: u32) -> pb::HelloRequest {
    pb::HelloRequest {
        protocol,
        version: "test".into(),
    }
}

fn start_error(options: ServerOptions) -> String {
    match Server::start(engine(vec![]), options) {
        Err(Error::InvalidArgument(text)) => text,
        other => panic!("{other:?} is not an error"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hello_returns_the_version_and_the_instance() {
    let engine = engine(vec![]);
    let (server, other_server) = (start(&engine), start(&engine));
    let mut client = connect(&server).await;
    let reply = client
        .hello(hello(PROTOCOL_VERSION))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (reply.protocol, &*reply.version),
        (PROTOCOL_VERSION, env!("CARGO_PKG_VERSION"))
    );
    let again = client
        .hello(hello(PROTOCOL_VERSION))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(again.instance, reply.instance);
    let mut client = connect(&other_server).await;
    let reply = client
        .hello(hello(PROTOCOL_VERSION))
        .await
        .unwrap()
        .into_inner();
    assert_ne!(again.instance, reply.instance);
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn hello_returns_a_local_socket() {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixStream};

    let server = start(&engine(vec![]));
    let mut client = connect(&server).await;
    let reply = client
        .hello(hello(PROTOCOL_VERSION))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(reply.port, u32::from(server.address().port()));
    let name = SocketAddr::from_abstract_name(&reply.local_socket).unwrap();
    assert!(UnixStream::connect_addr(&name).is_ok());
    server.close();
    assert!(UnixStream::connect_addr(&name).is_err());
}

/// Accepts one connection and forwards it to a server.
#[cfg(target_os = "linux")]
fn forward_connection(proxy: &std::net::TcpListener, server: std::net::SocketAddr) {
    let (mut client, _) = proxy.accept().unwrap();
    let mut server = std::net::TcpStream::connect(server).unwrap();
    let mut from_client = client.try_clone().unwrap();
    let mut from_server = server.try_clone().unwrap();
    std::thread::spawn(move || std::io::copy(&mut from_client, &mut server));
    let _ = std::io::copy(&mut from_server, &mut client);
}

/// Returns the number of connections to a server's local socket, which has a name in the abstract namespace.
#[cfg(target_os = "linux")]
fn local_connections(server: &Server) -> usize {
    let name = format!(" @engram-{}-", server.address().port());
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    // Listening sockets have the state 01, connected ones 03.
    let is_connected = |line: &&str| line.contains(&name) && line.contains(" 03 ");
    sockets.lines().filter(is_connected).count()
}

#[cfg(target_os = "linux")]
#[test]
fn clients_use_the_local_socket_unless_there_is_a_proxy() {
    let server = start(&engine(vec![]));
    let client = |port: u16| {
        let options = ClientOptions {
            address: format!("localhost:{port}"),
            token: None,
            tls: None,
            reconnect_timeout: STEP_TIMEOUT,
        };
        let client = Client::new(options).unwrap();
        let tables = wait_by(&mut client.tables(), Some(Instant::now() + STEP_TIMEOUT));
        assert!(matches!(tables, Some(Ok(_))), "{tables:?}");
        client
    };
    let direct = client(server.address().port());
    assert_eq!(local_connections(&server), 1);
    // A client that connects to a proxy keeps using it.
    let proxy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = proxy.local_addr().unwrap().port();
    let server_address = server.address();
    std::thread::spawn(move || forward_connection(&proxy, server_address));
    let through_proxy = client(port);
    assert_eq!(local_connections(&server), 1);
    drop((direct, through_proxy));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_protocol_version_is_rejected() {
    let server = start(&engine(vec![]));
    let status = connect(&server).await.hello(hello(99)).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        status.message(),
        format!(
            "protocol versions differ: the client uses version 99, this server (Engram {version}) \
             uses version 1; install the same version of Engram on both"
        )
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_needs_the_token() {
    let options = ServerOptions {
        token: Some("s3cret".into()),
        ..ServerOptions::default()
    };
    let server = Server::start(engine(vec![]), options).unwrap();
    let url = format!("http://{}", server.address());
    let endpoint = Endpoint::from_shared(url).unwrap();
    let channel = endpoint.connect().await.unwrap();
    let client_with = |token: Option<&'static str>| {
        EngramClient::with_interceptor(channel.clone(), move |mut request: Request<()>| {
            if let Some(token) = token {
                let value = MetadataValue::from_static(token);
                request.metadata_mut().insert("authorization", value);
            }
            Ok::<_, Status>(request)
        })
    };
    let missing = client_with(None)
        .hello(hello(PROTOCOL_VERSION))
        .await
        .unwrap_err();
    assert_eq!(missing.code(), Code::Unauthenticated);
    assert_eq!(
        missing.message(),
        "token required, none sent; pass the server's token to the client as `token`, which sends it \
         as metadata `authorization: Bearer TOKEN` (dm-reverb clients cannot send one)"
    );
    for wrong in ["Bearer s3cres", "Bearer s3cret2", "s3cret", "Bearer "] {
        let status = client_with(Some(wrong))
            .hello(hello(PROTOCOL_VERSION))
            .await
            .unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated);
        assert!(status.message().starts_with("wrong token; pass"));
        assert!(!status.message().contains("s3cret"), "{}", status.message());
    }
    let none = tokio_stream::empty::<pb::ChangeRequest>();
    let status = client_with(None).change(none).await.unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated);
    let mut right = client_with(Some("Bearer s3cret"));
    assert!(right.hello(hello(PROTOCOL_VERSION)).await.is_ok());
}

#[test]
fn options_do_not_show_the_token() {
    let options = ServerOptions {
        token: Some("s3cret".into()),
        ..ServerOptions::default()
    };
    assert!(!format!("{options:?}").contains("s3cret"));
}

#[test]
fn a_used_port_is_rejected_and_free_after_close() {
    let engine = engine(vec![]);
    let first = start(&engine);
    let options = ServerOptions {
        address: first.address(),
        ..ServerOptions::default()
    };
    let address = first.address();
    assert_eq!(
        start_error(options.clone()),
        format!(
            "`port` {} is already in use; choose another, or 0 for any free port",
            address.port()
        )
    );
    first.close();
    first.close();
    let second = Server::start(engine, options).unwrap();
    assert_eq!(second.address(), address);
}

#[test]
fn an_address_that_others_can_reach_needs_a_token_or_insecure() {
    let mut options = ServerOptions {
        address: "0.0.0.0:0".parse().unwrap(),
        ..ServerOptions::default()
    };
    assert_eq!(
        start_error(options.clone()),
        "refusing to listen at 0.0.0.0:0 without a token, because other machines can reach that \
         address; set `token`, use a loopback address such as 127.0.0.1:0, or set `insecure`"
    );
    options.insecure = true;
    assert!(Server::start(engine(vec![]), options.clone()).is_ok());
    options.insecure = false;
    options.token = Some("s3cret".into());
    assert!(Server::start(engine(vec![]), options).is_ok());
}

#[test]
fn invalid_certificates_are_rejected() {
    let options = ServerOptions {
        tls: Some(ServerTls {
            certificate_pem: "none".into(),
            key_pem: "none".into(),
            client_ca_pem: None,
        }),
        ..ServerOptions::default()
    };
    let text = start_error(options);
    assert!(
        text.starts_with("`certificate`, `key` or `client_ca` cannot be used"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unix_socket_is_private_and_removed_on_close() {
    let folder = std::env::temp_dir().join(format!("engram-rpc-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("socket");
    // The file that a killed server leaves behind.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let options = ServerOptions {
        unix_socket: Some(path.clone()),
        ..ServerOptions::default()
    };
    let server = Server::start(engine(vec![]), options.clone()).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let url = format!("unix://{}", path.display());
    let channel = Endpoint::from_shared(url).unwrap().connect().await.unwrap();
    let mut client = EngramClient::new(channel);
    assert!(client.hello(hello(PROTOCOL_VERSION)).await.is_ok());
    assert_eq!(
        start_error(options.clone()),
        format!(
            "cannot listen at the socket `{}`: another server listens at it",
            path.display()
        )
    );
    server.close();
    assert!(!path.exists());
    std::fs::write(&path, "precious").unwrap();
    assert_eq!(
        start_error(options),
        format!(
            "cannot listen at the socket `{}`: the path exists and is not a socket",
            path.display()
        )
    );
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn health_checks_work_and_their_watchers_do_not_delay_closing() {
    let server = start(&engine(vec![]));
    let url = format!("http://{}", server.address());
    let channel = Endpoint::from_shared(url).unwrap().connect().await.unwrap();
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel);
    let request = || tonic_health::pb::HealthCheckRequest {
        service: "engram.v1.Engram".into(),
    };
    let reply = health.check(request()).await.unwrap().into_inner();
    assert_eq!(reply.status(), tonic_health::ServingStatus::Serving.into());
    let mut watch = health.watch(request()).await.unwrap().into_inner();
    assert!(watch.message().await.unwrap().is_some());
    let began = Instant::now();
    let server = Arc::new(server);
    tokio::task::spawn_blocking(move || server.close())
        .await
        .unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(1),
        "{:?}",
        began.elapsed()
    );
}
