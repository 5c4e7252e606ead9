//! The line of a flow's identity.

use super::bits::{AckDebt, Agreed};
use super::permit::Writes;
use super::tcb::{Received, Room};
use super::words::{Counter, Word};
use crate::flow::{FourTuple, Link, PortId};
use std::net::Ipv4Addr;
use towpath_wire::template::{self, Template};
use zerocopy::FromZeros;

/// The template of a flow's headers, its rings, and what is seldom touched. One line.
#[derive(Debug, Default, FromZeros)]
#[repr(C, align(64))]
pub(crate) struct Identity {
    /// The next hop's MAC address, then ours. These words and those up to `addresses` are as they lie in a frame.
    macs: Counter<Agreed>,
    last_mac: Word<Agreed>,
    /// Local port, then the peer's.
    ports: Word<Agreed>,
    /// Local address, then the peer's, of an IPv4 flow; those of IPv6 are in [`super::Addresses`].
    addresses: Counter<Agreed>,
    /// [`template::sums`] of an IPv4 flow.
    sums: Word<Agreed>,
    /// From the low byte up: port number, owner (see [`Identity::is_owned_by`]), time to live, type of service.
    route: Word<Agreed>,
    /// Send ring size in bytes.
    pub tx_bytes: Word<Agreed>,
    /// Receive ring size in bytes.
    pub rx_bytes: Word<Room>,
    /// Sequence number of position 0 of the send ring.
    pub snd_start: Word<Agreed>,
    /// Sequence number of position 0 of the receive ring; moves when data are discarded unread.
    pub rcv_start: Word<Room>,
    /// Added to the millisecond clock.
    pub ts_offset: Word<Agreed>,
    /// errno shown to the application (one byte), both window shifts (four bits each), and in the high half the class.
    errno: Word<Agreed>,
    /// When the delayed acknowledgement became owed, µs modulo 2^32.
    pub owed_at: Word<AckDebt>,
    /// When TS.Recent was set, in units of 2^20 µs.
    pub ts_recent_at: Word<Received>,
}

/// The number of flow groups that the owner's byte can tell apart.
pub(crate) const FLOW_GROUPS: usize = 255;

