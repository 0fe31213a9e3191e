//! TLS for the metrics: the server's certificate, and the same check of clients' certificates as for calls.

use std::error::Error as StdError;
use std::sync::Arc;

use engram_core::{Error, Result};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::server::ServerTls;

/// Builds the TLS acceptor for the metrics port.
///
/// # Errors
/// [`Error::InvalidArgument`] if a certificate or key is unusable.
pub(in crate::server) fn build_acceptor(tls: &ServerTls) -> Result<TlsAcceptor> {
    let config = build_config(tls).map_err(|error| {
        let cause = error.to_string();
        Error::InvalidArgument(format!(
            "`certificate`, `key` or `client_ca` cannot be used for the metrics: {}",
            cause.trim_end_matches('.')
        ))
    })?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn build_config(tls: &ServerTls) -> Result<ServerConfig, Box<dyn StdError>> {
    let builder = ServerConfig::builder();
    let builder = match &tls.client_ca_pem {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(parse_certificates(pem)?);
            builder.with_client_cert_verifier(WebPkiClientVerifier::builder(roots.into()).build()?)
        }
    };
    let key = PrivateKeyDer::from_pem_slice(tls.key_pem.as_bytes())?;
    let mut config = builder.with_single_cert(parse_certificates(&tls.certificate_pem)?, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn parse_certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, Box<dyn StdError>> {
    Ok(CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<std::result::Result<_, _>>()?)
}
