//! The sockets that a server listens at.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use engram_core::{Error, Result};
use engram_engine::CloseOnFork;

use super::options::ServerOptions;

/// Number of sockets that this process has bound at a path, for temporary names that no two servers share.
static SOCKETS_BOUND: AtomicU64 = AtomicU64::new(0);

/// Rejects an address that other machines can reach, unless there is a token or `insecure` is set.
///
/// # Errors
/// [`Error::InvalidArgument`] for such an address.
pub(super) fn check_address(options: &ServerOptions) -> Result<()> {
    let address = options.address;
    if address.ip().is_loopback() || options.token.is_some() || options.insecure {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!(
        "refusing to listen at {address} without a token, because other machines can reach that \
         address; set `token`, use a loopback address such as 127.0.0.1:{}, or set `insecure`",
        address.port()
    )))
}

/// The listening sockets, all in non-blocking mode.
#[derive(Debug)]
pub(super) struct Listeners {
    /// Address of `tcp`, with the port that was selected.
    pub(super) address: SocketAddr,
    pub(super) tcp: TcpListener,
    pub(super) unix: Option<(UnixListener, SocketFile)>,
    pub(super) metrics: Option<(SocketAddr, TcpListener)>,
    /// An abstract Unix socket and its name. Clients on this machine receive the name over TCP, then switch to this
    /// socket, which is faster.
    pub(super) local: Option<(UnixListener, String)>,
    /// Makes forked children close these sockets.
    pub(super) close_on_fork: CloseOnFork,
}

impl Listeners {
    /// Opens the sockets that the options request.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the address or path that is not available, and why.
    pub(super) fn open(options: &ServerOptions) -> Result<Self> {
        let (address, tcp) = open_tcp(options.address, "port", "listen")?;
        let unix = options.unix_socket.as_deref().map(|path| {
            open_unix(path).map_err(|error| {
                Error::InvalidArgument(format!(
                    "cannot listen at the socket `{}`: {error}",
                    path.display()
                ))
            })
        });
        let metrics = options.metrics_port.map(|port| {
            let address = SocketAddr::new(options.address.ip(), port);
            open_tcp(address, "metrics_port", "serve metrics")
        });
        let (unix, metrics) = (unix.transpose()?, metrics.transpose()?);
        // With TLS there is no local socket, because its connections would not be encrypted. If it cannot be opened,
        // clients use TCP only.
        let local = (options.tls.is_none())
            .then(|| open_local(address.port()).ok())
            .flatten();
        let sockets = [
            Some(tcp.as_raw_fd()),
            unix.as_ref().map(|(socket, _)| socket.as_raw_fd()),
            metrics.as_ref().map(|(_, socket)| socket.as_raw_fd()),
            local.as_ref().map(|(socket, _)| socket.as_raw_fd()),
        ];
        Ok(Self {
            address,
            tcp,
            unix,
            metrics,
            local,
            close_on_fork: CloseOnFork::new(sockets.into_iter().flatten()),
        })
    }
}

/// Opens a TCP socket. In error texts, `option` names the option that sets its port, and `purpose` its purpose.
fn open_tcp(
    requested: SocketAddr,
    option: &str,
    purpose: &str,
) -> Result<(SocketAddr, TcpListener)> {
    let open = || -> io::Result<_> {
        let listener = TcpListener::bind(requested)?;
        listener.set_nonblocking(true)?;
        Ok((listener.local_addr()?, listener))
    };
    open().map_err(|error| {
        Error::InvalidArgument(describe_bind_error(&error, requested, option, purpose))
    })
}

fn describe_bind_error(
    error: &io::Error,
    requested: SocketAddr,
    option: &str,
    purpose: &str,
) -> String {
    let (host, port) = (requested.ip(), requested.port());
    match error.kind() {
        ErrorKind::AddrInUse => {
            format!("`{option}` {port} is already in use; choose another, or 0 for any free port")
        }
        ErrorKind::AddrNotAvailable => format!(
            "`host` {host} is not an address of this machine; use one of its addresses, or {} for all of them",
            if host.is_ipv4() { "0.0.0.0" } else { "::" }
        ),
        ErrorKind::PermissionDenied => format!(
            "`{option}` {port} needs privileges that this process does not have; choose a port from 1024 on, or 0 for \
             any free port"
        ),
        _ => format!("cannot {purpose} at {requested}: {error}"),
    }
}

/// Opens an abstract socket (no file) with an unused name.
#[cfg(target_os = "linux")]
fn open_local(port: u16) -> io::Result<(UnixListener, String)> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::SocketAddr;

    let number = crate::random_u64().map_err(io::Error::other)?;
    let name = format!("engram-{port}-{number:016x}");
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
    listener.set_nonblocking(true)?;
    Ok((listener, name))
}

#[cfg(not(target_os = "linux"))]
fn open_local(_port: u16) -> io::Result<(UnixListener, String)> {
    Err(ErrorKind::Unsupported.into())
}

/// The file of a Unix domain socket. Dropping it removes the file, unless another process has replaced it.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Identifies the file that this process created.
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let metadata = fs::symlink_metadata(&self.path);
        if metadata.is_ok_and(|metadata| metadata.ino() == self.inode) {
            // There is no caller to report an error to.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn open_unix(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    check_path_is_free(path)?;
    // Bound under a temporary name first, so that the final name never has wider permissions than 0o600.
    let bound = SOCKETS_BOUND.fetch_add(1, Ordering::Relaxed);
    let temporary = path.with_file_name(format!(".{}-{bound}.new", std::process::id()));
    let _ = fs::remove_file(&temporary);
    let listener = UnixListener::bind(&temporary)?;
    let finish = || -> io::Result<_> {
        fs::set_permissions(&temporary, Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        let inode = fs::symlink_metadata(&temporary)?.ino();
        fs::rename(&temporary, path)?;
        Ok(inode)
    };
    match finish() {
        Ok(inode) => Ok((
            listener,
            SocketFile {
                path: path.into(),
                inode,
            },
        )),
        Err(error) => {
            let _ = fs::remove_file(&temporary);
            Err(error)
        }
    }
}

/// Accepts a path without a file, or with a socket that no server listens at any more.
fn check_path_is_free(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(metadata) if !metadata.file_type().is_socket() => Err(io::Error::new(
            ErrorKind::AlreadyExists,
            "the path exists and is not a socket",
        )),
        Ok(_) => match UnixStream::connect(path) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Err(io::Error::new(
                ErrorKind::AddrInUse,
                "another server listens at it",
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_listening_name_the_likely_cause() {
        let describe = |kind: ErrorKind, address: &str| {
            let address = address.parse().unwrap();
            describe_bind_error(&kind.into(), address, "metrics_port", "serve metrics")
        };
        assert_eq!(
            describe(ErrorKind::PermissionDenied, "127.0.0.1:80"),
            "`metrics_port` 80 needs privileges that this process does not have; choose a port from 1024 on, or 0 for \
             any free port"
        );
        assert_eq!(
            describe(ErrorKind::AddrNotAvailable, "[2001:db8::1]:80"),
            "`host` 2001:db8::1 is not an address of this machine; use one of its addresses, or :: for all of them"
        );
    }
}
