//! RDMA verbs of an adapter, by `libibverbs`: reliable queue pairs (RC) over RoCE. Two sides find each other by TCP
//! ([`exchange`]). The adapter is the one that has this side's IP address of that connection ([`port`]). The
//! connection stays open, and the link ends with it: so the end of a process is seen at once, not after
//! retransmissions.

mod abi;
mod adapter;
mod exchange;
mod library;
mod port;

use crate::link::pairs::Pairs;
use adapter::Adapter;
use port::{ADAPTERS, Port};
use std::io;
use std::net::{IpAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Queue pairs of a link.
const PAIRS: u32 = 4;

/// Checks that the library is installed, and that an adapter has this address.
pub fn check(address: IpAddr) -> io::Result<()> {
    library::Library::get()?;
    if !address.is_unspecified() {
        Port::of(Path::new(ADAPTERS), address)?;
    }
    Ok(())
}

/// Makes a link with the peer of a TCP connection, which does the same.
pub fn link(stream: TcpStream) -> io::Result<Pairs> {
    let until = Instant::now() + exchange::SEND_TIMEOUT;
    let port = Port::of(Path::new(ADAPTERS), stream.local_addr()?.ip())?;
    let adapter = Arc::new(Adapter::open(port, PAIRS, stream.try_clone()?)?);
    let pairs = Pairs::new(Arc::clone(&adapter) as Arc<_>)?;
    let other = exchange::introduce(&stream, &adapter.side(pairs.introduction()), until)?;
    adapter.connect(&other)?;
    pairs.meet(other.directory);
    exchange::ready(&stream, until)?;
    Ok(pairs)
}
