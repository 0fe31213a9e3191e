//! Where a server listens: a TCP address, and perhaps a Unix domain socket.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use engram_core::{Error, Result};
use engram_engine::CloseOnFork;

use super::ServerOptions;

/// Refuses to let strangers in by mistake.
///
/// # Errors
/// [`Error::InvalidArgument`] for an address that others can reach, without a token.
pub(super) fn check_address(options: &ServerOptions) -> Result<()> {
    let address = options.address;
    if address.ip().is_loopback() || options.token.is_some() || options.insecure {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!(
        "requested to listen at {address} without a token; other machines may reach that address: \
         give a token, listen at a loopback address such as 127.0.0.1:{}, or say `insecure`",
        address.port()
    )))
}

/// The sockets that connections come in by; none of them blocks.
#[derive(Debug)]
pub(super) struct Listeners {
    pub(super) address: SocketAddr,
    pub(super) tcp: TcpListener,
    pub(super) unix: Option<(UnixListener, SocketFile)>,
    pub(super) metrics: Option<(SocketAddr, TcpListener)>,
    /// For clients that come by TCP from this machine: faster, and they are told of it.
    pub(super) local: Option<(UnixListener, String)>,
    pub(super) close_on_fork: CloseOnFork,
}

impl Listeners {
    /// Opens them.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the one that cannot be had, and why.
    pub(super) fn open(options: &ServerOptions) -> Result<Self> {
        let (address, tcp) = open_tcp(options.address, "listen")?;
        let unix = options.unix_socket.as_deref().map(|path| {
            open_unix(path).map_err(|error| {
                Error::InvalidArgument(format!(
                    "cannot listen at socket `{}`: {error}",
                    path.display()
                ))
            })
        });
        let metrics = options.metrics_port.map(|port| {
            let address = SocketAddr::new(options.address.ip(), port);
            open_tcp(address, "listen for those who read metrics")
        });
        let (unix, metrics) = (unix.transpose()?, metrics.transpose()?);
        // With TLS, every connection is to be encrypted. Elsewhere TCP will do, too.
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

fn open_tcp(requested: SocketAddr, what: &str) -> Result<(SocketAddr, TcpListener)> {
    let open = || -> io::Result<_> {
        let listener = TcpListener::bind(requested)?;
        listener.set_nonblocking(true)?;
        Ok((listener.local_addr()?, listener))
    };
    open().map_err(|error| Error::InvalidArgument(format!("cannot {what} at {requested}: {error}")))
}

/// A socket of a name that nobody has and no file remembers.
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

/// The file of a Unix domain socket; removed when dropped, unless it is another's by then.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| found.ino() == self.inode) {
            // Nobody is left to tell.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn open_unix(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    check_free(path)?;
    // Bound under another name first: under its own, it is this user's only from the beginning.
    let temporary = path.with_file_name(format!(".{}.new", std::process::id()));
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

/// A socket that nobody listens on may be replaced; nothing else may.
fn check_free(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if !found.file_type().is_socket() => Err(io::Error::new(
            ErrorKind::AlreadyExists,
            "there is a file of that name that is no socket",
        )),
        Ok(_) => match UnixStream::connect(path) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Err(io::Error::new(
                ErrorKind::AddrInUse,
                "another server listens there",
            )),
        },
    }
}
