//! Flows, as both paths know them.

use crate::seq::Seq;
use std::net::{IpAddr, SocketAddr};
use towpath_wire::emit::Header;
use towpath_wire::segment::Options;

/// The number of an installed flow. Unique over all flow groups; reused after removal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId(pub u32);

/// A port of this fast path, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PortId(pub u8);

/// The owner of a socket outside this crate (client and slot); opaque here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Owner(pub u64);

/// Both ends of a connection, seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FourTuple {
    /// Our address.
    pub local: IpAddr,
    /// Our port.
    pub local_port: u16,
    /// The peer's address, of the same family.
    pub remote: IpAddr,
    /// The peer's port.
    pub remote_port: u16,
}

impl FourTuple {
    /// The headers of a frame from here to the peer over `link`. All other fields are 0 or absent.
    #[inline(always)]
    pub(crate) fn header(&self, link: &Link) -> Header {
        Header {
            source_mac: link.source,
            destination_mac: link.destination,
            vlan: link.vlan,
            source: self.local,
            destination: self.remote,
            source_port: self.local_port,
            destination_port: self.remote_port,
            seq: 0,
            ack: 0,
            flags: 0,
            window: 0,
            ident: 0,
            tos: 0,
            ttl: 0,
            urgent: 0,
            options: Options::NONE,
        }
    }

    /// Our address and port.
    pub fn local_end(&self) -> SocketAddr {
        SocketAddr::new(self.local, self.local_port)
    }
    /// The peer's address and port.
    pub fn remote_end(&self) -> SocketAddr {
        SocketAddr::new(self.remote, self.remote_port)
    }

    /// The same connection as the peer sees it.
    pub fn reversed(&self) -> Self {
        let Self { local, local_port, remote, remote_port } = *self;
        Self { local: remote, local_port: remote_port, remote: local, remote_port: local_port }
    }
}

/// The way of a flow's frames: port and Ethernet addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The port to send on.
    pub port: PortId,
    /// Our MAC address.
    pub source: [u8; 6],
    /// Next hop's MAC address.
    pub destination: [u8; 6],
    /// VLAN of the frames' tag (IEEE 802.1Q), 1-4095.
    pub vlan: Option<u16>,
}

/// Everything a fast path needs to take a flow over.
#[derive(Clone, Debug)]
pub struct FlowSetup {
    /// Its number.
    pub flow: FlowId,
    /// Its owner.
    pub owner: Owner,
    /// Its addresses.
    pub tuple: FourTuple,
    /// Its way out.
    pub link: Link,
    /// First sequence number of our data (ISS + 1) = position 0 of the send ring.
    pub snd_start: Seq,
    /// First sequence number of the peer's data (IRS + 1) = position 0 of the receive ring.
    pub rcv_start: Seq,
    /// The peer's window now, bytes (already scaled).
    pub snd_wnd: u32,
    /// The peer's window shift (RFC 7323), 0 if not agreed.
    pub snd_wscale: u8,
    /// Our window shift, 0 if not agreed.
    pub rcv_wscale: u8,
    /// Window scaling is agreed (RFC 7323 §2.2). Both shifts may be 0 nevertheless.
    pub window_scaling: bool,
    /// Largest payload to send in one packet, timestamps already subtracted.
    pub mss: u16,
    /// Timestamps are agreed.
    pub timestamps: bool,
    /// SACK is agreed.
    pub sack: bool,
    /// The peer's last timestamp (TS.Recent).
    pub ts_recent: u32,
    /// Added to the millisecond clock to make our timestamps (per connection, RFC 7323 §5.4).
    pub ts_offset: u32,
    /// Window that we have advertised so far, bytes from `rcv_start` on.
    pub rcv_wnd: u32,
    /// Send ring size in bytes, at first.
    pub tx_bytes: u32,
    /// Receive ring size in bytes, at first.
    pub rx_bytes: u32,
    /// First window and growth.
    pub window: Window,
    /// First round-trip sample from the handshake in µs, 0 = none.
    pub srtt_us: u32,
    /// Nagle's algorithm is off.
    pub nodelay: bool,
    /// The kind of ECN that was agreed.
    pub ecn: Ecn,
    /// The sharing class: flows that share ports by one weight and one rate limit (see `ToFast::SetWeight`). A small
    /// number, 0 = the default.
    pub class: u16,
    /// DSCP of its packets, in the upper six bits (`IP_TOS`).
    pub tos: u8,
    /// Time to live of its packets.
    pub ttl: u8,
}

