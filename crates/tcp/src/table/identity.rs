//! The line that says who a flow is.

use super::words::Word;
use crate::buffers::PortId;
use crate::flow::{FourTuple, Link};
use std::net::Ipv4Addr;

/// Who a flow is: the template of its headers, its rings, and what is seldom touched. One line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Identity {
    /// Addresses of an IPv4 flow; those of IPv6 are in [`super::Addresses`].
    local: Word,
    remote: Word,
    /// Local port in the high half.
    ports: Word,
    macs: [Word; 3],
    /// From the low byte up: port number, owning core, type of service, time to live.
    place: Word,
    /// Send ring size in bytes.
    pub tx_bytes: Word,
    /// Receive ring size in bytes.
    pub rx_bytes: Word,
    /// Sequence number of position 0 of the send ring.
    pub snd_start: Word,
    /// Sequence number of position 0 of the receive ring; moves when data are discarded unread.
    pub rcv_start: Word,
    /// Added to the millisecond clock.
    pub ts_offset: Word,
    /// errno shown to the application, and in the high half the group.
    errno: Word,
    /// End of what had been sent when the last loss was seen (RFC 6582), if `bits::RECOVER_SET`.
    pub recover: Word,
    /// When the delayed acknowledgement became owed, µs modulo 2^32.
    pub owed_at: Word,
    /// When TS.Recent was set, in units of 2^20 µs.
    pub ts_recent_at: Word,
}

impl Identity {
    /// errno shown to the application.
    pub(crate) fn errno(&self) -> i32 {
        (self.errno.get() & 0xffff) as i32
    }
    pub(crate) fn set_errno(&self, errno: i32) {
        self.errno.set(self.errno.get() & !0xffff | (errno as u32 & 0xffff));
    }
    /// `FlowSetup::group`.
    #[inline]
    pub(crate) fn group(&self) -> u16 {
        (self.errno.get() >> 16) as u16
    }
    pub(crate) fn set_group(&self, group: u16) {
        self.errno.set(self.errno.get() & 0xffff | u32::from(group) << 16);
    }
    /// The addresses and ports of an IPv4 flow; of one with IPv6 the ports.
    #[inline]
    pub(crate) fn tuple(&self) -> FourTuple {
        let (ports, local, remote) = (self.ports.get(), self.local.get(), self.remote.get());
        FourTuple {
            local: Ipv4Addr::from_bits(local).into(),
            local_port: (ports >> 16) as u16,
            remote: Ipv4Addr::from_bits(remote).into(),
            remote_port: ports as u16,
        }
    }
    /// The way out, without its VLAN.
    #[inline]
    pub(crate) fn link(&self) -> Link {
        let [a, b, c] = &self.macs;
        let (a, b, c) = (u64::from(a.get()), u64::from(b.get()), u64::from(c.get()));
        let mac = |bits: u64| {
            let [_, _, mac @ ..] = bits.to_be_bytes();
            mac
        };
        Link { port: self.port(), source: mac(a << 16 | b >> 16), destination: mac((b & 0xffff) << 32 | c), vlan: None }
    }
    pub(crate) fn set_link(&self, link: &Link) {
        let (s, d) = (link.source, link.destination);
        self.macs[0].set(u32::from_be_bytes([s[0], s[1], s[2], s[3]]));
        self.macs[1].set(u32::from_be_bytes([s[4], s[5], d[0], d[1]]));
        self.macs[2].set(u32::from_be_bytes([d[2], d[3], d[4], d[5]]));
        self.place.set(self.place.get() & !0xff | u32::from(link.port.0));
    }
    #[inline]
    pub(crate) fn port(&self) -> PortId {
        PortId(self.place.get() as u8)
    }
    #[inline]
    pub(crate) fn core(&self) -> u32 {
        self.place.get() >> 8 & 0xff
    }
    pub(crate) fn set_core(&self, core: usize) {
        self.place.set(self.place.get() & !0xff00 | (core as u32 & 0xff) << 8);
    }
    /// Type of service and time to live of its packets.
    #[inline]
    pub(crate) fn service(&self) -> (u8, u8) {
        let [ttl, tos, ..] = self.place.get().to_be_bytes();
        (tos, ttl)
    }
    /// The ECN bits are not the application's (RFC 9293 MUST-48, RFC 3168 §5).
    pub(crate) fn set_service(&self, tos: u8, ttl: u8) {
        let high = u32::from(ttl) << 24 | u32::from(tos & !3) << 16;
        self.place.set(self.place.get() & 0xffff | high);
    }
    pub(crate) fn set_addresses(&self, local: Ipv4Addr, remote: Ipv4Addr) {
        self.local.set(local.to_bits());
        self.remote.set(remote.to_bits());
    }
    pub(crate) fn set_ports(&self, local: u16, remote: u16) {
        self.ports.set(u32::from(local) << 16 | u32::from(remote));
    }
}
