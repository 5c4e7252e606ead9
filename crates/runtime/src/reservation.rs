//! A port that is reserved for a command.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

/// An address and port that a kernel socket of the service holds, so that no other socket gets them. Connections may use
/// them as their local end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The address; unspecified = all of its family.
    pub addr: IpAddr,
    /// The port.
    pub port: u16,
    /// `addr` is `::`, and IPv4 addresses are held, too.
    pub dual: bool,
}

impl Grant {
    /// Does it allow a CONNECT command from this local end to this remote address?
    pub fn allows_connect(&self, addr: IpAddr, port: u16, remote: IpAddr) -> bool {
        // A socket on `::` connects to IPv4 addresses from an IPv4 address.
        let held = self.addr.is_ipv4() || remote.is_ipv6() || self.dual;
        held && (self.addr, self.port) == (addr, port)
    }
}

/// A kernel socket of a client, which listens. The kernel names it for each SYN, so no port is held for it.
///
/// The stack does not get the descriptor, because a program can make any call on a socket that it shares wait. It does so by
/// `SO_LINGER`, or by the memory of a call that holds the socket's lock. The service's thread for that client has attached
/// [`crate::Stack::listener_filter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerProof {
    /// The kernel's cookie of the socket (`SO_COOKIE`), by which the filter names it.
    pub cookie: u64,
    /// Its address; unspecified = all of its family.
    pub addr: IpAddr,
    /// Its port.
    pub port: u16,
    /// `addr` is `::`, and it gets IPv4 connections, too.
    pub dual: bool,
}

impl ListenerProof {
    /// Does it allow a LISTEN command for this address? `dual`: for IPv4, too.
    pub fn allows_listen(&self, addr: IpAddr, port: u16, dual: bool) -> bool {
        (self.addr, self.port) == (addr, port) && (self.dual || !dual)
    }

    /// Does it get connections to this address of one host?
    pub fn covers(&self, addr: IpAddr, port: u16) -> bool {
        let family = self.addr.is_ipv4() == addr.is_ipv4() || self.dual;
        self.port == port && (self.addr == addr || self.addr.is_unspecified() && family)
    }
}

/// A client of another network namespace may be joined to a listener of this one. A rule allows it, the kernel of that
/// namespace leads there, and a socket of the service holds the port there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinProof {
    /// The other namespace, as SO_NETNS_COOKIE names it.
    pub from: u64,
    /// The address that its kernel chooses, and the port that is held.
    pub local: SocketAddr,
    /// The listener's address and port.
    pub listener: SocketAddr,
    /// The device of this namespace by which a SYN would come.
    pub interface: u32,
}

/// The service's proof that a client has a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The stack does not ask for one ([`crate::Stack::needs_proof`]).
    NotAsked,
    /// The kernel has vouched for this.
    Granted(Grant),
    /// The kernel has vouched for this listener, and will for each of its SYNs.
    Listener(ListenerProof),
    /// It may be joined to a listener of this namespace, and has a port in another one.
    Joined(JoinProof),
    /// The client does not have it. This is the answer to its command.
    Refused(i32),
}

/// A reserved port. Dropping it frees the port.
#[derive(Debug)]
pub struct Reservation {
    /// The service's own socket, which holds the port. It is closed first: the port is free when `held` is dropped.
    pub port: Option<OwnedFd>,
    /// The descriptor that stands for the reservation.
    pub held: OwnedFd,
    /// What is known of it.
    pub proof: Proof,
}

impl From<OwnedFd> for Reservation {
    fn from(held: OwnedFd) -> Self {
        Self { port: None, held, proof: Proof::NotAsked }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn a_proof_covers_exactly_what_the_kernel_has_said() {
        let (any, one) = (IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from([10, 0, 0, 1]));
        let grant = Grant { addr: one, port: 80, dual: false };
        assert!(grant.allows_connect(one, 80, any) && !grant.allows_connect(one, 81, any));
        let six = Grant { addr: Ipv6Addr::UNSPECIFIED.into(), ..grant };
        assert!(six.allows_connect(six.addr, 80, six.addr) && !six.allows_connect(six.addr, 80, one), "not from IPv4");
        assert!(Grant { dual: true, ..six }.allows_connect(six.addr, 80, one));
        let listener = ListenerProof { cookie: 7, addr: one, port: 80, dual: false };
        assert!(listener.allows_listen(one, 80, false) && !listener.allows_listen(one, 81, false));
        assert!(!listener.allows_listen(any, 80, false), "one address is not all of them");
        let six = ListenerProof { addr: Ipv6Addr::UNSPECIFIED.into(), ..listener };
        assert!(six.allows_listen(six.addr, 80, false) && !six.allows_listen(six.addr, 80, true));
        assert!(six.covers(Ipv6Addr::LOCALHOST.into(), 80) && !six.covers(one, 80), "not from IPv4");
        let both = ListenerProof { dual: true, ..six };
        assert!(both.allows_listen(six.addr, 80, true) && both.covers(one, 80) && !both.covers(one, 81));
        assert!(listener.covers(one, 80) && !listener.covers([10, 0, 0, 2].into(), 80));
        assert!(ListenerProof { addr: any, ..listener }.covers(one, 80));
    }
}