impl Identity {
    /// errno shown to the application.
    pub(crate) fn errno(&self) -> i32 {
        (self.errno.get() & 0xff) as i32
    }
    /// Linux has no errno above 133.
    pub(crate) fn set_errno<S: Writes<Agreed>>(&self, by: S, errno: i32) {
        self.errno.set(by, self.errno.get() & !0xff | (errno as u32 & 0xff));
    }
    /// The peer's window shift (RFC 7323 §2), up to 14.
    #[inline]
    pub(crate) fn peer_shift(&self) -> u32 {
        self.errno.get() >> 8 & 15
    }
    /// Our window shift.
    #[inline]
    pub(crate) fn shift(&self) -> u32 {
        self.errno.get() >> 12 & 15
    }
    pub(crate) fn set_shifts<S: Writes<Agreed>>(&self, by: S, peer: u8, ours: u8) {
        let shifts = u32::from(peer.min(14)) << 8 | u32::from(ours.min(14)) << 12;
        self.errno.set(by, self.errno.get() & !0xff00 | shifts);
    }
    /// `FlowSetup::class`.
    #[inline]
    pub(crate) fn class(&self) -> u16 {
        (self.errno.get() >> 16) as u16
    }
    pub(crate) fn set_class<S: Writes<Agreed>>(&self, by: S, class: u16) {
        self.errno.set(by, self.errno.get() & 0xffff | u32::from(class) << 16);
    }
    /// The addresses and ports of an IPv4 flow; of one with IPv6 the ports.
    pub(crate) fn tuple(&self) -> FourTuple {
        let [a, b, c, d] = self.ports.get().to_ne_bytes();
        let [e, f, g, h, i, j, k, l] = self.addresses.get().to_ne_bytes();
        FourTuple {
            local: Ipv4Addr::new(e, f, g, h).into(),
            local_port: u16::from_be_bytes([a, b]),
            remote: Ipv4Addr::new(i, j, k, l).into(),
            remote_port: u16::from_be_bytes([c, d]),
        }
    }
    /// The way out, without its VLAN.
    pub(crate) fn link(&self) -> Link {
        let [a, b, c, d, e, f, g, h] = self.macs.get().to_ne_bytes();
        let [i, j, k, l] = self.last_mac.get().to_ne_bytes();
        Link { port: self.port(), source: [g, h, i, j, k, l], destination: [a, b, c, d, e, f], vlan: None }
    }
    pub(crate) fn set_link<S: Writes<Agreed>>(&self, by: S, link: &Link) {
        let ([g, h, i, j, k, l], [a, b, c, d, e, f]) = (link.source, link.destination);
        self.macs.set(by, u64::from_ne_bytes([a, b, c, d, e, f, g, h]));
        self.last_mac.set(by, u32::from_ne_bytes([i, j, k, l]));
        self.route.set(by, self.route.get() & !0xff | u32::from(link.port.0));
    }
    /// Brings the stored sums into line with the words above.
    fn sum<S: Writes<Agreed>>(&self, by: S) {
        let (tos, ttl) = self.service();
        let [a, b, c, d, e, f, g, h] = self.addresses.get().to_ne_bytes();
        let (local, remote) = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]));
        self.sums.set(by, template::sums(local, remote, tos, ttl));
    }
    #[inline]
    pub(crate) fn port(&self) -> PortId {
        PortId(self.route.get() as u8)
    }
    /// The flow is installed in the fast path of this flow group.
    #[inline]
    pub(crate) fn is_owned_by(&self, flow_group: usize) -> bool {
        (self.route.get() >> 8 & 0xff) as usize == flow_group + 1
    }
    /// `None` = the flow is not installed. Flow groups are numbered from 0 to [`FLOW_GROUPS`] - 1.
    pub(crate) fn set_owner<S: Writes<Agreed>>(&self, by: S, flow_group: Option<usize>) {
        let owner = flow_group.map_or(0, |number| number as u32 + 1);
        self.route.set(by, self.route.get() & !0xff00 | (owner & 0xff) << 8);
    }
    /// Type of service and time to live of its packets.
    #[inline]
    pub(crate) fn service(&self) -> (u8, u8) {
        let [.., ttl, tos] = self.route.get().to_le_bytes();
        (tos, ttl)
    }
    /// The ECN bits are not the application's (RFC 9293 MUST-48, RFC 3168 §5).
    pub(crate) fn set_service<S: Writes<Agreed>>(&self, by: S, tos: u8, ttl: u8) {
        let high = u32::from(tos & !3) << 24 | u32::from(ttl) << 16;
        self.route.set(by, self.route.get() & 0xffff | high);
        self.sum(by);
    }
    pub(crate) fn set_addresses<S: Writes<Agreed>>(&self, by: S, local: Ipv4Addr, remote: Ipv4Addr) {
        let ([a, b, c, d], [e, f, g, h]) = (local.octets(), remote.octets());
        self.addresses.set(by, u64::from_ne_bytes([a, b, c, d, e, f, g, h]));
        self.sum(by);
    }
    pub(crate) fn set_ports<S: Writes<Agreed>>(&self, by: S, local: u16, remote: u16) {
        let ([a, b], [c, d]) = (local.to_be_bytes(), remote.to_be_bytes());
        self.ports.set(by, u32::from_ne_bytes([a, b, c, d]));
    }
}

/// The template of an IPv4 flow's frames without a tag.
impl Template for Identity {
    #[inline(always)]
    fn macs(&self) -> u64 {
        self.macs.get()
    }
    #[inline(always)]
    fn last_mac(&self) -> u32 {
        self.last_mac.get()
    }
    #[inline(always)]
    fn addresses(&self) -> u64 {
        self.addresses.get()
    }
    #[inline(always)]
    fn ports(&self) -> u32 {
        self.ports.get()
    }
    #[inline(always)]
    fn service(&self) -> (u8, u8) {
        Self::service(self)
    }
    #[inline(always)]
    fn sums(&self) -> u32 {
        self.sums.get()
    }
}
