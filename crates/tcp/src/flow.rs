//! What both paths know of a flow.

use crate::buffers::PortId;
use crate::seq::Seq;
use std::net::{IpAddr, SocketAddr};
use towpath_wire::emit::Header;
use towpath_wire::segment::Options;

/// An installed flow, by number; unique over all cores, reused after removal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId(pub u32);

/// Who owns a socket outside this crate (client and slot); opaque here.
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
    /// The headers of a frame from here to the peer by way of `link`; what is neither address nor port is 0 or absent.
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

    /// Its own address and port.
    pub fn local_end(&self) -> SocketAddr {
        SocketAddr::new(self.local, self.local_port)
    }
    /// The peer's.
    pub fn remote_end(&self) -> SocketAddr {
        SocketAddr::new(self.remote, self.remote_port)
    }

    /// As the peer sees it.
    pub fn reversed(&self) -> Self {
        let Self { local, local_port, remote, remote_port } = *self;
        Self { local: remote, local_port: remote_port, remote: local, remote_port: local_port }
    }
}

/// Where a flow's frames go: port and Ethernet addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Port to send on.
    pub port: PortId,
    /// Our MAC address.
    pub source: [u8; 6],
    /// Next hop's MAC address.
    pub destination: [u8; 6],
    /// VLAN that its frames are tagged with (IEEE 802.1Q), 1-4095.
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
    /// Window scaling agreed (RFC 7323 §2.2)? Both shifts may be 0 nevertheless.
    pub window_scaling: bool,
    /// Largest payload to send in one packet, timestamps already subtracted.
    pub mss: u16,
    /// Timestamps agreed?
    pub timestamps: bool,
    /// SACK agreed?
    pub sack: bool,
    /// The peer's last timestamp (TS.Recent).
    pub ts_recent: u32,
    /// Added to the millisecond clock to make our timestamps (per connection, RFC 7323 §5.4).
    pub ts_offset: u32,
    /// Window that we have advertised so far from `rcv_start`, bytes.
    pub rcv_wnd: u32,
    /// Send ring size in bytes.
    pub tx_bytes: u32,
    /// Receive ring size in bytes.
    pub rx_bytes: u32,
    /// First window and growth.
    pub window: Window,
    /// First round-trip sample from the handshake in µs, 0 = none.
    pub srtt_us: u32,
    /// Nagle off.
    pub nodelay: bool,
    /// What was agreed about ECN.
    pub ecn: Ecn,
    /// The group of flows with which it shares its core's ports: small numbers, 0 = the default (see `ToFast::SetWeight`).
    pub group: u16,
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
    /// RFC 8257: each mark is echoed as it came; what it means is for the slow path's DCTCP to say.
    Dctcp,
}

/// What congestion control allows; computed by the slow path, enforced by the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Congestion window in bytes.
    pub cwnd: u32,
    /// Slow-start threshold in bytes.
    pub ssthresh: u32,
    /// Growth between two decisions: below `ssthresh` by `growth`/256 bytes per acknowledged byte, above it by `growth`/256 MSS per
    /// window. 256 = Reno.
    pub growth: u16,
    /// What is left of the window after a loss that the fast path repairs itself, in 1/256 (Reno: 128).
    pub beta: u16,
    /// Pacing rate in bytes per second, 0 = as fast as the window lets it.
    pub pacing: u64,
}

impl Window {
    /// As `cwnd` or `ssthresh` of a later decision: the present one stays, whatever it has become by now.
    pub const KEEP: u32 = 0;
    /// As `ssthresh`: not known; the first slow start goes on until the path seems full (RFC 9406).
    pub const SEARCH: u32 = u32::MAX - 1;
}

/// A reading of a flow's state by another thread. Fields are each true, but not of one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowSnapshot {
    /// Oldest unacknowledged.
    pub snd_una: Seq,
    /// Next to send (moves back on a time-out). A sent FIN takes one number here, in `snd_max` and (acknowledged) in `snd_una`.
    pub snd_nxt: Seq,
    /// Highest ever sent.
    pub snd_max: Seq,
    /// End of what the application has queued (as sequence number, without FIN).
    pub snd_queued: Seq,
    /// Next expected; beyond the peer's FIN once that has been received.
    pub rcv_nxt: Seq,
    /// Peer's window in bytes.
    pub snd_wnd: u32,
    /// What is left of the window that we advertised last, bytes.
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
    /// FIN sent / acknowledged / received, recovery (see `fast`): `flow_flags` bits.
    pub flags: u64,
    /// Segments received and sent, payload bytes received and acknowledged, segments retransmitted.
    pub segments_in: u64,
    /// See `segments_in`.
    pub segments_out: u64,
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
    /// Outstanding bytes that the peer has reported (RFC 2018), and those that count as lost and are still to be sent again.
    pub sacked: u32,
    /// See `sacked`.
    pub lost: u32,
    /// Reordering has been seen on the path (RFC 8985 §6.2).
    pub reordering: bool,
    /// Newest round-trip sample in µs, 0 = none.
    pub rtt_us: u32,
    /// Smallest round-trip sample of the last ten seconds or so in µs, 0 = none.
    pub min_rtt_us: u32,
    /// Pacing rate in bytes per second, 0 = not paced.
    pub pacing: u64,
}

/// What an application has set on a socket (`setsockopt`); 0 = the stack's default, unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// `SO_KEEPALIVE`.
    pub keepalive: bool,
    /// `IP_RECVERR`: errors that do not end a connection over IPv4 are reported.
    pub soft_errors: bool,
    /// `IPV6_RECVERR`: those of one over IPv6.
    pub soft_errors_v6: bool,
    /// `SO_REUSEPORT`: listeners that all have it share a port.
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
    /// Nagle off.
    pub const NODELAY: u64 = 256;
    /// Window scaling agreed.
    pub const WSCALE: u64 = 512;
    /// The peer's FIN was received before the application wanted ours (passive close: LAST-ACK, no TIME-WAIT).
    pub const PASSIVE_CLOSE: u64 = 1024;
    /// SACK agreed.
    pub const SACK: u64 = 1 << 32;
    /// The rate limit of its group holds back what could be sent otherwise.
    pub const LIMIT_WAIT: u64 = 1 << 27;
    /// ECN agreed (RFC 3168).
    pub const ECN: u64 = 1 << 43;
    /// Pacing holds back what could be sent otherwise.
    pub const PACE_WAIT: u64 = 1 << 40;
}
