//! How a client reaches a server.

use std::time::Duration;

/// How to reach a server.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// `host:port`, or `unix:PATH`.
    pub address: String,
    /// The server's token, if it requires one.
    pub token: Option<String>,
    /// Encrypts the connection and verifies the server's certificate.
    pub tls: Option<ClientTls>,
    /// How long calls wait for a server that cannot be reached.
    pub reconnect_timeout: Duration,
}

/// TLS options of a client; certificates and keys are PEM.
#[derive(Clone, Debug, Default)]
pub struct ClientTls {
    /// Certificates of the authorities that may have signed the server's certificate.
    pub ca: Vec<u8>,
    /// The client's certificate and key, if the server requires one.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name in the server's certificate, if it is not the host's.
    pub server_name: Option<String>,
}
