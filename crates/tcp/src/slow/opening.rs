//! A connection in its handshake, and the negotiated values: sequence numbers, segment size, window scale, timestamps.

use super::socket_options::service;
use crate::flow::{Ecn, FlowId, FlowSetup, FourTuple, Link, Owner, RingBytes, SocketOptions, Window};
use crate::seq::Seq;
use crate::time::Micros;
use std::net::{IpAddr, Ipv4Addr};
use towpath_wire::options::MAX_WINDOW_SCALE;
use towpath_wire::{IPV4_BYTES, IPV6_BYTES, Options, Segment, TCP_BYTES, TIMESTAMP_BYTES, Timestamps, flags};

/// MSS of a peer that names none, over IPv4 and IPv6 (RFC 9293 §3.7.1, MUST-15).
const DEFAULT_MSS: (u16, u16) = (536, 1220);
/// Smallest MSS that is accepted of a peer (Linux: `tcp_min_snd_mss`), timestamps included. It must not make us send a
/// packet per byte.
const MIN_PEER_MSS: u16 = 48;
/// Smallest MSS that is announced (Linux: `TCP_MIN_MSS`).
const MIN_MSS: u16 = 88;
/// Packet headers without options, over IPv4 and IPv6.
const HEADERS: (u16, u16) = ((IPV4_BYTES + TCP_BYTES) as u16, (IPV6_BYTES + TCP_BYTES) as u16);

/// The state of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpeningState {
    /// No SYN has been sent, as the next hop is being resolved.
    Resolving,
    /// SYN sent.
    SynSent,
    /// SYN received, SYN-ACK sent.
    SynReceived,
}

/// The link to the peer, and the MTU of the path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    /// Port and MAC addresses.
    pub link: Link,
    /// MTU in bytes.
    pub mtu: u16,
}

/// A connection in its handshake.
#[derive(Clone, Debug)]
pub(super) struct Opening {
    /// The handshake's state.
    pub state: OpeningState,
    /// The listener, if opened passively. It tells passive from active opens in SYN-RECEIVED, too (RFC 9293 MUST-11).
    pub listener: Option<Owner>,
    /// Over IPv6?
    pub v6: bool,
    /// Nagle off.
    pub nodelay: bool,
    /// The socket's options.
    pub options: SocketOptions,
    /// Largest MSS of the configuration; 0 = no limit.
    pub mss_clamp: u16,
    /// The address and port that the application has bound the socket to; 0 = any.
    pub bound_to: (IpAddr, u16),
    /// The path; `None` while resolving.
    pub path: Option<Path>,
    /// Ring sizes, send and receive, in bytes.
    pub ring_bytes: RingBytes,
    /// Our initial sequence number.
    pub iss: Seq,
    /// The peer's.
    pub irs: Seq,
    /// Offset of our timestamps from the millisecond clock.
    pub ts_offset: u32,
    /// Timestamps: offered; after the peer's SYN: agreed.
    pub timestamps: bool,
    /// SACK: offered; after the peer's SYN: agreed.
    pub sack: bool,
    /// ECN: requested, or acceptable; after the peer's SYN: agreed.
    pub ecn: bool,
    /// Use DCTCP, which always requests and accepts ECN (RFC 8257 §3.1)?
    pub dctcp: bool,
    /// TS.Recent.
    pub ts_recent: u32,
    /// Our window shift: offered; after the peer's SYN: agreed, else `None`.
    pub our_shift: Option<u8>,
    /// The peer's window shift, if agreed.
    pub peer_shift: Option<u8>,
    /// The peer's MSS.
    pub peer_mss: u16,
    /// The peer's window in bytes.
    pub snd_wnd: u32,
    /// When the handshake began, or the resolving of its route.
    pub started: Micros,
    /// When our SYN or SYN-ACK was sent last.
    pub sent_at: Micros,
    /// Number of times it has been sent.
    pub sent: u32,
    /// errno of the last ICMP error that did not end it.
    pub soft_error: Option<i32>,
    /// When the last challenge ACK, or SYN-ACK for a duplicate SYN, was sent.
    pub challenged_at: Option<Micros>,
    /// Number of time-outs.
    pub timeouts: u32,
    /// The peer has acknowledged our SYN-ACK, but the listener waits for data (`TCP_DEFER_ACCEPT`).
    pub deferred: bool,
}