/// Explicit congestion notification on a flow (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// Not agreed.
    #[default]
    Off,
    /// RFC 3168: a mark counts as a loss, at most once per window.
    Classic,
    /// RFC 8257: each mark is echoed as it came. The slow path's DCTCP decides on the effect.
    Dctcp,
}

/// The decision of congestion control: the slow path makes it, the fast path enforces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Congestion window in bytes.
    pub cwnd: u32,
    /// Slow-start threshold in bytes.
    pub ssthresh: u32,
    /// Growth between two decisions: below `ssthresh` by `growth`/256 bytes per acknowledged byte, above it by
    /// `growth`/256 MSS per window. 256 = Reno.
    pub growth: u16,
    /// The part of the window that stays after a loss that the fast path repairs, in 1/1024 (Reno: 512).
    pub beta: u16,
    /// Pacing rate in bytes per second, 0 = as fast as the window lets it.
    pub pacing: u64,
}

impl Window {
    /// As `cwnd` or `ssthresh` of a later decision: the present value stays.
    pub const KEEP: u32 = 0;
    /// As `ssthresh`: not known. The first slow start goes on until the path seems full (RFC 9406).
    pub const SEARCH: u32 = u32::MAX - 1;
}

/// A flow's state as another thread has read it. Each field was true at some time, but not all at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowSnapshot {
    /// Oldest unacknowledged.
    pub snd_una: Seq,
    /// Next to send (moves back on a time-out). A sent FIN takes one number here, in `snd_max` and (acknowledged) in
    /// `snd_una`.
    pub snd_nxt: Seq,
    /// Highest ever sent.
    pub snd_max: Seq,
    /// End of what the application has queued (as sequence number, without FIN).
    pub snd_queued: Seq,
    /// Next expected; beyond the peer's FIN once that has been received.
    pub rcv_nxt: Seq,
    /// Peer's window in bytes.
    pub snd_wnd: u32,
    /// Bytes that the peer may still send, as advertised last.
    pub rcv_wnd: u32,
    /// The peer's window shift and ours (RFC 7323).
    pub snd_wscale: u8,
    /// See `snd_wscale`.
    pub rcv_wscale: u8,
    /// Congestion window in bytes.
    pub cwnd: u32,
    /// Slow-start threshold in bytes.
    pub ssthresh: u32,
    /// Smoothed round-trip time in µs, 0 = no sample.
    pub srtt_us: u32,
    /// Its variation in µs.
    pub rttvar_us: u32,
    /// Unread bytes in the receive ring.
    pub rx_queued: u32,
    /// The peer's last timestamp (TS.Recent), 0 without timestamps; TIME-WAIT needs it.
    pub ts_recent: u32,
    /// Effective MSS.
    pub mss: u16,
    /// Estimate of the peer's segments, bytes of payload.
    pub rcv_mss: u16,
    /// `flow_flags` bits.
    pub flags: u64,
    /// Segments received and sent (modulo 2^32), payload bytes received and acknowledged, segments retransmitted.
    pub segments_in: u32,
    /// Acceptable segments received: the peer has sent them, as far as that can be told.
    pub segments_heard: u32,
    /// Segments received with data or FIN.
    pub data_segments_in: u32,
    /// Segments that came ahead of a hole.
    pub out_of_order: u32,
    /// See `segments_in`.
    pub segments_out: u32,
    /// Segments sent with data.
    pub data_segments_out: u32,
    /// See `segments_in`.
    pub bytes_in: u64,
    /// See `segments_in`.
    pub bytes_acked: u64,
    /// See `segments_in`.
    pub retransmits: u64,
    /// Payload bytes acknowledged with ECN echo (RFC 3168, RFC 8257).
    pub bytes_marked: u64,
    /// Payload bytes judged lost.
    pub bytes_lost: u64,
    /// Outstanding bytes that the peer has reported (RFC 2018), and those that are lost and not yet sent again.
    pub sacked: u32,
    /// See `sacked`.
    pub lost: u32,
    /// Outstanding bytes that were sent again, and have not been reported or judged lost since.
    pub resent: u32,
    /// Payload bytes sent again so far.
    pub bytes_resent: u64,
    /// The peer's reports of what came twice (RFC 2883).
    pub duplicates: u32,
    /// How often segments have been seen to overtake each other (RFC 8985 §6.2).
    pub reorderings: u32,
    /// Send ring size in bytes.
    pub tx_bytes: u32,
    /// When an acknowledgement of received data was last put off, µs modulo 2^32; 0 = never.
    pub owed_at: u32,
    /// Newest round-trip sample in µs, 0 = none.
    pub rtt_us: u32,
    /// Smallest round-trip sample of about the last ten seconds in µs, 0 = none.
    pub min_rtt_us: u32,
    /// Pacing rate in bytes per second, 0 = not paced.
    pub pacing: u64,
}

