//! What an engine tells of itself.

use crate::api::ClientId;
use towpath_ports::PortCounters;
use towpath_ring::command::not_ours::REASONS;
use towpath_tcp::counters::Counters;
use towpath_tcp::flow::{FlowSnapshot, FourTuple};
use towpath_tcp::slow::Trouble;

/// One socket.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Its addresses (a listener has a remote of 0.0.0.0:0).
    pub tuple: FourTuple,
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
    /// Its flow, if it is established.
    pub snapshot: Option<FlowSnapshot>,
    /// Does its peer answer?
    pub trouble: Trouble,
    /// Bytes in the send ring, sent or not, that are not acknowledged; of a listener: its backlog.
    pub tx_queue: u32,
    /// Unread bytes in the receive ring; of a listener: connections waiting to be accepted.
    pub rx_queue: u32,
    /// Core that owns its flow.
    pub core: Option<usize>,
    /// Joined ring to ring, without the stack.
    pub direct: bool,
}

/// One fast-path thread.
#[derive(Clone, Debug, Default)]
pub struct CoreStatus {
    /// Stages, drops and the rest.
    pub counters: Counters,
    /// Turns with work.
    pub turns: u64,
    /// Time in turns with work, µs.
    pub busy_us: u64,
    /// Time without work, spinning or asleep, µs.
    pub idle_us: u64,
    /// Times it went to sleep.
    pub sleeps: u64,
    /// Flows it owns.
    pub flows: u64,
    /// Its ports, in the order of their numbers.
    pub ports: Vec<PortCounters>,
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
    /// The cores.
    pub cores: Vec<CoreStatus>,
    /// The slow path's counters.
    pub slow: Counters,
    /// Turns of a thread that ended by a panic: errors of this program, never of a client or a peer.
    pub panics: u64,
    /// Commands of applications that were left to the kernel, by reason (`towpath_ring::command::not_ours`).
    pub not_ours: [u64; REASONS],
    /// The clients.
    pub clients: Vec<ClientStatus>,
}
