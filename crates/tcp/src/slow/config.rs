//! What can be set.

use super::congestion::Algorithm;

/// Settings of the slow path. The defaults are Linux's where Linux has the same knob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowConfig {
    /// Most connections at a time, half-open ones included. Flow numbers are below this.
    pub max_flows: u32,
    /// First wait for an answer to a SYN or SYN-ACK in ms; doubles each time (RFC 6298 §2.1).
    pub syn_timeout_ms: u32,
    /// Retransmissions of a SYN before ETIMEDOUT (`tcp_syn_retries`). 7 and not Linux's 6: 247 s, where RFC 9293 MUST-23 wants 180.
    pub syn_retries: u8,
    /// Retransmissions of a SYN-ACK before the half-open connection is dropped (`tcp_synack_retries`).
    pub synack_retries: u8,
    /// Retransmission time-out, in ms, where the handshake gave no round-trip sample because its SYN was sent twice (RFC 6298 §5.7).
    pub rto_initial_ms: u32,
    /// Shortest retransmission time-out in ms (`TCP_RTO_MIN`; RFC 6298 says 1 s, all of today's stacks less).
    pub rto_min_ms: u32,
    /// Longest retransmission time-out and probe interval in ms (`TCP_RTO_MAX`).
    pub rto_max_ms: u32,
    /// Time-outs without progress after which the route is asked for again: R1 of RFC 9293 §3.8.3 (`tcp_retries1`; SHLD-10).
    pub route_retries: u8,
    /// Time-outs without progress before ETIMEDOUT: R2 of RFC 9293 §3.8.3 (`tcp_retries2`). 15 take at least 924 s (SHLD-11: 100).
    pub retries: u8,
    /// The same for a connection that the application has closed (`tcp_orphan_retries`).
    pub orphan_retries: u8,
    /// How long TIME-WAIT lasts in s: 2 MSL (Linux: 60).
    pub time_wait_s: u32,
    /// Most connections in TIME-WAIT; beyond it the oldest is forgotten (`tcp_max_tw_buckets`).
    pub time_wait_max: usize,
    /// How long a closed socket's connection waits for the peer's FIN in s (`tcp_fin_timeout`).
    pub fin_wait_s: u32,
    /// How often active flows are looked at, in µs. 10 ms: a twentieth of the shortest time-out.
    pub control_interval_us: u32,
    /// An algorithm that decides once per round trip is asked no more often than this, in µs.
    pub control_interval_min_us: u32,
    /// Congestion control of connections that choose none (`tcp_congestion_control`).
    pub congestion: Algorithm,
    /// Pace also what window-based algorithms send? Costs a timer per flow; off, a window is sent as fast as acknowledgements come.
    pub pace_windows: bool,
    /// Upper limit of a listener's backlog (`somaxconn`).
    pub somaxconn: u32,
    /// First ephemeral port (`ip_local_port_range`).
    pub first_port: u16,
    /// Last ephemeral port.
    pub last_port: u16,
    /// Offer and accept timestamps (RFC 7323)?
    pub timestamps: bool,
    /// Offer and accept selective acknowledgements (RFC 2018)?
    pub sack: bool,
    /// Offer and accept window scaling (RFC 7323)? Without it no window is larger than 64 KiB.
    pub window_scaling: bool,
    /// ECN as `net.ipv4.tcp_ecn`: 0 = never, 1 = requested and accepted, 2 = accepted. DCTCP connections request and accept it always.
    pub ecn: u8,
    /// Most RSTs, and most challenge ACKs, per second (RFC 5961 §7; Linux: `tcp_challenge_ack_limit`).
    pub replies_per_s: u32,
    /// Shortest time between two challenge ACKs of one connection, in ms (RFC 5961 §7; Linux: `tcp_invalid_ratelimit`).
    pub challenge_interval_ms: u32,
    /// How often a route that is being resolved is asked for again, in ms.
    pub route_retry_ms: u32,
    /// After how many ms without a route a connect fails with EHOSTUNREACH (the kernel's ARP gives up after 3 s).
    pub route_timeout_ms: u32,
    /// Answer SYNs with cookies where a listener's backlog is full (`tcp_syncookies`)?
    pub syn_cookies: bool,
    /// Most cookies per second: each may go to an address that somebody has forged.
    pub cookies_per_s: u32,
    /// Path MTU in bytes where the route back to a peer is not known yet: Ethernet's.
    pub default_mtu_bytes: u16,
    /// Largest MSS to announce and to use, whatever the route's MTU says; 0 = no limit.
    pub mss_clamp: u16,
}

impl Default for SlowConfig {
    fn default() -> Self {
        Self {
            max_flows: 65_536,
            syn_timeout_ms: 1000,
            syn_retries: 7,
            synack_retries: 5,
            rto_initial_ms: 3000,
            rto_min_ms: 200,
            rto_max_ms: 120_000,
            route_retries: 3,
            retries: 15,
            orphan_retries: 8,
            time_wait_s: 60,
            time_wait_max: 65_536,
            fin_wait_s: 60,
            control_interval_us: 10_000,
            control_interval_min_us: 500,
            congestion: Algorithm::default(),
            pace_windows: false,
            somaxconn: 4096,
            first_port: 32_768,
            last_port: 60_999,
            timestamps: true,
            sack: true,
            window_scaling: true,
            ecn: 2,
            replies_per_s: 1000,
            challenge_interval_ms: 500,
            route_retry_ms: 100,
            route_timeout_ms: 3000,
            syn_cookies: true,
            cookies_per_s: 100_000,
            default_mtu_bytes: 1500,
            mss_clamp: 0,
        }
    }
}
