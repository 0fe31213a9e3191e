//! TLS: certificates of the server and of clients.

use std::sync::Arc;

use engram_rpc::pb::engram_client::EngramClient;
use engram_rpc::{PROTOCOL_VERSION, Server, ServerOptions, ServerTls, pb};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::idle_connections::FIRST_CALL_TIMEOUT;
use crate::support::{STEP_TIMEOUT, engine};

const CA_CERTIFICATE: &str = include_str!("certificates/authority.pem");
const SERVER_CERTIFICATE: &str = include_str!("certificates/server.pem");
const SERVER_KEY: &str = include_str!("certificates/server.key");
const CLIENT_CERTIFICATE: &str = include_str!("certificates/client.pem");
const CLIENT_KEY: &str = include_str!("certificates/client.key");

fn start(client_ca_pem: Option<String>) -> Server {
    start_with(client_ca_pem, ServerOptions::default())
}

fn start_with(client_ca_pem: Option<String>, options: ServerOptions) -> Server {
    let options = ServerOptions {
        tls: Some(ServerTls {
            certificate_pem: SERVER_CERTIFICATE.into(),
            key_pem: SERVER_KEY.into(),
            client_ca_pem,
        }),
        ..options
    };
    Server::start(engine(vec![]), options).unwrap()
}

/// True if a client with this configuration gets a response; `None` means without TLS.
async fn is_served(server: &Server, tls: Option<ClientTlsConfig>) -> bool {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let url = format!("{scheme}://{}", server.address());
    let mut endpoint = Endpoint::from_shared(url).unwrap();
    if let Some(tls) = tls {
        endpoint = endpoint.tls_config(tls).unwrap();
    }
    let Ok(channel) = endpoint.connect().await else {
        return false;
    };
    let request = pb::HelloRequest {
        protocol: PROTOCOL_VERSION,
        version: "test".into(),
    };
    EngramClient::new(channel).hello(request).await.is_ok()
}

/// Accepts the certificates that the test's authority has signed.
fn tls_with_test_ca() -> ClientTlsConfig {
    ClientTlsConfig::new().ca_certificate(Certificate::from_pem(CA_CERTIFICATE))
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_verify_the_servers_certificate() {
    let server = start(None);
    assert!(is_served(&server, Some(tls_with_test_ca())).await);
    assert!(!is_served(&server, Some(ClientTlsConfig::new())).await);
    assert!(!is_served(&server, None).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_need_a_certificate_if_the_server_requires_one() {
    let server = start(Some(CA_CERTIFICATE.into()));
    let with_certificate =
        tls_with_test_ca().identity(Identity::from_pem(CLIENT_CERTIFICATE, CLIENT_KEY));
    assert!(is_served(&server, Some(with_certificate)).await);
    assert!(!is_served(&server, Some(tls_with_test_ca())).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_without_calls_to_a_tls_server_are_closed() {
    let options = ServerOptions {
        first_call_timeout: FIRST_CALL_TIMEOUT,
        ..ServerOptions::default()
    };
    let server = start_with(None, options);
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_slice(CA_CERTIFICATE.as_bytes()).unwrap();
    roots.add(ca).unwrap();
    let config = ClientConfig::builder().with_root_certificates(roots);
    let mut config = config.with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let tcp = TcpStream::connect(server.address()).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    let mut encrypted = connector.connect(name, tcp).await.unwrap();
    let mut unencrypted = TcpStream::connect(server.address()).await.unwrap();
    // Both connections must end, with or without an error.
    let _ = timeout(STEP_TIMEOUT, encrypted.read_to_end(&mut Vec::new()))
        .await
        .unwrap();
    let _ = timeout(STEP_TIMEOUT, unencrypted.read_to_end(&mut Vec::new()))
        .await
        .unwrap();
}
