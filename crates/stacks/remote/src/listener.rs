//! Accepts hosts.

use crate::address::Address;
use crate::link::stream::Stream;
use crate::link::tls::Tls;
use crate::link::{Broken, Link, ibverbs};
use crate::peer;
use crate::security::Security;
use crate::token::Token;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::net::{IpAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use towpath_runtime::log_throttle::LogThrottle;

/// Of connections by strangers.
static REFUSALS: LogThrottle = LogThrottle::new();

/// How long a listener rests that cannot accept.
const REST: Duration = Duration::from_millis(100);

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    /// See [`Address::Unix`].
    Unix(UnixListener, PathBuf),
    /// See [`Address::Tcp`]. Hosts must have the token, if there is one.
    Tcp(TcpListener, Option<Token>),
    /// See [`Address::Rdma`].
    Rdma(TcpListener),
}

/// A host that has connected. Over TCP it may still be anybody.
#[derive(Debug)]
pub struct ConnectedHost {
    stream: OwnedFd,
    kind: Kind,
    /// Where it comes from; `None` if it is on this host, by a UNIX socket.
    pub from: Option<IpAddr>,
}

#[derive(Debug)]
enum Kind {
    /// The peer is this user or root.
    Unix,
    Tcp(Option<Token>),
    Rdma,
}

impl ConnectedHost {
    /// True if the kernel says that the peer is this user or root. Only then it may run programs here.
    pub fn known(&self) -> bool {
        matches!(self.kind, Kind::Unix)
    }
    /// True if it is reached by an RDMA adapter. The operator has said that he trusts that network.
    pub fn has_adapter(&self) -> bool {
        matches!(self.kind, Kind::Rdma)
    }
    /// Another descriptor of its socket.
    pub(crate) fn socket(&self) -> io::Result<OwnedFd> {
        self.stream.try_clone()
    }
    /// Makes the link. This waits for the peer's part of a handshake. Where a token is needed, the peer has shown it
    /// when this returns.
    pub fn link(self) -> Result<Arc<dyn Link>, Broken> {
        Ok(match self.kind {
            Kind::Tcp(Some(token)) => Arc::new(Stream::over(Tls::accept(self.stream, &token)?)),
            Kind::Tcp(None) | Kind::Unix => Arc::new(Stream::new(self.stream)?),
            Kind::Rdma => Arc::new(ibverbs::link(self.stream.into())?),
        })
    }
}

impl AsFd for ConnectedHost {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Listener {
    /// Listens. A UNIX socket without a listener is replaced.
    pub fn new(address: &Address, security: &Security) -> io::Result<Self> {
        let token = security.of_link(address)?;
        match address {
            Address::Unix(path) => {
                let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
                // A file that is no socket refuses as well, and stays.
                if UnixStream::connect(path).is_err_and(refused)
                    && std::fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_socket())
                {
                    std::fs::remove_file(path)?;
                }
                let listener = UnixListener::bind(path)?;
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
                Ok(Self::Unix(listener, path.clone()))
            }
            Address::Tcp(at) => Ok(Self::Tcp(TcpListener::bind(at)?, token.cloned())),
            Address::Rdma(at) => {
                let all: Vec<_> = at.to_socket_addrs()?.collect();
                all.iter().try_for_each(|address| ibverbs::check(address.ip()))?;
                Ok(Self::Rdma(TcpListener::bind(&*all)?))
            }
            Address::Software(..) => Err(io::Error::new(io::ErrorKind::Unsupported, "both sides are in one process")),
        }
    }

    /// The address it listens at, with the port chosen if 0 was asked for.
    pub fn address(&self) -> io::Result<Address> {
        match self {
            Self::Unix(_, path) => Ok(Address::Unix(path.clone())),
            Self::Tcp(listener, _) => Ok(Address::Tcp(listener.local_addr()?.to_string())),
            Self::Rdma(listener) => Ok(Address::Rdma(listener.local_addr()?.to_string())),
        }
    }

    /// Waits for the next host. `None`: it is nobody's who may connect, or it waits for descriptors or memory. Then this
    /// rests, and the caller tries again. The server's other hosts are not affected.
    pub fn accept(&self) -> Option<ConnectedHost> {
        self.try_accept().unwrap_or_else(|error| {
            if REFUSALS.allows() {
                tracing::warn!("a host waits, as it cannot be accepted: {error}");
            }
            std::thread::sleep(REST);
            None
        })
    }

    /// Waits for a connection. `None` if it is somebody else's.
    fn try_accept(&self) -> io::Result<Option<ConnectedHost>> {
        let (listener, kind) = match self {
            Self::Unix(listener, _) => {
                let stream = OwnedFd::from(listener.accept()?.0);
                let uid = peer::uid(&stream)?;
                if peer::is_believed(uid) {
                    return Ok(Some(ConnectedHost { stream, kind: Kind::Unix, from: None }));
                }
                if REFUSALS.allows() {
                    tracing::warn!(uid, "somebody else's connection is refused");
                }
                return Ok(None);
            }
            Self::Tcp(listener, token) => (listener, Kind::Tcp(token.clone())),
            Self::Rdma(listener) => (listener, Kind::Rdma),
        };
        let (stream, from) = listener.accept()?;
        stream.set_nodelay(true)?;
        Ok(Some(ConnectedHost { stream: stream.into(), kind, from: Some(from.ip()) }))
    }
}

impl AsFd for Listener {
    /// Readable when a host waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener, _) => listener.as_fd(),
            Self::Tcp(listener, _) | Self::Rdma(listener) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = std::fs::remove_file(path as &Path);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::connect::connect;

    fn listen(address: &str, security: &Security) -> io::Result<Listener> {
        Listener::new(&address.parse().unwrap(), security)
    }

    #[test]
    fn without_an_adapter_rdma_says_what_is_missing() {
        // The loopback device has no adapter.
        let why = listen("rdma:127.0.0.1:0", &Security::TrustedNetwork).unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::NotFound);
        assert!(why.to_string().contains("RDMA"), "{why}");
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = Address::Rdma(nobody.local_addr().unwrap().to_string());
        assert!(
            connect(&there, &Security::TrustedNetwork, || {}).is_err_and(|error| error.to_string().contains("RDMA"))
        );
    }

    #[test]
    fn a_socket_that_was_left_is_replaced_and_a_file_is_not() {
        let folder = std::env::temp_dir().join(format!("towpath-remote-address-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (left, file) = (folder.join("left"), folder.join("file"));
        drop(UnixListener::bind(&left).unwrap());
        assert!(Listener::new(&Address::Unix(left), &Security::Unset).is_ok());
        std::fs::write(&file, "text").unwrap();
        assert!(Listener::new(&Address::Unix(file.clone()), &Security::Unset).is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "text");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
