//! Encrypted connections: who shows a certificate to whom.

use engram_rpc::pb::engram_client::EngramClient;
use engram_rpc::{PROTOCOL, Server, ServerOptions, ServerTls, pb};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::support::engine;

const AUTHORITY: &str = include_str!("certificates/authority.pem");
const SERVER: [&str; 2] = [
    include_str!("certificates/server.pem"),
    include_str!("certificates/server.key"),
];
const CLIENT: [&str; 2] = [
    include_str!("certificates/client.pem"),
    include_str!("certificates/client.key"),
];

fn start(client_ca_pem: Option<String>) -> Server {
    let [certificate, key] = SERVER;
    let options = ServerOptions {
        tls: Some(ServerTls {
            certificate_pem: certificate.into(),
            key_pem: key.into(),
            client_ca_pem,
        }),
        ..ServerOptions::default()
    };
    Server::start(engine(vec![]), options).unwrap()
}

/// Whether a client with this configuration gets an answer; none is plain text.
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
        protocol: PROTOCOL,
        version: "test".into(),
    };
    EngramClient::new(channel).hello(request).await.is_ok()
}

fn trusting() -> ClientTlsConfig {
    ClientTlsConfig::new().ca_certificate(Certificate::from_pem(AUTHORITY))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_shows_its_certificate() {
    let server = start(None);
    assert!(is_served(&server, Some(trusting())).await);
    assert!(!is_served(&server, Some(ClientTlsConfig::new())).await);
    assert!(!is_served(&server, None).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_show_theirs_where_they_must() {
    let server = start(Some(AUTHORITY.into()));
    let [certificate, key] = CLIENT;
    let known = trusting().identity(Identity::from_pem(certificate, key));
    assert!(is_served(&server, Some(known)).await);
    assert!(!is_served(&server, Some(trusting())).await);
}
