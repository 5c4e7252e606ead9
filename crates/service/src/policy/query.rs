//! An attempt, as rules see it.

use super::rule::Attempt;
use std::net::{IpAddr, SocketAddr};

/// An attempt, but for whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// What.
    pub attempt: Attempt,
    /// The peer (connect, accept).
    pub remote: Option<IpAddr>,
    /// The own address (listen, accept).
    pub local: Option<IpAddr>,
    /// The peer's port of a connect, else the listener's.
    pub port: u16,
    /// A listener on :: that takes IPv4 as well.
    pub dual: bool,
}

impl Query {
    /// A connect to this peer.
    pub fn connect(remote: SocketAddr) -> Self {
        let (remote, port) = (Some(remote.ip()), remote.port());
        Self { attempt: Attempt::Connect, remote, local: None, port, dual: false }
    }
    /// A listen on this address.
    pub fn listen(local: SocketAddr, dual: bool) -> Self {
        let (local, port) = (Some(local.ip()), local.port());
        Self { attempt: Attempt::Listen, remote: None, local, port, dual }
    }
    /// A SYN between these.
    pub fn accept(local: SocketAddr, remote: SocketAddr) -> Self {
        let (remote, port) = (Some(remote.ip()), local.port());
        Self { attempt: Attempt::Accept, remote, local: Some(local.ip()), port, dual: false }
    }
    /// In words, for the log.
    pub fn words(&self) -> String {
        let at = |address: Option<IpAddr>| {
            SocketAddr::new(address.unwrap_or(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED)), self.port).to_string()
        };
        match (self.attempt, self.remote) {
            (Attempt::Connect, remote) => format!("connect to {}", at(remote)),
            (Attempt::Accept, Some(remote)) => format!("accept from {remote} on {}", at(self.local)),
            (Attempt::Accept, None) => format!("accept on {}", at(self.local)),
            (Attempt::Listen, _) => format!("listen on {}", at(self.local)),
        }
    }
}