/// The options that an application has set on a socket (`setsockopt`); 0 = the stack's default, unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// `SO_KEEPALIVE`.
    pub keepalive: bool,
    /// `IP_RECVERR`: errors that do not end a connection over IPv4 are reported.
    pub soft_errors: bool,
    /// `IPV6_RECVERR`: those of one over IPv6.
    pub soft_errors_v6: bool,
    /// `SO_REUSEPORT`: listeners share a port if all of them have it.
    pub reuse_port: bool,
    /// `TCP_KEEPIDLE` in s.
    pub keep_idle_s: u32,
    /// `TCP_KEEPINTVL` in s.
    pub keep_interval_s: u32,
    /// `TCP_KEEPCNT`.
    pub keep_count: u32,
    /// `TCP_USER_TIMEOUT` in ms (RFC 5482).
    pub user_timeout_ms: u32,
    /// `TCP_MAXSEG`: largest MSS to announce and to use.
    pub max_segment: u16,
    /// `IP_TOS`: of a connection over IPv4; its ECN bits are ignored (RFC 9293 MUST-48).
    pub tos: u8,
    /// `IP_TTL`: of a connection over IPv4.
    pub ttl: u8,
    /// `IPV6_TCLASS`: of a connection over IPv6, as `tos`.
    pub tclass: u8,
    /// `IPV6_UNICAST_HOPS`: of a connection over IPv6.
    pub hops: u8,
    /// `TCP_CONGESTION`.
    pub congestion: u8,
    /// `TCP_SYNCNT`.
    pub syn_retries: u8,
    /// `TCP_LINGER2` in s: how long FIN-WAIT-2 lasts; negative = not at all.
    pub linger2_s: i32,
    /// `TCP_DEFER_ACCEPT` in s.
    pub defer_accept_s: u32,
    /// `SO_MAX_PACING_RATE` in bytes per second; 0 = no limit.
    pub max_pacing: u64,
}

/// Bits of [`FlowSnapshot::flags`].
pub mod flow_flags {
    /// Our FIN has been sent.
    pub const FIN_SENT: u64 = 1;
    /// Our FIN has been acknowledged.
    pub const FIN_ACKED: u64 = 2;
    /// The peer's FIN has been received in order.
    pub const FIN_RECEIVED: u64 = 4;
    /// The application wants a FIN after its last byte.
    pub const FIN_WANTED: u64 = 8;
    /// The application has closed the socket.
    pub const APP_CLOSED: u64 = 16;
    /// In loss recovery.
    pub const RECOVERY: u64 = 32;
    /// On the slow path's list of flows with something outstanding (see `ToSlow::Active`).
    pub const ACTIVE: u64 = 64;
    /// Timestamps agreed.
    pub const TIMESTAMPS: u64 = 128;
    /// Nagle's algorithm is off.
    pub const NODELAY: u64 = 256;
    /// Window scaling agreed.
    pub const WSCALE: u64 = 512;
    /// The peer's FIN was received before the application wanted ours (passive close: LAST-ACK, no TIME-WAIT).
    pub const PASSIVE_CLOSE: u64 = 1024;
    /// SACK agreed.
    pub const SACK: u64 = 1 << 32;
    /// The rate limit of its class holds data back.
    pub const LIMIT_WAIT: u64 = 1 << 27;
    /// ECN agreed (RFC 3168).
    pub const ECN: u64 = 1 << 43;
    /// Pacing holds data back.
    pub const PACE_WAIT: u64 = 1 << 40;
}

/// The sizes of a connection's rings, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingBytes {
    /// The send ring, at first.
    pub send: u32,
    /// The receive ring, at first.
    pub receive: u32,
    /// The receive ring, when it has grown as far as it may. The window's scale allows for that.
    pub receive_most: u32,
}

impl RingBytes {
    /// Rings that do not grow.
    pub fn fixed(send: u32, receive: u32) -> Self {
        Self { send, receive, receive_most: receive }
    }
}
