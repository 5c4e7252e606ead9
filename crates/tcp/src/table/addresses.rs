//! The rarely used line: IPv6 addresses, VLAN, rare events.

use super::bits::{AckDebt, Agreed};
use super::permit::Writes;
use super::tcb::Congestion;
use super::words::Word;
use std::net::Ipv6Addr;
use zerocopy::FromZeros;

/// Both addresses of an IPv6 flow (`bits::V6`), and the VLAN of a tagged one. One line, which untagged IPv4 flows touch
/// only when something is lost or forged.
#[derive(Debug, Default, FromZeros)]
#[repr(C, align(64))]
pub(crate) struct Addresses {
    local: [Word<Agreed>; 4],
    remote: [Word<Agreed>; 4],
    /// VLAN number (`bits::VLAN`).
    pub vlan: Word<Agreed>,
    /// When a challenge ACK was sent last, ms modulo 2^32; 0 = never.
    pub challenged_at_ms: Word<AckDebt>,
    /// End of what had been sent when the last loss was seen (RFC 6582), if `bits::RECOVER_SET`.
    pub recover: Word<Congestion>,
    /// Outstanding bytes that the peer reports, if `bits::SCORED`; the rest of `Recovery::left` is lost.
    pub sacked: Word<Congestion>,
}

impl Addresses {
    pub(crate) fn local(&self) -> Ipv6Addr {
        get(&self.local)
    }
    pub(crate) fn remote(&self) -> Ipv6Addr {
        get(&self.remote)
    }
    pub(crate) fn set<S: Writes<Agreed>>(&self, by: S, local: Ipv6Addr, remote: Ipv6Addr) {
        for (words, address) in [(&self.local, local), (&self.remote, remote)] {
            for (i, word) in words.iter().enumerate() {
                word.set(by, (address.to_bits() >> (32 * i)) as u32);
            }
        }
    }
}

fn get(words: &[Word<Agreed>; 4]) -> Ipv6Addr {
    Ipv6Addr::from_bits((0..4).fold(0, |bits, i| bits | u128::from(words[i].get()) << (32 * i)))
}
