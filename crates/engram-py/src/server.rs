//! The native class of `engram.Server`.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use engram_core::Error;
use engram_rpc::{Server, ServerOptions, ServerTls};
use pyo3::prelude::*;

use crate::errors;
use crate::gil::{ForkGuard, detached};
use crate::long_wait;
use crate::native_readers;
use crate::store::Store;

/// Replaces timeouts that are too long for a `Duration`.
const MAX_LEASE_TIMEOUT: Duration = Duration::from_secs(u64::MAX / 4);

/// A running server.
#[pyclass(frozen, name = "Server", module = "engram._engram")]
#[derive(Debug)]
pub(crate) struct PyServer {
    /// Closed once `close` has returned. The first field, so that it is dropped before the server, which may wait.
    open: native_readers::Open,
    server: ForkGuard<Server>,
}

/// Certificate, key, and the authority that signs clients' certificates, all as PEM.
type ServerTlsConfig = (Vec<u8>, Vec<u8>, Option<Vec<u8>>);

#[pymethods]
impl PyServer {
    #[new]
    #[expect(
        clippy::too_many_arguments,
        reason = "one per keyword of engram.Server"
    )]
    fn new(
        py: Python<'_>,
        store: &Store,
        host: &str,
        port: u16,
        token: Option<String>,
        tls: Option<ServerTlsConfig>,
        insecure: bool,
        lease_timeout: f64,
        metrics_port: Option<u16>,
        shard_id: u16,
    ) -> PyResult<Self> {
        let engine = store.engine(py)?;
        let to_py = |error| errors::to_py(py, &error);
        let host: IpAddr = host.parse().map_err(|_| {
            to_py(Error::InvalidArgument(format!(
                "`host` must be an IP address; got {host:?}"
            )))
        })?;
        let tls = tls.map(|(certificate, key, client_ca)| {
            Ok(ServerTls {
                certificate_pem: decode_pem(certificate, "certificate")?,
                key_pem: decode_pem(key, "key")?,
                client_ca_pem: client_ca
                    .map(|ca| decode_pem(ca, "client_ca"))
                    .transpose()?,
            })
        });
        let tls = tls.transpose().map_err(to_py)?;
        let options = ServerOptions {
            address: SocketAddr::new(host, port),
            metrics_port,
            token,
            tls,
            insecure,
            lease_timeout: Duration::try_from_secs_f64(lease_timeout).unwrap_or(MAX_LEASE_TIMEOUT),
            seed: store.seed(),
            shard_id,
            log: |text| {
                // In a thread of its own: the caller must not wait for the GIL, because the thread that has it may wait
                // for the server to close. Without a thread or an interpreter, there is no one to inform.
                let log = move || Python::try_attach(|py| long_wait::log(py, &text));
                let _ = std::thread::Builder::new().spawn(log);
            },
            ..ServerOptions::default()
        };
        let server = detached(py, || Server::start(Arc::clone(&engine), options))?;
        Ok(Self {
            open: native_readers::Open::new(),
            server: ForkGuard::new("server", server),
        })
    }

    /// `host:port`.
    #[getter]
    fn address(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.server.get(py)?.address().to_string())
    }

    /// `host:port` of the metrics, if they are served.
    #[getter]
    fn metrics_address(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let address = self.server.get(py)?.metrics_address();
        Ok(address.map(|address| address.to_string()))
    }

    /// Ends waiting calls and frees the port.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let server = self.server.get(py)?;
        detached(py, || {
            server.close();
            Ok(())
        })?;
        self.open.close();
        Ok(())
    }
}

fn decode_pem(pem: Vec<u8>, argument: &str) -> Result<String, Error> {
    String::from_utf8(pem).map_err(|_| {
        Error::InvalidArgument(format!(
            "`{argument}` must be a PEM file, which is plain text; got a file that is not UTF-8"
        ))
    })
}
