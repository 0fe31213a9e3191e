//! The address of a server, and how connections to it are set up.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use engram_core::{Error, Result};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use super::connect_errors::root_cause;
use super::options::ClientOptions;
use crate::{CLIENT_WINDOW_BYTES, MAX_FRAME_BYTES};

/// Where connections go.
#[derive(Debug)]
pub(crate) struct Target {
    /// `host:port`, or `unix:PATH`.
    pub(crate) address: String,
    pub(super) endpoint: Endpoint,
    /// The port of the address; `None` if it is not a loopback address.
    pub(super) local_port: Option<u16>,
}

impl Target {
    /// Checks an address and the TLS options, without connecting. The address in the options is not used.
    pub(super) fn new(address: &str, options: &ClientOptions) -> Result<Self> {
        let invalid = |text: String| Error::InvalidArgument(text);
        let invalid_address = |why: &str| {
            invalid(format!(
                "address is `{address}`: {why}; give `host:port` or `unix:PATH`"
            ))
        };
        let uri = match address.strip_prefix("unix:") {
            Some("") => {
                let why = "address is `unix:`: it has no path; give `unix:PATH`";
                return Err(invalid(why.into()));
            }
            Some(path) => format!("unix:{path}"),
            None => {
                let (host, port) = address
                    .rsplit_once(':')
                    .ok_or_else(|| invalid_address("it has no port"))?;
                if host.is_empty() {
                    return Err(invalid_address("it has no host"));
                }
                let bracketed = if host.parse::<Ipv6Addr>().is_ok() {
                    Some(format!("[{host}]:{port}"))
                } else if address.parse::<Ipv6Addr>().is_ok() {
                    Some(format!("[{address}]:port"))
                } else {
                    None
                };
                if let Some(bracketed) = bracketed {
                    return Err(invalid(format!(
                        "address is `{address}`: an IPv6 address needs brackets; give `{bracketed}`"
                    )));
                }
                if !port.parse::<u16>().is_ok_and(|port| port > 0) {
                    return Err(invalid_address("the port must be a number from 1 to 65535"));
                }
                let scheme = if options.tls.is_some() {
                    "https"
                } else {
                    "http"
                };
                format!("{scheme}://{address}")
            }
        };
        let endpoint =
            Endpoint::from_shared(uri).map_err(|_| invalid_address("the host name is invalid"))?;
        let mut endpoint = endpoint
            .tcp_nodelay(true)
            .initial_stream_window_size(CLIENT_WINDOW_BYTES)
            .initial_connection_window_size(CLIENT_WINDOW_BYTES)
            .max_frame_size(MAX_FRAME_BYTES)
            .http2_keep_alive_interval(ping_interval(options.reconnect_timeout))
            .keep_alive_timeout(ping_timeout(options.reconnect_timeout))
            .keep_alive_while_idle(true);
        if let Some(tls) = &options.tls {
            let first_certificate = CertificateDer::pem_slice_iter(&tls.ca).next();
            if !matches!(first_certificate, Some(Ok(_))) {
                let why = "`ca` holds no certificate; it must be a PEM file with the certificate of \
                           the authority that signed the server's";
                return Err(invalid(why.into()));
            }
            let mut config =
                ClientTlsConfig::new().ca_certificate(Certificate::from_pem(tls.ca.clone()));
            if let Some((certificate, key)) = &tls.identity {
                config = config.identity(Identity::from_pem(certificate, key));
            }
            if let Some(name) = &tls.server_name {
                config = config.domain_name(name.clone());
            }
            endpoint = endpoint.tls_config(config).map_err(|error| {
                invalid(format!(
                    "`ca`, `certificate` or `key` cannot be used: {}; each must be a PEM file, and \
                     `key` must belong to `certificate`",
                    root_cause(&error).trim_end_matches('.')
                ))
            })?;
        }
        Ok(Self {
            address: address.into(),
            endpoint,
            local_port: local_port(address),
        })
    }
}

/// How long a connection may be silent before the client sends a ping.
fn ping_interval(reconnect_timeout: Duration) -> Duration {
    (reconnect_timeout / 4).clamp(Duration::from_millis(200), Duration::from_secs(2))
}

/// How long the response to a ping may take. Leaves time to reconnect within `reconnect_timeout`.
fn ping_timeout(reconnect_timeout: Duration) -> Duration {
    (reconnect_timeout / 2).clamp(Duration::from_millis(600), Duration::from_secs(3))
}

/// Returns the port of a loopback address; `None` for another address.
fn local_port(address: &str) -> Option<u16> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_local = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    is_local.then(|| port.parse().ok())?
}
