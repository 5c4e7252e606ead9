//! RDMA verbs of an adapter, by `libibverbs`: reliable queue pairs (RC) over RoCE. Two sides find each other by TCP ([`exchange`]); the adapter
//! is the one that has the IP address which that connection has here ([`port`]). The connection stays open, and when it ends, so does the
//! link: a process's end is seen at once, not when packets have been sent in vain.

mod abi;
mod adapter;
mod exchange;
mod library;
mod port;

use crate::pairs::Pairs;
use adapter::Adapter;
use port::{ADAPTERS, Port};
use std::io;
use std::net::{IpAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Queue pairs of a link.
const PAIRS: u32 = 4;

/// Is there what it takes here: the library, and an adapter that has this address?
pub fn check(address: IpAddr) -> io::Result<()> {
    library::Library::get()?;
    if !address.is_unspecified() {
        Port::of(Path::new(ADAPTERS), address)?;
    }
    Ok(())
}

/// A link with who is at the other end of a TCP connection and does the same.
pub fn link(stream: TcpStream) -> io::Result<Pairs> {
    let until = Instant::now() + exchange::PATIENCE;
    let port = Port::of(Path::new(ADAPTERS), stream.local_addr()?.ip())?;
    let adapter = Arc::new(Adapter::open(port, PAIRS, stream.try_clone()?)?);
    let pairs = Pairs::new(Arc::clone(&adapter) as Arc<_>)?;
    let other = exchange::introduce(&stream, &adapter.side(pairs.introduction()), until)?;
    adapter.connect(&other)?;
    pairs.meet(other.directory);
    exchange::ready(&stream, until)?;
    Ok(pairs)
}
