//! Connects to a server.

use crate::address::Address;
use crate::link::software::Fabric;
use crate::link::stream::Stream;
use crate::link::tls::Tls;
use crate::link::{Broken, Link, ibverbs};
use crate::peer;
use crate::security::Security;
use crate::server::{self, ServerConfig};
use rustix::fd::OwnedFd;
use std::io;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use towpath_kernel::KernelConfig;
use towpath_runtime::OrphanLimits;

/// Queue pairs of software verbs.
const PAIRS: u32 = 4;
/// Longest time of a write over software verbs, µs.
const LATENCY_US: u64 = 200;

/// Connects. Returns when the server is known to be the one that is meant. `connected` is called once if there is a
/// connection: over TCP before a byte of the server is read, and otherwise before the first thread.
pub fn connect(address: &Address, security: &Security, connected: impl FnOnce()) -> Result<Arc<dyn Link>, Broken> {
    let token = security.of_link(address)?;
    let stream = match address {
        Address::Unix(path) => unix(path)?.into(),
        Address::Tcp(at) => OwnedFd::from(tcp(at)?),
        Address::Rdma(at) => {
            let link = ibverbs::link(tcp(at)?)?;
            connected();
            return Ok(Arc::new(link));
        }
        Address::Software(seed, fails) => {
            connected();
            return Ok(software(*seed, *fails)?);
        }
    };
    connected();
    Ok(match token {
        Some(token) => Arc::new(Stream::over(Tls::connect(stream, token)?)),
        None => Arc::new(Stream::new(stream)?),
    })
}

fn tcp(at: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(at)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A socket file can be anybody's: its name proves nothing about who listens there.
fn unix(path: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(path)?;
    let uid = peer::uid(&stream)?;
    if peer::is_believed(uid) {
        return Ok(stream);
    }
    let why =
        format!("uid {uid} listens there, and could read and change everything; run the server as this user or root");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// A link whose server runs in this process.
fn software(seed: u64, fails: u64) -> io::Result<Arc<dyn Link>> {
    let (client, server) = crate::link::software::link(&Fabric { seed, pairs: PAIRS, latency_us: LATENCY_US, fails })?;
    let kernel = KernelConfig { cores: 1, spin_us: 20, cpus: Vec::new(), orphans: OrphanLimits::default() };
    let config = ServerConfig { kernel, may_run: true };
    std::thread::Builder::new().name("server".into()).spawn(move || {
        let why = server::serve(server, &config);
        tracing::info!("the server has ended: {why}");
    })?;
    Ok(client)
}
