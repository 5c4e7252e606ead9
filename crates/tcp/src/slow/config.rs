//! The settings of the slow path.

use super::congestion::Algorithm;

/// Settings of the slow path. Where Linux has the same setting, the default is Linux's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowConfig {
    /// Most connections at a time, half-open ones included. Flow numbers are less than this.
    pub max_flows: u32,
    /// First wait for an answer to a SYN or SYN-ACK in ms; doubles each time (RFC 6298 §2.1).
    pub syn_timeout_ms: u32,
    /// Retransmissions of a SYN before ETIMEDOUT (`tcp_syn_retries`). Linux has 6. 7 take 247 s; RFC 9293 MUST-23
    /// requires 180 s.
    pub syn_retries: u8,
    /// Retransmissions of a SYN-ACK before the half-open connection is dropped (`tcp_synack_retries`).
    pub synack_retries: u8,
    /// Retransmission time-out in ms if the handshake gave no round-trip sample, as its SYN was retransmitted (RFC 6298
    /// §5.7).
    pub rto_initial_ms: u32,
    /// Shortest retransmission time-out in ms (`TCP_RTO_MIN`). RFC 6298 says 1 s, but current stacks use less.
    pub rto_min_ms: u32,
    /// Longest retransmission time-out and probe interval in ms (`TCP_RTO_MAX`).
    pub rto_max_ms: u32,
    /// Time-outs without progress before the route is looked up again: R1 of RFC 9293 §3.8.3 (`tcp_retries1`; SHLD-10).
    pub route_retries: u8,
    /// Time-outs without progress before ETIMEDOUT: R2 of RFC 9293 §3.8.3 (`tcp_retries2`). 15 take at least 924 s;
    /// SHLD-11: 100 s.
    pub retries: u8,
    /// R2 for a connection that the application has closed (`tcp_orphan_retries`).
    pub orphan_retries: u8,
    /// How long TIME-WAIT lasts in s: 2 MSL (Linux: 60).
    pub time_wait_s: u32,
    /// Most connections in TIME-WAIT. Beyond this the oldest is removed (`tcp_max_tw_buckets`).
    pub time_wait_max: usize,
    /// How long a closed socket's connection waits for the peer's FIN in s (`tcp_fin_timeout`).
    pub fin_wait_s: u32,
    /// Interval between checks of active flows in µs. 10 ms are a twentieth of the shortest time-out.
    pub control_interval_us: u32,
    /// Shortest interval in µs at which an algorithm decides that wants to decide once per round trip.
    pub control_interval_min_us: u32,
    /// Congestion control of connections that choose none (`tcp_congestion_control`).
    pub congestion: Algorithm,
    /// Pace window-based algorithms, too? This costs a timer per flow. If off, acknowledgements clock the sender.
    pub pace_windows: bool,
    /// Upper limit of a listener's backlog (`somaxconn`).
    pub somaxconn: u32,
    /// First ephemeral port (`ip_local_port_range`).
    pub first_port: u16,
    /// Last ephemeral port.
    pub last_port: u16,
    /// Use only ports that the host holds ([`super::Host::more_ports`]), at most as many as the range has.
    pub held_ports: bool,
    /// Offer and accept timestamps (RFC 7323)?
    pub timestamps: bool,
    /// Offer and accept selective acknowledgements (RFC 2018)?
    pub sack: bool,
    /// Offer and accept window scaling (RFC 7323)? Without it no window is larger than 64 KiB.
    pub window_scaling: bool,
    /// ECN as in `net.ipv4.tcp_ecn`: 0 = never, 1 = requested and accepted, 2 = accepted. DCTCP always requests and
    /// accepts it.
    pub ecn: u8,
    /// Most RSTs, and most challenge ACKs, per second (RFC 5961 §7; Linux: `tcp_challenge_ack_limit`).
    pub replies_per_s: u32,
    /// Shortest time between two challenge ACKs of one connection, in ms (RFC 5961 §7; Linux: `tcp_invalid_ratelimit`).
    pub challenge_interval_ms: u32,
    /// Interval in ms at which an unresolved route is looked up again.
    pub route_retry_ms: u32,
    /// Time in ms after which a connect without a route fails with EHOSTUNREACH. The kernel's ARP gives up after 3 s.
    pub route_timeout_ms: u32,
    /// Answer SYNs with cookies if a listener's backlog is full (`tcp_syncookies`)?
    pub syn_cookies: bool,
    /// Most cookies per second, as each may go to a forged address.
    pub cookies_per_s: u32,
    /// Path MTU in bytes, until the route back to a peer is known. The default is Ethernet's.
    pub default_mtu_bytes: u16,
    /// Largest MSS to announce and to use, whatever the route's MTU; 0 = no limit.
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
            held_ports: false,
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
