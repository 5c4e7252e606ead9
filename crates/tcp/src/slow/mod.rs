//! The slow path: opening, closing, timers, congestion control. It is one struct, driven by calls. Time and the
//! environment ([`Host`]) are arguments.
//!
//! A connection begins here ([`SlowPath::listen`], [`SlowPath::connect`]) and is handed to a fast path with `Install`.
//! While it has data outstanding, it is checked every control interval. It comes back with its last FIN. Its number is
//! reused only after `Removed`.

mod active_flows;
mod active_open;
mod closing;
mod config;
pub mod congestion;
mod congestion_choice;
mod connections;
mod cookies;
mod direct;
mod ending;
mod ephemeral_ports;
pub mod errno;
mod handshake;
mod host;
mod icmp;
mod inspect;
mod isn;
mod keepalive;
mod listen;
mod opening;
mod passive_open;
mod path_mtu;
mod persist;
mod routes;
mod rto;
mod segments;
mod send_stats;
mod set_options;
mod socket_options;
mod soft_errors;
mod splice;
mod spliced;
mod tcp_state;
#[cfg(test)]
mod tests;
mod time_wait;
mod timers;
mod translation;

pub use config::SlowConfig;
pub use ending::Ending;
pub use host::{Admission, FirstSyn, Host, Route, Snapshots, Steered};
pub use inspect::{ConnectionInfo, Unanswered};
pub use send_stats::SendStats;
pub use tcp_state::TcpState;
pub use translation::{Forwarded, Translation};

use crate::counters::{Counters, Drop};
use crate::flow::{FlowId, FourTuple, Link, Owner, PortId, SocketOptions};
use crate::messages::{ToFast, ToSlow};
use crate::rate_limit::RateLimit;
use crate::time::Micros;
use active_flows::ActiveFlows;
use connections::{ConnectionTable, Phase, SpliceState};
use ephemeral_ports::EphemeralPorts;
use isn::Secrets;
use listen::Listeners;
use opening::OpeningState;
use segments::{Arrival, Reply};
use splice::Asking;
use spliced::Spliced;
use std::collections::HashMap;
use time_wait::TimeWaits;
use timers::Timers;
use towpath_wire::{ParseError, flags, parse};

/// Why `connect` did not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// The service does not carry this destination: the program shall use the kernel.
    NotOurs,
    /// The host's rules refuse the first SYN, or change its addresses: the program shall use the kernel, which has their
    /// answer.
    Refused,
    /// errno (positive).
    Errno(i32),
}

/// The slow path of one service.
pub struct SlowPath {
    config: SlowConfig,
    secrets: Option<Secrets>,
    table: ConnectionTable,
    listeners: Listeners,
    /// Options of owners that have neither connected nor listened yet.
    early_options: HashMap<Owner, SocketOptions>,
    time_wait: TimeWaits,
    timers: Timers,
    active: ActiveFlows,
    /// Flows to check in the next `poll`.
    looks: Vec<FlowId>,
    asking: Asking,
    spliced: Spliced,
    ports: EphemeralPorts,
    /// The next connection whose route is looked up again, while this goes on.
    reroute: Option<u32>,
    resets: RateLimit,
    challenges: RateLimit,
    cookies: RateLimit,
    ident: u16,
    counters: Counters,
}

/// How a frame has come to the slow path.
enum Way {
    /// On the queue of this flow group, which has no flow for it.
    Queue(usize),
    /// From the host, which has named its listener. The flow group answers it.
    Named { flow_group: usize, listener: Owner },
    /// Past the queues of all flow groups.
    Past,
}

impl SlowPath {
    /// A slow path without connections.
    pub fn new(config: SlowConfig) -> Self {
        Self {
            table: ConnectionTable::new(config.max_flows),
            ports: EphemeralPorts::new(&config),
            config,
            secrets: None,
            listeners: Listeners::default(),
            early_options: HashMap::new(),
            time_wait: TimeWaits::default(),
            timers: Timers::default(),
            active: ActiveFlows::default(),
            looks: Vec::new(),
            asking: Asking::default(),
            spliced: Spliced::default(),
            reroute: None,
            resets: RateLimit::default(),
            challenges: RateLimit::default(),
            cookies: RateLimit::default(),
            ident: 0,
            counters: Counters::default(),
        }
    }

