//! The line of what does not fit the identity's words: IPv6 addresses, VLANs, what seldom happens.

use super::words::Word;
use std::net::Ipv6Addr;

/// Both addresses of an IPv6 flow (`bits::V6`), and the VLAN of a tagged one. One line, untouched by untagged IPv4 flows.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Addresses {
    local: [Word; 4],
    remote: [Word; 4],
    /// VLAN number (`bits::VLAN`).
    pub vlan: Word,
    /// When a challenge ACK was sent last, ms modulo 2^32; 0 = never. Here because it is as rare.
    pub challenged_at_ms: Word,
    /// Outstanding bytes that the peer reports, if `bits::SCORED`; the rest of `Recovery::left` is lost.
    pub sacked: Word,
}

impl Addresses {
    pub(crate) fn local(&self) -> Ipv6Addr {
        get(&self.local)
    }
    pub(crate) fn remote(&self) -> Ipv6Addr {
        get(&self.remote)
    }
    pub(crate) fn set(&self, local: Ipv6Addr, remote: Ipv6Addr) {
        for (words, address) in [(&self.local, local), (&self.remote, remote)] {
            for (i, word) in words.iter().enumerate() {
                word.set((address.to_bits() >> (32 * i)) as u32);
            }
        }
    }
}

fn get(words: &[Word; 4]) -> Ipv6Addr {
    Ipv6Addr::from_bits((0..4).fold(0, |bits, i| bits | u128::from(words[i].get()) << (32 * i)))
}
