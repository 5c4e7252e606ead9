//! What a stack tells of itself.

use crate::sampler::Achieved;
use crate::stack::ClientId;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use towpath_ring::command::not_ours::REASONS;

/// One socket.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Its own address and port.
    pub local: SocketAddr,
    /// Its peer's (of a listener: 0.0.0.0:0).
    pub remote: SocketAddr,
    /// Its state in the words of `ss` (`ESTAB`, `LISTEN`, `SYN-SENT` ...).
    pub state: &'static str,
    /// Whose it is; `None` = no application any more (TIME-WAIT).
    pub client: Option<ClientId>,
    /// Its slot in the client's region.
    pub slot: u32,
    /// The client's user.
    pub uid: u32,
    /// The client's process.
    pub pid: i32,
    /// The client's program.
    pub program: String,
    /// Details, if it is established and the stack has them.
    pub tcp: Option<TcpStatus>,
    /// Bytes in the send ring, sent or not, that are not acknowledged; of a listener: its backlog.
    pub tx_queue: u32,
    /// Unread bytes in the receive ring; of a listener: connections waiting to be accepted.
    pub rx_queue: u32,
    /// Core that owns it.
    pub core: Option<usize>,
    /// Joined ring to ring, without the stack.
    pub direct: bool,
}

/// What `ss -ti` shows of a connection.
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
    /// Retransmission time-outs since the peer has last acknowledged something new: above 2, the program has been told if it wants to.
    pub backoff: u32,
    /// Probes of a closed window, and keep-alives, since the last answer.
    pub probes: u32,
    /// Timestamps agreed?
    pub timestamps: bool,
    /// Window scaling agreed?
    pub wscale: bool,
    /// Selective acknowledgements agreed?
    pub sack: bool,
    /// ECN agreed?
    pub ecn: bool,
    /// In loss recovery?
    pub recovery: bool,
}

/// Named numbers in the order in which they are shown; which there are is the stack's affair.
pub type Named = Vec<(&'static str, u64)>;

/// Counters of a core, or of what a stack does beside its cores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Items handled by stage.
    pub stages: Named,
    /// Dropped frames by reason.
    pub drops: Named,
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
    /// Words of applications that contradicted the contract.
    pub lies: u64,
}

/// A port of a core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// One flow group: ports, the connections on them, and what their applications ring. Exactly one thread at a time serves it.
#[derive(Clone, Debug, Default)]
pub struct CoreStatus {
    /// Stages, drops and the rest.
    pub tally: Tally,
    /// Turns with work.
    pub turns: u64,
    /// Time in turns with work, µs.
    pub busy_us: u64,
    /// All other time, µs.
    pub idle_us: u64,
    /// Times its thread went to sleep.
    pub sleeps: u64,
    /// Turns that took as much as a turn may from a port, the applications' doors or the kernel: there was more than could be taken.
    pub full: u64,
    /// What its applications achieve.
    pub achieved: Achieved,
    /// Connections it owns.
    pub flows: u64,
    /// Its ports, in the order of their numbers.
    pub ports: Vec<PortStatus>,
}

/// One thread that moves bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadStatus {
    /// The flow groups that it serves, by their places in [`Status::cores`]. None: it is parked.
    pub groups: Vec<usize>,
    /// Turns with work.
    pub turns: u64,
    /// Time in turns with work, µs. A thread that spins uses its CPU all the time; this is the part that was of use. By
    /// the clock: a thread that waits for its CPU in a turn is busy meanwhile.
    pub busy_us: u64,
    /// Time without work, spinning or asleep, µs; not the time parked.
    pub idle_us: u64,
    /// Times it went to sleep.
    pub sleeps: u64,
}

/// One client.
#[derive(Clone, Debug)]
pub struct ClientStatus {
    /// Its number.
    pub id: ClientId,
    /// Its user.
    pub uid: u32,
    /// Its process.
    pub pid: i32,
    /// Its program.
    pub name: String,
    /// Slots in use.
    pub slots: u32,
    /// Words and queue entries of it that contradicted the contract.
    pub lies: u64,
    /// Removed, but with sockets that still drain?
    pub leaving: bool,
}

/// Everything.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// The flow groups. Where threads are fixed each has its own.
    pub cores: Vec<CoreStatus>,
    /// The threads that serve them, with those that are parked.
    pub threads: Vec<ThreadStatus>,
    /// What is done beside the cores.
    pub slow: Tally,
    /// Turns of a thread that ended by a panic: errors of this program, never of a client or a peer.
    pub panics: u64,
    /// Commands of applications that were left to the kernel, by reason (`towpath_ring::command::not_ours`).
    pub not_ours: [u64; REASONS],
    /// The clients.
    pub clients: Vec<ClientStatus>,
}