    /// Ends a listener, or a connection that is not installed. False = `owner` has an installed flow, or nothing.
    /// The fast path learns of that flow's close from the application's words, and the slow path from `AppClosed`.
    pub fn close(&mut self, now: Micros, owner: Owner, host: &mut dyn Host) -> bool {
        if self.close_listener(now, owner, host) {
            return true;
        }
        match self.table.by_owner(owner) {
            Some(id) if self.table.opening(id).is_some() => {
                self.close_opening(now, id, host);
                true
            }
            _ => false,
        }
    }

    /// Handles a message from a flow group's fast path.
    pub fn on_message(&mut self, now: Micros, flow_group: usize, message: ToSlow, host: &mut dyn Host) {
        match message {
            ToSlow::Segment(port, frame) => self.on_frame(now, Way::Queue(flow_group), port, frame, host),
            ToSlow::Active(flow) => self.activate(now, flow),
            // RFC 3168 §6.1.2: a mark has the same effect as a loss.
            ToSlow::Loss(flow) | ToSlow::Marked(flow) => {
                if let Some(installed) = self.table.running(flow) {
                    installed.lost = true;
                }
                self.look_soon(flow);
            }
            ToSlow::Undone(flow) => {
                if let Some(installed) = self.table.running(flow) {
                    installed.undone = true;
                }
                self.look_soon(flow);
            }
            ToSlow::Closing(flow) => self.look_soon(flow),
            ToSlow::AppClosed(flow) => {
                if let Some(installed) = self.table.running(flow) {
                    installed.orphan = true;
                }
                self.look_soon(flow);
            }
            // The fast path has counted the RST.
            ToSlow::Reset(flow) | ToSlow::Aborted(flow) | ToSlow::Violated(flow) => {
                let why = match message {
                    ToSlow::Reset(_) => Ending::PeerReset,
                    ToSlow::Violated(_) => Ending::Violation,
                    _ => Ending::Aborted,
                };
                if !self.cut_splice(flow, why, errno::ECONNRESET, host) {
                    self.note_end(flow, why);
                    self.remove_flow(flow, host);
                }
            }
            ToSlow::Held(flow, round, held) => self.held(now, flow, round, held, host),
            ToSlow::Removed(flow) => self.removed(flow, host),
        }
    }

    /// Handles a first SYN whose listener the host has named. It is a frame as if it had been received by this flow group,
    /// on this port; its checksum has been checked.
    pub fn on_syn(
        &mut self,
        now: Micros,
        flow_group: usize,
        port: PortId,
        frame: Box<[u8]>,
        listener: Owner,
        host: &mut dyn Host,
    ) {
        self.on_frame(now, Way::Named { flow_group, listener }, port, frame, host);
    }

    /// Handles a frame that has come past the queues of all flow groups.
    pub fn on_stray_frame(&mut self, now: Micros, port: PortId, frame: Box<[u8]>, host: &mut dyn Host) {
        self.on_frame(now, Way::Past, port, frame, host);
    }

    /// Handles due timers and reported flows, and once per control interval all active flows. Call it at
    /// [`SlowPath::next_deadline`] and after messages.
    pub fn poll(&mut self, now: Micros, flows: &(impl Snapshots + ?Sized), host: &mut dyn Host) {
        let flows: &dyn Snapshots = &flows;
        while let Some((id, stamp)) = self.timers.pop(now) {
            let Some(connection) = self.table.get(id).filter(|connection| connection.timer == stamp) else { continue };
            match connection.phase {
                Phase::Opening(_) => self.handshake_timeout(now, id, host),
                Phase::Installed(ref installed) if installed.fin_wait => self.fin_wait_timeout(now, id, flows, host),
                Phase::Installed(_) => self.keepalive_timeout(now, id, flows, host),
                Phase::Direct => {}
            }
        }
        self.look_at_reported(now, flows, host);
        self.look_at_active(now, flows, host);
        self.look_at_asked(now, flows, host);
        self.look_at_spliced(now, host);
        self.expire_time_wait(now, host);
        self.give_back_ports(now, host);
        self.reroute_some(host);
    }

