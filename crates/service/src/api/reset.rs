//! Which connections are to end.

use crate::policy::cidr::Cidr;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// All that is said must be so of a connection. Nothing said means none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reset {
    /// Block of the peer's address.
    #[serde(default)]
    pub peer: Option<String>,
    /// Block of its own address.
    #[serde(default)]
    pub local: Option<String>,
    /// The port of either end.
    #[serde(default)]
    pub port: Option<u16>,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResetDone {
    /// Connections that were reset.
    pub reset: usize,
}

impl Reset {
    /// The test of a connection's local and remote end.
    pub fn chooses(&self) -> Result<impl Fn(SocketAddr, SocketAddr) -> bool + use<>, String> {
        let block = |text: &Option<String>| text.as_deref().map(str::parse::<Cidr>).transpose();
        let (peer, own, port) = (block(&self.peer)?, block(&self.local)?, self.port);
        if peer.is_none() && own.is_none() && port.is_none() {
            return Err("name a peer, a local address or a port".into());
        }
        Ok(move |local: SocketAddr, remote: SocketAddr| {
            peer.is_none_or(|block| block.contains(remote.ip()))
                && own.is_none_or(|block| block.contains(local.ip()))
                && port.is_none_or(|port| port == local.port() || port == remote.port())
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn all_that_is_said_must_be_so_and_something_must_be_said() {
        let (ours, theirs) = ("10.0.0.1:40000".parse().unwrap(), "192.0.2.7:25".parse().unwrap());
        let chosen = |peer: &str, local: &str, port: u16| {
            let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            let reset = Reset { peer: text(peer), local: text(local), port: (port != 0).then_some(port) };
            reset.chooses().map(|chooses| chooses(ours, theirs))
        };
        assert!(chosen("", "", 0).is_err() && chosen("300.0.0.1", "", 0).is_err());
        for (peer, local, port) in [("192.0.2.0/24", "", 0), ("", "10.0.0.1", 0), ("", "", 25), ("", "", 40000)] {
            assert_eq!(chosen(peer, local, port), Ok(true), "{peer} {local} {port}");
        }
        for (peer, local, port) in [("10.0.0.0/8", "", 0), ("192.0.2.7", "192.0.2.7", 0), ("192.0.2.7", "", 26)] {
            assert_eq!(chosen(peer, local, port), Ok(false), "{peer} {local} {port}");
        }
    }
}
