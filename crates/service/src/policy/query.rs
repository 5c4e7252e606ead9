//! An attempt, as rules see it: what the stack asks about.

use std::net::{IpAddr, SocketAddr};

/// The kind of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// An application connects.
    Connect,
    /// An application listens.
    Listen,
    /// A peer's SYN arrives for a listener.
    Accept,
}

impl Attempt {
    /// As written in rules.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Listen => "listen",
            Self::Accept => "accept",
        }
    }
}

/// An attempt, without the client that makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// Its kind.
    pub attempt: Attempt,
    /// The peer (connect, accept).
    pub remote: Option<IpAddr>,
    /// The listener's address (listen, accept).
    pub local: Option<IpAddr>,
    /// The peer's port of a connect; otherwise the listener's.
    pub port: u16,
    /// A listener on :: that takes IPv4 too.
    pub dual: bool,
}

impl Query {
    /// A connect to a peer.
    pub fn connect(remote: SocketAddr) -> Self {
        let (remote, port) = (Some(remote.ip()), remote.port());
        Self { attempt: Attempt::Connect, remote, local: None, port, dual: false }
    }
    /// A listen on an address.
    pub fn listen(local: SocketAddr, dual: bool) -> Self {
        let (local, port) = (Some(local.ip()), local.port());
        Self { attempt: Attempt::Listen, remote: None, local, port, dual }
    }
    /// A SYN from this peer for this listener.
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

/// What `towpath policy test` asks about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// An attempt.
    Attempt(Query),
    /// A join across network namespaces.
    Join(JoinQuery),
}

/// May a connection from one stack's namespace be joined to a listener in another's?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinQuery {
    /// The stack of the connecting program's namespace.
    pub from: String,
    /// The stack of the listener's namespace.
    pub to: String,
    /// The listener.
    pub listener: SocketAddr,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_attempt_is_about_its_peer_its_listener_and_one_port() {
        let (local, remote): (SocketAddr, SocketAddr) = ("[::]:80".parse().unwrap(), "10.0.0.1:4000".parse().unwrap());
        let (at, of) = (Some(local.ip()), Some(remote.ip()));
        let query = |attempt, remote, local, port, dual| Query { attempt, remote, local, port, dual };
        assert_eq!(Query::connect(remote), query(Attempt::Connect, of, None, 4000, false));
        assert_eq!(Query::accept(local, remote), query(Attempt::Accept, of, at, 80, false));
        for dual in [true, false] {
            assert_eq!(Query::listen(local, dual), query(Attempt::Listen, None, at, 80, dual));
        }
    }

    #[test]
    fn an_attempt_is_said_with_the_address_and_port_that_it_is_about() {
        let (local, remote) = ("10.0.0.9:80".parse().unwrap(), "[fd00::1]:4000".parse().unwrap());
        let accept = Query::accept(local, remote);
        for (query, words) in [
            (Query::connect(remote), "connect to [fd00::1]:4000"),
            (Query::listen(local, false), "listen on 10.0.0.9:80"),
            (accept, "accept from fd00::1 on 10.0.0.9:80"),
            (Query { remote: None, ..accept }, "accept on 10.0.0.9:80"),
            (Query { local: None, ..Query::listen(local, false) }, "listen on 0.0.0.0:80"),
        ] {
            assert_eq!(query.words(), words);
        }
    }
}
