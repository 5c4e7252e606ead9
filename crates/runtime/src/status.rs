//! A stack's status: its sockets, flow groups, workers, clients and counters.
//!
//! Each struct is declared here once. Its JSON form (`towpath status --json`) follows from `serde`;
//! [`crate::each_status_struct`] gives the fields to code that carries a status over a link.

use crate::client_setup::ClientId;
use crate::named_counts::NamedCounts;
use crate::sampler::Achieved;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::net::SocketAddr;
use towpath_probes::spread::Spread;
use towpath_ring::command::not_ours::REASONS;

/// Declares structs, and a macro that lists their names and fields.
macro_rules! declare {
    ($dollar:tt $(
        $(#[$meta:meta])*
        pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)* }
    )*) => {
        $(
            $(#[$meta])*
            pub struct $name { $($(#[$field_meta])* pub $field: $type,)* }
        )*
        /// Calls a macro with `Name { field, .. }` of every struct of a status but
        /// [`status::Status`](crate::status::Status).
        #[macro_export]
        macro_rules! each_status_struct {
            ($dollar callback:ident) => { $dollar callback! { $($name { $($field),* })* } };
        }
    };
}

declare! { $
/// One socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketStatus {
    /// Its state in the words of `ss` (`ESTAB`, `LISTEN`, `SYN-SENT` ...).
    pub state: Cow<'static, str>,
    /// Unread bytes in the receive ring; of a listener: connections waiting to be accepted.
    pub recv_q: u32,
    /// Unacknowledged bytes in the send ring, sent or not; of a listener: its backlog.
    pub send_q: u32,
    /// Its own address and port.
    pub local: SocketAddr,
    /// Its peer's address and port (of a listener: 0.0.0.0:0).
    pub peer: SocketAddr,
    /// Its program. Empty if that has ended.
    pub program: String,
    /// The client's process.
    pub pid: i32,
    /// The client's user.
    pub uid: u32,
    /// Its client; `None` = it no longer has one (TIME-WAIT). The JSON does not tell it.
    #[serde(skip)]
    pub client: Option<ClientId>,
    /// Its slot in the client's region.
    pub slot: u32,
    /// The flow group that owns it.
    pub flow_group: Option<usize>,
    /// It is a direct connection.
    pub direct: bool,
    /// Details, if it is established and the stack has them.
    pub tcp: Option<TcpStatus>,
    /// Connections accepted, of a listener that the kernel has, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halves: Option<Halves>,
}

/// Connections that the two halves of a listener have accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Halves {
    /// Those that the stack has carried, or joined directly.
    pub accelerated: u32,
    /// Those of the kernel, as the program says.
    pub kernel: u32,
    /// SYNs that the policy has refused to the kernel's half, repeated ones among them.
    pub refused: u64,
}

/// The details that `ss -ti` shows of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpStatus {
    /// Smoothed round-trip time, µs; 0 = not measured.
    pub srtt_us: u32,
    /// Its variation, µs.
    pub rttvar_us: u32,
    /// Effective send MSS, bytes.
    pub mss: u16,
    /// Congestion window, bytes.
    pub cwnd: u32,
    /// Slow-start threshold, bytes.
    pub ssthresh: u32,
    /// The peer's window, bytes.
    pub snd_wnd: u32,
    /// Sent and not acknowledged, bytes.
    pub unacked: u32,
    /// Payload bytes received.
    pub bytes_received: u64,
    /// Payload bytes that the peer has acknowledged.
    pub bytes_acked: u64,
    /// Segments received.
    pub segs_in: u64,
    /// Segments sent.
    pub segs_out: u64,
    /// Segments retransmitted.
    pub retrans: u64,
    /// Retransmission time-outs since the peer last acknowledged new data. Above 2, a program that has set `IP_RECVERR`
    /// has been told.
    pub backoff: u32,
    /// Probes of a closed window, and keep-alives, since the last answer.
    pub probes: u32,
    /// Timestamps were agreed on.
    pub timestamps: bool,
    /// Window scaling was agreed on.
    pub wscale: bool,
    /// Selective acknowledgements were agreed on.
    pub sack: bool,
    /// ECN was agreed on.
    pub ecn: bool,
    /// It is in loss recovery.
    pub recovery: bool,
}

/// Counters of a flow group, or of the slow path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Items handled, by stage.
    pub stages: NamedCounts,
    /// Dropped frames, by reason.
    pub drops: NamedCounts,
    /// Retransmitted segments.
    pub retransmits: u64,
    /// Retransmission time-outs.
    pub timeouts: u64,
    /// Connections opened.
    pub opened: u64,
    /// Connections that failed before they were established.
    pub failed: u64,
    /// Resets.
    pub resets: u64,
    /// Contract violations of applications.
    pub contract_violations: u64,
    /// SYNs that were answered with a cookie, because their listener's backlog was full.
    pub syn_cookies_sent: u64,
    /// Connections opened by a cookie that came back.
    pub syn_cookies_accepted: u64,
    /// Connects of unbound sockets that got EADDRNOTAVAIL: the range or the user's share of it is used up.
    pub out_of_ports: u64,
    /// Segments handed on to their connection's flow group: they came to another's queue, or before it had the connection.
    /// Many: the device deals the segments of a connection out to several of its receive queues, or has changed how it
    /// does it.
    pub relayed_segments: u64,
}