    /// When `poll` must be called; `None` = not before the next message or call.
    pub fn next_deadline(&self) -> Option<Micros> {
        let at_once = (!self.looks.is_empty() || self.reroute.is_some()).then_some(Micros(0));
        let later = [
            self.timers.next(),
            self.active.next(),
            self.time_wait.next(),
            self.ports.next_look(),
            self.asking.next(),
            self.spliced.next(),
        ];
        later.into_iter().chain([at_once]).flatten().min()
    }

    /// Schedules a check of the flow for the next `poll`.
    pub(super) fn look_soon(&mut self, id: FlowId) {
        if let Some(installed) = self.table.running(id)
            && !installed.look
        {
            installed.look = true;
            self.looks.push(id);
        }
    }

    /// Checks all flows with a report.
    pub(super) fn look_at_reported(&mut self, now: Micros, flows: &dyn Snapshots, host: &mut dyn Host) {
        for id in std::mem::take(&mut self.looks) {
            if self.table.running(id).is_some_and(|installed| std::mem::take(&mut installed.look)) {
                let snapshot = flows.snapshot(id);
                self.look_at_icmp(now, id, &snapshot, host);
                self.report_loss(now, id, &snapshot, host);
                self.look_at_closing(now, id, &snapshot, host);
            }
        }
    }

    /// Handles a segment that belongs to no flow of the fast path that received it.
    fn on_frame(&mut self, now: Micros, way: Way, port: PortId, frame: Box<[u8]>, host: &mut dyn Host) {
        let segment = match parse(&frame) {
            Ok(segment) => segment,
            Err(error) => {
                return match towpath_wire::icmp::parse(&frame) {
                    Some(error) => self.on_icmp(now, error, host),
                    None => self.counters.drop(reason(error)),
                };
            }
        };
        let (flow_group, came_to, listener) = match way {
            Way::Queue(flow_group) => (flow_group, Some(flow_group), None),
            Way::Named { flow_group, listener } => (flow_group, None, Some(listener)),
            Way::Past => (0, None, None),
        };
        let arrival = Arrival { came_to, listener, ..Arrival::new(flow_group, port, segment, frame) };
        if arrival.has(flags::SYN) && segment.flags & (flags::FIN | flags::RST) != 0 {
            return self.counters.drop(Drop::BadFlags);
        }
        let Some(id) = self.table.by_tuple(&arrival.tuple) else { return self.on_stray(now, arrival, host) };
        let Some(connection) = self.table.get(id) else { return };
        match &connection.phase {
            Phase::Opening(opening) if opening.state == OpeningState::SynReceived => {
                self.in_syn_received(now, id, arrival, host)
            }
            Phase::Opening(_) => self.in_syn_sent(now, id, &arrival, host),
            Phase::Installed(installed) if installed.removing => match self.time_wait.get(&arrival.tuple) {
                Some(entry) => self.in_time_wait(now, entry, &arrival, false, host),
                None => self.counters.drop(Drop::NoSocket),
            },
            Phase::Installed(installed) if installed.is_spliced() && arrival.has(flags::SYN) => {
                self.syn_on_splice(now, id, &arrival, host);
            }
            // RFC 5961 §4: a SYN gets a challenge ACK, whatever its numbers. This also repeats a lost last ACK of the
            // handshake.
            Phase::Installed(_) if arrival.has(flags::SYN) => {
                self.counters.drop(Drop::Duplicate);
                host.send(connection.flow_group, ToFast::Challenge(id));
            }
            // The flow has not taken it. A segment that came to another flow group was not offered to it.
            Phase::Installed(installed)
                if installed.is_spliced()
                    || (installed.splice == SpliceState::Asked && arrival.came_to == Some(connection.flow_group)) =>
            {
                let state = installed.splice;
                self.keep_segment(id, state, arrival, host);
            }
            // It arrived before `Install`, or at another flow group.
            Phase::Installed(_) => {
                self.counters.relayed += 1;
                host.send(connection.flow_group, ToFast::Inject(arrival.port, arrival.frame));
            }
            // A direct connection has no segments.
            Phase::Direct => self.counters.drop(Drop::NoSocket),
        }
    }

