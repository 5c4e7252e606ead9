//! The address of a server: `unix:PATH`, `tcp:HOST:PORT` or `rdma:HOST:PORT`; for tests `software-verbs:SEED`.

use crate::link::software::Fabric;
use crate::link::stream::Stream;
use crate::link::{Link, ibverbs};
use crate::server::{self, ServerConfig};
use rustix::fd::OwnedFd;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use towpath_kernel::KernelConfig;
use towpath_runtime::log_throttle::LogThrottle;

/// Of connections by strangers.
static REFUSALS: LogThrottle = LogThrottle::new();

/// How long a listener rests that cannot accept.
const REST: Duration = Duration::from_millis(100);
/// Queue pairs of software verbs.
const PAIRS: u32 = 4;
/// Longest time of a write over software verbs, µs.
const LATENCY_US: u64 = 200;

/// An address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A UNIX socket. Only its owner and root may connect.
    Unix(PathBuf),
    /// TCP. Nothing is encrypted, and every peer that reaches the port may connect.
    Tcp(String),
    /// RDMA between the adapters that have the addresses of a TCP connection to this one.
    Rdma(String),
    /// For tests: a server in this process, over RDMA verbs without an adapter, on a faulty fabric of this seed. If
    /// the second number is not 0, the write of that number fails.
    Software(u64, u64),
}

impl FromStr for Address {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Unix(path.into())),
            Some(("tcp", at)) if at.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) => {
                Ok(Self::Tcp(at.into()))
            }
            Some(("rdma", at)) if at.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) => {
                Ok(Self::Rdma(at.into()))
            }
            Some(("software-verbs", numbers)) => {
                let (seed, fails) = numbers.split_once(':').unwrap_or((numbers, "0"));
                match (seed.parse(), fails.parse()) {
                    (Ok(seed), Ok(fails)) => Ok(Self::Software(seed, fails)),
                    _ => Err(format!("{text:?}: software-verbs:SEED or software-verbs:SEED:WRITE")),
                }
            }
            _ => Err(format!("{text:?} is no address; write unix:PATH, tcp:HOST:PORT or rdma:HOST:PORT")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(at) => write!(f, "tcp:{at}"),
            Self::Rdma(at) => write!(f, "rdma:{at}"),
            Self::Software(seed, fails) => write!(f, "software-verbs:{seed}:{fails}"),
        }
    }
}

/// Connects by TCP; see [`resolve`].
fn tcp(at: &str, trusted: bool) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(&*resolve(at, trusted)?)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Resolves a TCP address. Unless `trusted`, it must belong to this host.
fn resolve(at: &str, trusted: bool) -> io::Result<Vec<SocketAddr>> {
    let all: Vec<_> = at.to_socket_addrs()?.collect();
    if !trusted && all.iter().any(|address| !address.ip().is_loopback()) {
        let why = format!(
            "{at} is not this host: nothing on the way would be secret or safe, and nobody kept out (--trust-network)"
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(all)
}

impl Address {
    /// Connects. `trusted`: the network between the two hosts may carry everything unencrypted.
    pub fn connect(&self, trusted: bool) -> io::Result<Arc<dyn Link>> {
        let fd: OwnedFd = match self {
            Self::Unix(path) => UnixStream::connect(path)?.into(),
            Self::Tcp(at) => tcp(at, trusted)?.into(),
            Self::Rdma(at) => return Ok(Arc::new(ibverbs::link(tcp(at, trusted)?)?)),
            Self::Software(seed, fails) => return software(*seed, *fails),
        };
        Ok(Arc::new(Stream::new(fd)?))
    }

    /// Listens. A UNIX socket without a listener is replaced.
    pub fn listen(&self, trusted: bool) -> io::Result<Listener> {
        match self {
            Self::Unix(path) => {
                let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
                // A file that is no socket refuses as well, and stays.
                if UnixStream::connect(path).is_err_and(refused)
                    && std::fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_socket())
                {
                    std::fs::remove_file(path)?;
                }
                let listener = UnixListener::bind(path)?;
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
                Ok(Listener::Unix(listener, path.clone()))
            }
            Self::Tcp(at) => Ok(Listener::Tcp(TcpListener::bind(&*resolve(at, trusted)?)?)),
            Self::Rdma(at) => {
                let all = resolve(at, trusted)?;
                all.iter().try_for_each(|address| ibverbs::check(address.ip()))?;
                Ok(Listener::Rdma(TcpListener::bind(&*all)?))
            }
            Self::Software(..) => Err(io::Error::new(io::ErrorKind::Unsupported, "both sides are in one process")),
        }
    }
}

/// A link whose server runs in this process.
fn software(seed: u64, fails: u64) -> io::Result<Arc<dyn Link>> {
    let (client, server) = crate::link::software::link(&Fabric { seed, pairs: PAIRS, latency_us: LATENCY_US, fails })?;
    let kernel = KernelConfig { cores: 1, spin_us: 20, cpus: Vec::new() };
    let config = ServerConfig { kernel, may_run: true };
    std::thread::Builder::new().name("server".into()).spawn(move || {
        let why = server::serve(server, &config);
        tracing::info!("the server has ended: {why}");
    })?;
    Ok(client)
}

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    /// See [`Address::Unix`].
    Unix(UnixListener, PathBuf),
    /// See [`Address::Tcp`].
    Tcp(TcpListener),
    /// See [`Address::Rdma`].
    Rdma(TcpListener),
}

