//! Rules about the peers of a listener, for connections that the kernel would accept for it.

use std::net::IpAddr;

/// Most rules about one listener.
pub const MAX_PEER_RULES: usize = 128;

/// A block of addresses of one family: those with the same first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// One of its addresses; never an IPv4 address in the form of IPv6.
    pub addr: IpAddr,
    /// How many bits are the same.
    pub bits: u8,
}

/// One rule. It is about peers and own addresses in these blocks; `None`: about all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerRule {
    /// The peer's address.
    pub remote: Option<Block>,
    /// The address that the peer connects to.
    pub local: Option<Block>,
    /// Is such a peer accepted?
    pub verdict: PeerVerdict,
}

/// The verdict of a rule about peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerVerdict {
    /// Its SYN is dropped, and counted under this number, which is never 0.
    Refuse(u64),
    /// The rule at this later place of the list is asked next. At the end of the list the kernel accepts the peer.
    GoOn(usize),
}

/// The rules about the peers of one listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerRules {
    /// In their order, [`MAX_PEER_RULES`] at most. None: the kernel accepts everybody.
    pub rules: Vec<PeerRule>,
    /// The listener may have accelerated connections only. The rules refuse everybody.
    pub only_accelerated: bool,
}

impl PeerRules {
    /// Nobody is accepted. Each refusal is counted under this number.
    pub fn nobody(counted_as: u64) -> Self {
        let rules = vec![PeerRule { remote: None, local: None, verdict: PeerVerdict::Refuse(counted_as) }];
        Self { rules, only_accelerated: false }
    }
}