    /// Handles a segment without a connection, in TIME-WAIT, LISTEN or CLOSED (RFC 9293 §3.10.7.1 and §3.10.7.2).
    fn on_stray(&mut self, now: Micros, arrival: Arrival, host: &mut dyn Host) {
        let tuple = &arrival.tuple;
        if let Some(entry) = self.time_wait.get(tuple) {
            return self.in_time_wait(now, entry, &arrival, true, host);
        }
        // RFC 9293 §3.9.2.3, MUST-57: segments to broadcast and multicast addresses are dropped.
        if !host.is_local(tuple.local) {
            return self.counters.drop(Drop::NotLocal);
        }
        let control = arrival.segment.flags & (flags::SYN | flags::ACK | flags::RST);
        if control == flags::SYN {
            if let Some(listener) = self.listener_of_syn(&arrival, host) {
                self.passive_open(now, &arrival, listener, None, host);
                return;
            }
            if !host.finds_listeners(arrival.port) {
                // The tuple was ours a moment ago. The peer repeats the SYN, and the host names its listener or resets it.
                return self.counters.drop(Drop::NoSocket);
            }
        }
        if control == 0 && self.listeners.find(tuple.local, tuple.local_port).is_some() {
            // RFC 9293 §3.10.7.2, fourth check: a listener drops it.
            return self.counters.drop(Drop::NoAck);
        }
        if let Some(arrival) = self.hear_cookie(now, arrival, host) {
            self.counters.drop(Drop::NoSocket);
            self.refuse(now, &arrival, host);
        }
    }

    /// Answers a segment with RST, if it may get one and the rate limit allows it, and the host's kernel does not have the
    /// connection.
    fn refuse(&mut self, now: Micros, arrival: &Arrival, host: &mut dyn Host) {
        if let Some(reset) = Reply::reset_for(arrival)
            && self.may_reset(now, host)
            && !self.is_the_kernels(arrival, host)
        {
            self.counters.resets += 1;
            self.transmit(arrival.flow_group, &arrival.tuple, &arrival.way_back(), &reset, host);
        }
    }

    fn may_reset(&mut self, now: Micros, host: &mut dyn Host) -> bool {
        let key = self.secrets(host).rate();
        self.resets.allow(now, self.config.replies_per_s, key)
    }

    /// May a connection that got its last challenge ACK at `last` get another one (RFC 5961 §7)?
    fn may_challenge(&mut self, now: Micros, last: Option<Micros>, host: &mut dyn Host) -> bool {
        let interval_us = u64::from(self.config.challenge_interval_ms) * 1000;
        if last.is_some_and(|last| now.since(last) < interval_us) {
            return false;
        }
        let key = self.secrets(host).rate() ^ 1;
        self.challenges.allow(now, self.config.replies_per_s, key)
    }

    /// Sends the SYN of an active open: the host may have its way.
    fn transmit_first_syn(
        &mut self,
        (owner, flow_group): (Owner, usize),
        tuple: &FourTuple,
        link: &Link,
        reply: &Reply,
        host: &mut dyn Host,
    ) -> FirstSyn {
        self.ident = self.ident.wrapping_add(1);
        let frame = reply.frame(tuple, link, self.ident);
        let sent = host.send_first_syn(owner, tuple, link.port, &frame);
        if sent == FirstSyn::ByPort {
            host.send(flow_group, ToFast::Transmit(link.port, frame));
        }
        sent
    }

    /// Sends a frame that the slow path has made.
    fn transmit(&mut self, flow_group: usize, tuple: &FourTuple, link: &Link, reply: &Reply, host: &mut dyn Host) {
        self.ident = self.ident.wrapping_add(1);
        host.send(flow_group, ToFast::Transmit(link.port, reply.frame(tuple, link, self.ident)));
    }

    /// Arms a connection's timer.
    fn arm(&mut self, id: FlowId, at: Micros) {
        if let Some(connection) = self.table.get_mut(id) {
            connection.timer = self.timers.arm(at, id);
        }
    }

    /// The secret keys of this run.
    fn secrets(&mut self, host: &mut dyn Host) -> Secrets {
        *self.secrets.get_or_insert_with(|| Secrets::new(|| host.random()))
    }
}

/// The drop reason of a frame that is not a valid segment.
fn reason(error: ParseError) -> Drop {
    match error {
        ParseError::Truncated => Drop::Truncated,
        ParseError::NotTcp => Drop::NotTcp,
        ParseError::IpChecksum => Drop::IpChecksum,
        ParseError::BadHeader => Drop::BadHeader,
        ParseError::BadSource => Drop::BadSource,
    }
}
