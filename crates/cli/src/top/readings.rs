//! What `towpath top` shows, from two readings of a service.

use crate::sockets::Filter;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::Instant;
use towpath_service::api::{NamedCounts, SocketStatus, Status};

/// What a service has said at one time.
pub struct Reading {
    /// When.
    pub at: Instant,
    /// Its counters.
    pub status: Status,
    /// Its sockets.
    pub sockets: Vec<SocketStatus>,
}

/// What stands first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Those that move most bytes.
    #[default]
    Bytes,
    /// Those with most sockets, or most bytes that wait.
    Waiting,
    /// By name.
    Name,
}

impl Order {
    /// The one that a key press changes to.
    pub fn next(self) -> Self {
        match self {
            Self::Bytes => Self::Waiting,
            Self::Waiting => Self::Name,
            Self::Name => Self::Bytes,
        }
    }
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Waiting => "waiting",
            Self::Name => "name",
        }
    }
}

/// Bytes and segments each second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Bytes received.
    pub received: f64,
    /// Bytes that the peer has acknowledged.
    pub acked: f64,
    /// Segments that were sent again.
    pub again: f64,
}

/// A program of a user.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProgramRow {
    /// Its name.
    pub program: String,
    /// Its user.
    pub uid: u32,
    /// Sockets that the filter wants.
    pub sockets: usize,
    /// Bytes that wait, unread or not acknowledged.
    pub waiting: u64,
    /// What they move.
    pub rates: Rates,
}

/// A connection.
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectionRow {
    /// Its socket.
    pub socket: SocketStatus,
    /// What it moves. `None`: a direct connection, which nobody counts.
    pub rates: Option<Rates>,
}

/// Everything to show.
#[derive(Debug, Default, PartialEq)]
pub struct View {
    /// Busy share of each worker.
    pub busy: Vec<f64>,
    /// Programs in their order.
    pub programs: Vec<ProgramRow>,
    /// Connections in their order.
    pub connections: Vec<ConnectionRow>,
    /// Frames dropped each second, by reason; most first.
    pub drops: Vec<(String, f64)>,
    /// Segments that were sent again, each second.
    pub again: f64,
}

/// Compares two readings.
pub fn view(before: &Reading, now: &Reading, filter: &Filter, order: Order) -> View {
    let seconds = now.at.saturating_duration_since(before.at).as_secs_f64().max(1e-3);
    let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
    let workers = now.status.workers.iter().zip(&before.status.workers);
    let busy = workers.map(|(now, before)| {
        let (busy, idle) = (rate(before.busy_us, now.busy_us), rate(before.idle_us, now.idle_us));
        if busy + idle > 0.0 { busy / (busy + idle) } else { 0.0 }
    });
    let wanted = |socket: &&SocketStatus| filter.wants_state(&socket.state).unwrap_or(true) && filter.matches(socket);
    let mut connections = connections(before, now, rate, wanted);
    let mut programs: BTreeMap<(String, u32), ProgramRow> = BTreeMap::new();
    for ConnectionRow { socket, rates } in &connections {
        let row = programs.entry((socket.program.clone(), socket.uid)).or_default();
        (row.program, row.uid) = (socket.program.clone(), socket.uid);
        row.sockets += 1;
        row.waiting += waiting(socket);
        let rates = rates.unwrap_or_default();
        row.rates.received += rates.received;
        row.rates.acked += rates.acked;
        row.rates.again += rates.again;
    }
    let mut programs: Vec<ProgramRow> = programs.into_values().collect();
    connections.retain(|row| row.socket.state != "LISTEN");
    let moved = |rates: &Rates| rates.received + rates.acked;
    match order {
        Order::Bytes => {
            programs.sort_by(|a, b| moved(&b.rates).total_cmp(&moved(&a.rates)));
            let of = |row: &ConnectionRow| moved(&row.rates.unwrap_or_default());
            connections.sort_by(|a, b| of(b).total_cmp(&of(a)));
        }
        Order::Waiting => {
            programs.sort_by_key(|row| std::cmp::Reverse((row.waiting, row.sockets)));
            connections.sort_by_key(|row| std::cmp::Reverse(waiting(&row.socket)));
        }
        // The programs are in their order.
        Order::Name => connections.sort_by_key(|row| (row.socket.local, row.socket.peer)),
    }
    let (dropped, again) = (drops(&before.status), again(&before.status));
    let mut drops: Vec<(String, f64)> = drops(&now.status)
        .into_iter()
        .map(|(reason, count)| {
            let rate = rate(dropped.get(&reason).copied().unwrap_or_default(), count);
            (reason, rate)
        })
        .filter(|(_, rate)| *rate > 0.0)
        .collect();
    drops.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    View { busy: busy.collect(), programs, connections, drops, again: rate(again, self::again(&now.status)) }
}

/// Bytes of a connection that wait. A listener's numbers are connections.
fn waiting(socket: &SocketStatus) -> u64 {
    if socket.state == "LISTEN" { 0 } else { u64::from(socket.recv_q) + u64::from(socket.send_q) }
}

fn connections(
    before: &Reading,
    now: &Reading,
    rate: impl Fn(u64, u64) -> f64,
    wanted: impl Fn(&&SocketStatus) -> bool,
) -> Vec<ConnectionRow> {
    type Which = (SocketAddr, SocketAddr, i32, u32);
    let which = |socket: &SocketStatus| -> Which { (socket.local, socket.peer, socket.pid, socket.slot) };
    let earlier: HashMap<Which, &SocketStatus> = before.sockets.iter().map(|socket| (which(socket), socket)).collect();
    now.sockets
        .iter()
        .filter(wanted)
        .map(|socket| {
            let rates = socket.tcp.as_ref().map(|tcp| {
                // One that is new has moved everything since.
                let then = earlier.get(&which(socket)).and_then(|socket| socket.tcp).unwrap_or_default();
                // The slot may have another connection of the same ends now.
                let then = if then.bytes_acked > tcp.bytes_acked { Default::default() } else { then };
                Rates {
                    received: rate(then.bytes_received, tcp.bytes_received),
                    acked: rate(then.bytes_acked, tcp.bytes_acked),
                    again: rate(then.retrans, tcp.retrans),
                }
            });
            ConnectionRow { socket: socket.clone(), rates }
        })
        .collect()
}

/// Dropped frames of all parts, by reason.
fn drops(status: &Status) -> BTreeMap<String, u64> {
    let parts = status.flow_groups.iter().map(|group| &group.status.tally).chain([&status.slow]);
    let mut drops = BTreeMap::new();
    let mut add = |counts: &NamedCounts| {
        for (reason, count) in counts.iter() {
            *drops.entry(reason.to_owned()).or_default() += count;
        }
    };
    parts.for_each(|tally| add(&tally.drops));
    drops
}

fn again(status: &Status) -> u64 {
    let parts = status.flow_groups.iter().map(|group| &group.status.tally).chain([&status.slow]);
    parts.map(|tally| tally.retransmits).sum()
}