/// A host that has connected.
#[derive(Debug)]
pub struct ConnectedHost {
    stream: OwnedFd,
    /// True if the link is made by RDMA.
    rdma: bool,
    /// The peer is known to be this user or root. Only then it may run programs here.
    pub known: bool,
}

impl ConnectedHost {
    /// Makes the link. With RDMA this waits for the peer's part.
    pub fn link(self) -> io::Result<Arc<dyn Link>> {
        if self.rdma {
            Ok(Arc::new(ibverbs::link(self.stream.into())?))
        } else {
            Ok(Arc::new(Stream::new(self.stream)?))
        }
    }
}

impl Listener {
    /// The address it listens at, with the port chosen if 0 was asked for.
    pub fn address(&self) -> io::Result<Address> {
        match self {
            Self::Unix(_, path) => Ok(Address::Unix(path.clone())),
            Self::Tcp(listener) => Ok(Address::Tcp(listener.local_addr()?.to_string())),
            Self::Rdma(listener) => Ok(Address::Rdma(listener.local_addr()?.to_string())),
        }
    }
    /// Waits for the next host. Where none can be accepted, because descriptors or memory have run out, it rests and
    /// tries again: the server's other hosts are not affected.
    pub fn accept(&self) -> ConnectedHost {
        loop {
            match self.try_accept() {
                Ok(Some(host)) => return host,
                Ok(None) => {}
                Err(error) => {
                    if REFUSALS.allows() {
                        tracing::warn!("a host waits, as it cannot be accepted: {error}");
                    }
                    std::thread::sleep(REST);
                }
            }
        }
    }

    /// Waits for a connection. `None` if it is somebody else's.
    fn try_accept(&self) -> io::Result<Option<ConnectedHost>> {
        match self {
            Self::Unix(listener, _) => {
                let stream = OwnedFd::from(listener.accept()?.0);
                let uid = rustix::net::sockopt::socket_peercred(&stream)?.uid;
                if uid.is_root() || uid == rustix::process::geteuid() {
                    return Ok(Some(ConnectedHost { stream, rdma: false, known: true }));
                }
                if REFUSALS.allows() {
                    tracing::warn!(uid = uid.as_raw(), "somebody else's connection is refused");
                }
                Ok(None)
            }
            Self::Tcp(listener) | Self::Rdma(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok(Some(ConnectedHost { stream: stream.into(), rdma: matches!(self, Self::Rdma(_)), known: false }))
            }
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

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in [
            "unix:/run/remote.sock",
            "tcp:127.0.0.1:7000",
            "tcp:[::1]:7000",
            "tcp:server.example:7000",
            "rdma:10.0.0.1:7000",
            "software-verbs:7:0",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in
            ["", "unix:", "software-verbs:x", "tcp:7000", "tcp:host", "rdma:host", "/run/remote.sock", "udp:1.2.3.4:5"]
        {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn without_trust_in_the_network_neither_tcp_nor_rdma_leaves_this_host() {
        for way in ["tcp", "rdma"] {
            let there = format!("{way}:192.0.2.1:7000").parse::<Address>().unwrap();
            let everywhere = format!("{way}:0.0.0.0:0").parse::<Address>().unwrap();
            assert!(there.connect(false).is_err_and(|error| error.to_string().contains("--trust-network")));
            assert!(everywhere.listen(false).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied));
        }
        let here = "tcp:127.0.0.1:0".parse::<Address>().unwrap().listen(false).unwrap();
        here.address().unwrap().connect(false).map(drop).unwrap();
    }

    #[test]
    fn without_an_adapter_rdma_says_what_is_missing() {
        // The loopback device has no adapter.
        let here = "rdma:127.0.0.1:0".parse::<Address>().unwrap();
        let why = here.listen(false).unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::NotFound);
        assert!(why.to_string().contains("RDMA"), "{why}");
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = Address::Rdma(nobody.local_addr().unwrap().to_string());
        assert!(there.connect(false).is_err_and(|error| error.to_string().contains("RDMA")));
    }

    #[test]
    fn a_socket_that_was_left_is_replaced_and_a_file_is_not() {
        let folder = std::env::temp_dir().join(format!("towpath-remote-address-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (left, file) = (folder.join("left"), folder.join("file"));
        drop(UnixListener::bind(&left).unwrap());
        assert!(Address::Unix(left).listen(false).is_ok());
        std::fs::write(&file, "text").unwrap();
        assert!(Address::Unix(file.clone()).listen(false).is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "text");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
