//! A client that speaks the registration protocol itself, without the library.

use crate::Service;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use towpath_ring::Region;
use towpath_ring::control::{self, Reply, Request};

/// A client that the service has admitted.
pub struct RawClient {
    /// The connection to the service. The client ends with it.
    pub socket: OwnedFd,
    /// The region's memfd.
    pub memfd: OwnedFd,
    /// The region.
    pub region: Region,
    /// One doorbell for each flow group, then the command queue's.
    pub doorbells: Vec<OwnedFd>,
}

impl RawClient {
    /// Registers with the service.
    pub fn new(service: &Service) -> Self {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let socket = socket.expect("socket");
        rustix::net::connect(&socket, &SocketAddrUnix::new(&service.socket).expect("path")).expect("connect");
        let hello = Request::Hello { version: towpath_ring::layout::VERSION, join: 0 };
        control::send_request(socket.as_fd(), &hello, &[]).expect("hello");
        let (Reply::Welcome { geometry, .. }, mut doorbells) = control::recv_reply(socket.as_fd()).expect("welcome")
        else {
            panic!("refused");
        };
        let memfd = doorbells.remove(0);
        let region = Region::map(memfd.as_fd(), geometry).expect("region");
        Self { socket, memfd, region, doorbells }
    }
}