impl Opening {
    /// A handshake that has not begun.
    pub(super) fn new(
        now: Micros,
        listener: Option<Owner>,
        remote: IpAddr,
        ring_bytes: RingBytes,
        timestamps: bool,
    ) -> Self {
        Self {
            state: OpeningState::Resolving,
            listener,
            v6: remote.is_ipv6(),
            nodelay: false,
            options: SocketOptions::default(),
            mss_clamp: 0,
            bound_to: (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
            path: None,
            ring_bytes,
            iss: Seq(0),
            irs: Seq(0),
            ts_offset: 0,
            timestamps,
            sack: false,
            ecn: false,
            dctcp: false,
            ts_recent: 0,
            our_shift: Some(window_shift(ring_bytes.receive_most)),
            peer_shift: None,
            peer_mss: if remote.is_ipv6() { DEFAULT_MSS.1 } else { DEFAULT_MSS.0 },
            snd_wnd: 0,
            started: now,
            sent_at: now,
            sent: 0,
            soft_error: None,
            challenged_at: None,
            timeouts: 0,
            deferred: false,
        }
    }

    /// Processes the peer's SYN. An option is agreed if both SYNs have it (RFC 7323 §2.2, §3.2).
    pub(super) fn hear_syn(&mut self, syn: &Segment) {
        self.irs = Seq(syn.seq);
        // MUST-14, MUST-15.
        self.peer_mss = syn.options.mss.unwrap_or(self.default_mss()).max(MIN_PEER_MSS);
        self.snd_wnd = u32::from(syn.window);
        match syn.options.timestamps {
            Some(theirs) if self.timestamps => self.ts_recent = theirs.value,
            _ => self.timestamps = false,
        }
        self.sack &= syn.options.sack_permitted;
        self.ecn &= self.agrees_to_ecn(syn);
        match syn.options.window_scale {
            Some(shift) if self.our_shift.is_some() => self.peer_shift = Some(shift.min(MAX_WINDOW_SCALE)),
            _ => self.our_shift = None,
        }
    }

    fn default_mss(&self) -> u16 {
        if self.v6 { DEFAULT_MSS.1 } else { DEFAULT_MSS.0 }
    }

    /// Is this an ECN-setup SYN or SYN-ACK (RFC 3168 §6.1.1)? Its packet must not be ECN-capable itself (§6.1.1): the
    /// network has changed it then. With DCTCP it may be (RFC 8257 §3.5).
    fn agrees_to_ecn(&self, syn: &Segment) -> bool {
        let set = syn.flags & (flags::ECE | flags::CWR);
        if syn.flags & flags::ACK != 0 {
            // Only if our SYN requested ECN. A retransmitted one did not (§6.1.1.1).
            return set == flags::ECE && self.timeouts == 0;
        }
        set == flags::ECE | flags::CWR && (syn.tos & 3 == 0 || self.dctcp)
    }

    /// ECN flags of our SYN or SYN-ACK. A retransmitted SYN has none, as some networks drop SYNs with them (§6.1.1.1).
    pub(super) fn ecn_flags(&self) -> u8 {
        match (self.ecn, self.state) {
            (true, OpeningState::SynReceived) => flags::ECE,
            (true, _) if self.timeouts == 0 => flags::ECE | flags::CWR,
            _ => 0,
        }
    }

    /// Window of SYN and SYN-ACK: never scaled.
    pub(super) fn window(&self) -> u16 {
        u16::try_from(self.ring_bytes.receive).unwrap_or(u16::MAX)
    }

    /// Options of our SYN or SYN-ACK.
    pub(super) fn options(&self, now: Micros) -> Options {
        Options {
            // SHLD-5, MAY-3, MUST-14, MUST-65: in every SYN, and only in SYNs.
            mss: Some(self.our_mss()),
            window_scale: self.our_shift,
            sack_permitted: self.sack,
            timestamps: self.stamp(now),
            ..Options::default()
        }
    }

    /// The timestamp option for a segment sent now.
    pub(super) fn stamp(&self, now: Micros) -> Option<Timestamps> {
        self.timestamps.then(|| Timestamps { value: timestamp(now, self.ts_offset), echo: self.ts_recent })
    }

    /// The MSS to announce: the limit of path and interface (MUST-67, SHLD-6, RFC 8200 §8.3), configuration and
    /// application.
    fn our_mss(&self) -> u16 {
        let path = self.path.map_or(self.default_mss(), |path| path.mtu.saturating_sub(self.headers()));
        self.limited(path)
    }

    fn limited(&self, mss: u16) -> u16 {
        let limits = [self.mss_clamp, self.options.max_segment].into_iter().filter(|limit| *limit != 0);
        limits.fold(mss, u16::min).max(MIN_MSS)
    }

    /// Bytes of packet headers without options.
    fn headers(&self) -> u16 {
        if self.v6 { HEADERS.1 } else { HEADERS.0 }
    }

    fn timestamp_bytes(&self) -> u16 {
        if self.timestamps { TIMESTAMP_BYTES as u16 } else { 0 }
    }

    /// Bytes of headers and timestamps in each packet.
    pub(super) fn overhead(&self) -> u16 {
        self.headers() + self.timestamp_bytes()
    }

    /// Payload per packet (MUST-16).
    pub(super) fn payload(&self) -> u16 {
        self.payload_within(self.our_mss())
    }

    /// Payload per packet on a path with segments of up to `mss`.
    pub(super) fn payload_within(&self, mss: u16) -> u16 {
        self.limited(mss).min(self.peer_mss) - self.timestamp_bytes()
    }

    /// Processes window and timestamp of the handshake's last segment (RFC 7323 §4.3). A window in a SYN is not scaled.
    pub(super) fn hear_last(&mut self, segment: &Segment) {
        let syn = segment.flags & flags::SYN != 0;
        let shift = if syn { 0 } else { self.peer_shift.unwrap_or(0) };
        self.snd_wnd = u32::from(segment.window) << shift;
        if let Some(theirs) = segment.options.timestamps
            && self.timestamps
            && !Seq(segment.seq).after(self.irs.add(1))
        {
            self.ts_recent = theirs.value;
        }
    }

    /// The setup for the fast path.
    pub(super) fn setup(
        &self,
        now: Micros,
        flow: FlowId,
        owner: Owner,
        tuple: FourTuple,
        link: Link,
        window: Window,
    ) -> FlowSetup {
        let (tos, ttl) = service(&self.options, self.v6);
        // Karn (MUST-18): a retransmitted SYN gives no round-trip sample.
        let srtt_us = if self.sent == 1 { now.since(self.sent_at).clamp(1, u64::from(u32::MAX)) as u32 } else { 0 };
        FlowSetup {
            flow,
            owner,
            tuple,
            link,
            snd_start: self.iss.add(1),
            rcv_start: self.irs.add(1),
            snd_wnd: self.snd_wnd,
            snd_wscale: self.peer_shift.unwrap_or(0),
            rcv_wscale: self.our_shift.unwrap_or(0),
            window_scaling: self.our_shift.is_some(),
            mss: self.payload(),
            timestamps: self.timestamps,
            sack: self.sack,
            ts_recent: self.ts_recent,
            ts_offset: self.ts_offset,
            rcv_wnd: u32::from(self.window()),
            tx_bytes: self.ring_bytes.send,
            rx_bytes: self.ring_bytes.receive,
            window,
            srtt_us,
            nodelay: self.nodelay,
            ecn: match (self.ecn, self.dctcp) {
                (false, _) => Ecn::Off,
                (true, false) => Ecn::Classic,
                (true, true) => Ecn::Dctcp,
            },
            class: 0,
            tos,
            ttl,
        }
    }
}

/// Our timestamp clock: milliseconds plus the connection's offset.
pub(super) fn timestamp(now: Micros, offset: u32) -> u32 {
    ((now.0 / 1000) as u32).wrapping_add(offset)
}

/// The smallest shift with which the window can be as large as the ring.
fn window_shift(rx_bytes: u32) -> u8 {
    (0..MAX_WINDOW_SCALE).find(|shift| rx_bytes <= 65_535 << shift).unwrap_or(MAX_WINDOW_SCALE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_shift_is_the_smallest_that_fits() {
        let cases =
            [(1, 0), (65_535, 0), (65_536, 1), (131_070, 1), (131_071, 2), (1 << 20, 5), (u32::MAX, MAX_WINDOW_SCALE)];
        for (bytes, shift) in cases {
            assert_eq!(window_shift(bytes), shift, "{bytes}");
        }
    }

    /// RFC 7323 §5.4: a tick is a millisecond, and the clock wraps.
    #[test]
    fn a_timestamp_is_the_time_in_milliseconds_and_the_connections_offset() {
        for (us, offset, expected) in
            [(0, 7, 7), (999, 7, 7), (1000, 7, 8), (5_000_000, u32::MAX, 4999), (1 << 45, 1, 824_633_721)]
        {
            assert_eq!(timestamp(Micros(us), offset), expected);
        }
    }
}