/// A port of a flow group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStatus {
    /// Frames received.
    pub rx_frames: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Frames dropped on receive.
    pub rx_dropped: u64,
    /// Frames that could not be sent.
    pub tx_dropped: u64,
}

/// How times are spread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpreadStatus {
    /// Their sum, µs.
    pub sum_us: u64,
    /// How many were from 2^i to 2^(i+1) - 1 µs, for each i from 0 on. The last bucket has all that were longer.
    pub counts: Vec<u64>,
}

/// One flow group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowGroupStatus {
    /// Its counters.
    #[serde(flatten)]
    pub tally: Tally,
    /// Time in turns with work, µs.
    pub busy_us: u64,
    /// All other time, µs.
    pub idle_us: u64,
    /// Turns with work.
    pub turns: u64,
    /// Times that its worker went to sleep.
    pub sleeps: u64,
    /// Turns that took as much as a turn may from a port, the data queues or the kernel: more was waiting.
    #[serde(skip)]
    pub full: u64,
    /// The throughput and latency of its applications.
    #[serde(skip)]
    pub achieved: Achieved,
    /// Connections that it owns.
    pub flows: u64,
    /// Round trips of segments that were timed: one of each flight.
    #[serde(default)]
    pub round_trips: SpreadStatus,
    /// From when new data stood in a receive ring until the stack saw that the application had taken them, of one connection
    /// at a time.
    #[serde(default)]
    pub requests: SpreadStatus,
    /// Its ports, in the order of their numbers.
    #[serde(skip)]
    pub ports: Vec<PortStatus>,
}

/// One worker: a thread that serves flow groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// The numbers of the flow groups that it serves. A parked worker serves none.
    pub flow_groups: Vec<usize>,
    /// Turns with work.
    pub turns: u64,
    /// Time in turns with work, µs, by the clock. A worker that waits for its CPU in a turn counts as busy. A worker
    /// that spins uses its CPU all the time.
    pub busy_us: u64,
    /// Time without work, spinning or asleep, µs, without the time parked.
    pub idle_us: u64,
    /// Times that it went to sleep.
    pub sleeps: u64,
}

/// One client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientStatus {
    /// Its number.
    pub id: ClientId,
    /// Its user.
    pub uid: u32,
    /// Its process.
    pub pid: i32,
    /// Its program.
    #[serde(rename = "program")]
    pub name: String,
    /// Slots in use.
    pub slots: u32,
    /// Its contract violations.
    pub contract_violations: u64,
    /// It has ended, but some of its sockets still drain.
    pub leaving: bool,
    /// Its part of the time of flow groups, µs: `FlowGroup::charge` of the fast stack says how that is divided. 0: this stack
    /// does not divide it.
    #[serde(default)]
    pub busy_us: u64,
}

/// What the clients of a program have used that have ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedStatus {
    /// Their user.
    pub uid: u32,
    /// The program.
    pub program: String,
    /// As of a client.
    pub busy_us: u64,
}
}

impl From<&Spread> for SpreadStatus {
    fn from(spread: &Spread) -> Self {
        Self { sum_us: spread.sum_us, counts: spread.counts.into() }
    }
}

/// The status of a stack.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// The flow groups. Where the workers are fixed, each has its own.
    pub flow_groups: Vec<FlowGroupStatus>,
    /// The workers that serve them, the parked ones among them.
    pub workers: Vec<WorkerStatus>,
    /// Counters of the work beside the flow groups.
    pub slow: Tally,
    /// Turns that ended by a panic. They are errors of this program, never of a client or a peer.
    pub panics: u64,
    /// Commands of applications that were left to the kernel, by reason (`towpath_ring::command::not_ours`).
    pub not_ours: [u64; REASONS],
    /// Of listeners that stay the kernel's: first SYNs, by what became of them, and connections that the kernel has
    /// accepted.
    pub listeners: NamedCounts,
    /// The clients.
    pub clients: Vec<ClientStatus>,
    /// Those that have ended, by program.
    pub ended: Vec<EndedStatus>,
}
