//! The slow path: opening, closing, timers, congestion control. One struct, driven by calls; time and the world ([`Host`]) are
//! arguments.
//!
//! A connection begins here ([`SlowPath::listen`], [`SlowPath::connect`]), is handed to a fast path with `Install`, is watched while
//! it has something outstanding, and comes back with its last FIN. Its number is used again only after `Removed`.

mod active;
mod closing;
mod config;
pub mod congestion;
mod connections;
mod cookies;
mod direct;
pub mod errno;
mod handshake;
mod host;
mod icmp;
mod isn;
mod keepalive;
mod listen;
mod negotiate;
mod open;
mod options;
mod path_mtu;
mod persist;
mod rto;
mod segments;
#[cfg(test)]
mod tests;
mod time_wait;
mod timers;
mod trouble;
mod usage;

pub use config::SlowConfig;
pub use connections::State;
pub use host::{Admission, Host, Route, Snapshots};
pub use trouble::Trouble;
pub use usage::Usage;

use crate::buffers::PortId;
use crate::counters::{Counters, Drop};
use crate::flow::{FlowId, FourTuple, Link, Owner, SocketOptions};
use crate::messages::{ToFast, ToSlow};
use crate::rate_limit::RateLimit;
use crate::time::Micros;
use active::ActiveFlows;
use connections::{Connections, Phase};
use isn::Secrets;
use listen::Listeners;
use negotiate::Stage;
use segments::{Arrival, Reply};
use std::collections::HashMap;
use time_wait::TimeWaits;
use timers::Timers;
use towpath_wire::{ParseError, flags, parse};

/// How many connections are asked for a new route in one `poll` after routes have changed.
const REROUTES_PER_POLL: u32 = 1024;

/// Why `connect` did not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// The destination is not carried by this service: the program shall use the kernel.
    NotOurs,
    /// errno (positive).
    Errno(i32),
}

/// One line of [`SlowPath::connections`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// Its state; for an installed flow as of the slow path's last look ([`State::of_flags`] of a snapshot is fresher).
    pub state: State,
    /// Whose it is; nobody's in TIME-WAIT.
    pub owner: Option<Owner>,
    /// Its addresses; a listener's remote end, and what a connect does not know yet, is 0.
    pub tuple: FourTuple,
    /// Its number if it is installed.
    pub flow: Option<FlowId>,
    /// Does its peer answer?
    pub trouble: Trouble,
}

/// The slow path of one service.
pub struct SlowPath {
    config: SlowConfig,
    secrets: Option<Secrets>,
    table: Connections,
    listeners: Listeners,
    /// Of owners that have neither connected nor listened yet.
    early_options: HashMap<Owner, SocketOptions>,
    time_wait: TimeWaits,
    timers: Timers,
    active: ActiveFlows,
    /// Flows to look at in the next `poll`.
    looks: Vec<FlowId>,
    /// Next connection to ask for a new route.
    reroute: Option<u32>,
    resets: RateLimit,
    challenges: RateLimit,
    cookies: RateLimit,
    ident: u16,
    counters: Counters,
}

impl SlowPath {
    /// A slow path without connections.
    pub fn new(config: SlowConfig) -> Self {
        Self {
            table: Connections::new(config.max_flows),
            config,
            secrets: None,
            listeners: Listeners::default(),
            early_options: HashMap::new(),
            time_wait: TimeWaits::default(),
            timers: Timers::default(),
            active: ActiveFlows::default(),
            looks: Vec::new(),
            reroute: None,
            resets: RateLimit::default(),
            challenges: RateLimit::default(),
            cookies: RateLimit::default(),
            ident: 0,
            counters: Counters::default(),
        }
    }

    /// Ends a listener, or a connection that is not installed (yet or any more). False = `owner` has an installed flow (or none):
    /// its core learns of the close from the application's words, and this module from `AppClosed`.
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

    /// What core `core` says.
    pub fn on_message(&mut self, now: Micros, core: usize, message: ToSlow, host: &mut dyn Host) {
        match message {
            ToSlow::Segment(port, frame) => self.on_frame(now, core, port, frame, host),
            ToSlow::Active(flow) => self.activate(now, flow),
            // RFC 3168 §6.1.2: a mark is answered as a loss is.
            ToSlow::Loss(flow) | ToSlow::Marked(flow) => {
                if let Some(live) = self.table.running(flow) {
                    live.lost = true;
                }
                self.look_soon(flow);
            }
            ToSlow::Undone(flow) => {
                if let Some(live) = self.table.running(flow) {
                    live.undone = true;
                }
                self.look_soon(flow);
            }
            ToSlow::Closing(flow) => self.look_soon(flow),
            ToSlow::AppClosed(flow) => {
                if let Some(live) = self.table.running(flow) {
                    live.orphan = true;
                }
                self.look_soon(flow);
            }
            // The fast path has counted the RST.
            ToSlow::Reset(flow) | ToSlow::Aborted(flow) => self.remove_flow(flow, host),
            ToSlow::Removed(flow) => self.removed(flow, host),
        }
    }

    /// Routes or neighbours have changed: connects that wait for one go on, installed flows follow (in the next polls).
    pub fn retry_routes(&mut self, now: Micros, host: &mut dyn Host) {
        let resolving = |phase: &Phase| matches!(phase, Phase::Opening(opening) if opening.stage == Stage::Resolving);
        let waiting: Vec<FlowId> = self.table.iter().filter(|(_, c)| resolving(&c.phase)).map(|(id, _)| id).collect();
        for id in waiting {
            self.retry_route(now, id, host);
        }
        self.reroute = Some(0);
    }

    /// Timers, flows that something was reported of, and once per control interval all active flows. To be called when
    /// [`SlowPath::next_deadline`] has come and after messages.
    pub fn poll(&mut self, now: Micros, flows: &(impl Snapshots + ?Sized), host: &mut dyn Host) {
        let flows: &dyn Snapshots = &flows;
        while let Some((id, stamp)) = self.timers.pop(now) {
            let Some(connection) = self.table.get(id).filter(|connection| connection.timer == stamp) else { continue };
            match connection.phase {
                Phase::Opening(_) => self.handshake_timeout(now, id, host),
                Phase::Live(ref live) if live.fin_wait => self.fin_wait_timeout(now, id, flows, host),
                Phase::Live(_) => self.keepalive_timeout(now, id, flows, host),
                Phase::Direct => {}
            }
        }
        self.look_at_reported(now, flows, host);
        self.look_at_active(now, flows, host);
        self.expire_time_wait(now, host);
        self.reroute_some(host);
    }

    /// When `poll` has something to do; `None` = not before the next message or call.
    pub fn next_deadline(&self) -> Option<Micros> {
        let at_once = (!self.looks.is_empty() || self.reroute.is_some()).then_some(Micros(0));
        [at_once, self.timers.next(), self.active.next(), self.time_wait.next()].into_iter().flatten().min()
    }

    /// What has been counted so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How many flows are watched, and how many tuples are in TIME-WAIT.
    pub fn sizes(&self) -> (usize, usize) {
        (self.active.len(), self.time_wait.len())
    }

    /// Everything there is: listeners, connections in all states, TIME-WAIT.
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        let nowhere = |local: std::net::IpAddr, local_port| FourTuple {
            local,
            local_port,
            remote: open::unspecified(local),
            remote_port: 0,
        };
        let listeners = self.listeners.iter().map(|(addr, port, listener)| ConnectionInfo {
            state: State::Listen,
            owner: Some(listener.owner),
            tuple: nowhere(addr, port),
            flow: None,
            trouble: Trouble::default(),
        });
        let connections = self.table.iter().map(|(id, connection)| ConnectionInfo {
            state: match &connection.phase {
                Phase::Opening(opening) if opening.stage == Stage::SynReceived => State::SynReceived,
                Phase::Opening(_) => State::SynSent,
                Phase::Live(live) if live.removing => State::Closed,
                Phase::Live(live) => State::of_flags(live.flags),
                Phase::Direct => State::Established,
            },
            owner: Some(connection.owner),
            tuple: connection.tuple,
            flow: matches!(connection.phase, Phase::Live(_)).then_some(id),
            trouble: match &connection.phase {
                Phase::Live(live) => live.trouble(),
                Phase::Opening(opening) => Trouble { timeouts: opening.timeouts, probes: 0 },
                Phase::Direct => Trouble::default(),
            },
        });
        let trouble = Trouble::default();
        let waiting = |tuple| ConnectionInfo { state: State::TimeWait, owner: None, tuple, flow: None, trouble };
        listeners.chain(connections).chain(self.time_wait.iter().map(waiting)).collect()
    }

    /// A segment that no fast path could place.
    fn on_frame(&mut self, now: Micros, core: usize, port: PortId, frame: Box<[u8]>, host: &mut dyn Host) {
        let segment = match parse(&frame) {
            Ok(segment) => segment,
            Err(error) => {
                return match towpath_wire::icmp::parse(&frame) {
                    Some(error) => self.on_icmp(now, error, host),
                    None => self.counters.drop(reason(error)),
                };
            }
        };
        let arrival = Arrival::new(core, port, segment, frame);
        if arrival.has(flags::SYN) && segment.flags & (flags::FIN | flags::RST) != 0 {
            return self.counters.drop(Drop::BadFlags);
        }
        let Some(id) = self.table.by_tuple(&arrival.tuple) else { return self.on_stray(now, arrival, host) };
        let Some(connection) = self.table.get(id) else { return };
        match &connection.phase {
            Phase::Opening(opening) if opening.stage == Stage::SynReceived => {
                self.in_syn_received(now, id, arrival, host)
            }
            Phase::Opening(_) => self.in_syn_sent(now, id, &arrival, host),
            Phase::Live(live) if live.removing => match self.time_wait.get(&arrival.tuple) {
                Some(entry) => self.in_time_wait(now, entry, &arrival, false, host),
                None => self.counters.drop(Drop::NoSocket),
            },
            // RFC 5961 §4: whatever its numbers, a SYN gets a challenge ACK. It is also what a lost last ACK needs.
            Phase::Live(_) if arrival.has(flags::SYN) => {
                self.counters.drop(Drop::Duplicate);
                host.send(connection.core, ToFast::Challenge(id));
            }
            // It came before `Install`, or to another core.
            Phase::Live(_) => host.send(connection.core, ToFast::Inject(arrival.port, arrival.frame)),
            // Nobody sends segments for it.
            Phase::Direct => self.counters.drop(Drop::NoSocket),
        }
    }

    /// A segment without a connection: TIME-WAIT, a listener, or nobody's (RFC 9293 §3.10.7.1 and §3.10.7.2).
    fn on_stray(&mut self, now: Micros, arrival: Arrival, host: &mut dyn Host) {
        let tuple = &arrival.tuple;
        if let Some(entry) = self.time_wait.get(tuple) {
            return self.in_time_wait(now, entry, &arrival, true, host);
        }
        // RFC 9293 §3.9.2.3, MUST-57: broadcast and multicast addresses are nobody's.
        if !host.is_local(tuple.local) {
            return self.counters.drop(Drop::NotLocal);
        }
        let control = arrival.segment.flags & (flags::SYN | flags::ACK | flags::RST);
        if self.listeners.find(tuple.local, tuple.local_port).is_some() {
            if control == flags::SYN {
                self.passive_open(now, &arrival, None, host);
                return;
            }
            if control == 0 {
                // RFC 9293 §3.10.7.2, fourth check: a listener does not answer it.
                return self.counters.drop(Drop::NoAck);
            }
        }
        if let Some(arrival) = self.hear_cookie(now, arrival, host) {
            self.counters.drop(Drop::NoSocket);
            self.refuse(now, &arrival, host);
        }
    }

    /// Answers a segment with RST, if it may get one and not too many have been sent.
    fn refuse(&mut self, now: Micros, arrival: &Arrival, host: &mut dyn Host) {
        if let Some(reset) = Reply::reset_for(arrival)
            && self.may_reset(now, host)
        {
            self.counters.resets += 1;
            self.transmit(arrival.core, &arrival.tuple, &arrival.way_back(), &reset, host);
        }
    }

    fn may_reset(&mut self, now: Micros, host: &mut dyn Host) -> bool {
        let key = self.secrets(host).rate();
        self.resets.allow(now, self.config.replies_per_s, key)
    }

    /// May one more challenge ACK go out to a connection that got its last one at `last` (RFC 5961 §7)?
    fn may_challenge(&mut self, now: Micros, last: Option<Micros>, host: &mut dyn Host) -> bool {
        let interval_us = u64::from(self.config.challenge_interval_ms) * 1000;
        if last.is_some_and(|last| now.since(last) < interval_us) {
            return false;
        }
        let key = self.secrets(host).rate() ^ 1;
        self.challenges.allow(now, self.config.replies_per_s, key)
    }

    /// Sends a frame of our own.
    fn transmit(&mut self, core: usize, tuple: &FourTuple, link: &Link, reply: &Reply, host: &mut dyn Host) {
        self.ident = self.ident.wrapping_add(1);
        host.send(core, ToFast::Transmit(link.port, reply.frame(tuple, link, self.ident)));
    }

    /// Arms a connection's timer.
    fn arm(&mut self, id: FlowId, at: Micros) {
        if let Some(connection) = self.table.get_mut(id) {
            connection.timer = self.timers.arm(at, id);
        }
    }

    /// The keys of this run.
    fn secrets(&mut self, host: &mut dyn Host) -> Secrets {
        *self.secrets.get_or_insert_with(|| Secrets::new(|| host.random()))
    }

    /// Asks for the routes of some installed flows again.
    fn reroute_some(&mut self, host: &mut dyn Host) {
        let Some(first) = self.reroute else { return };
        let end = first.saturating_add(REROUTES_PER_POLL).min(self.table.high_water());
        for id in (first..end).map(FlowId) {
            self.ask_route(id, host);
        }
        self.reroute = (end < self.table.high_water()).then_some(end);
    }

    /// Asks for the route of an installed flow again, and has it follow. Its addresses stay (RFC 9293 §3.9.1.1 MUST-45).
    fn ask_route(&mut self, id: FlowId, host: &mut dyn Host) {
        let Some(connection) = self.table.get_mut(id) else { return };
        let Phase::Live(live) = &mut connection.phase else { return };
        let tuple = connection.tuple;
        if let Route::Via { link, mtu, .. } = host.route(tuple.remote, Some(tuple.local))
            && !live.removing
        {
            if link != live.link {
                live.link = link;
                host.send(connection.core, ToFast::Relink(id, link));
            }
            let payload = mtu.saturating_sub(live.path.overhead()).clamp(1, live.peer_payload.max(1));
            if let Some(mss) = live.path.reroute(payload) {
                host.send(connection.core, ToFast::SetMss(id, mss));
            }
        }
    }
}

/// The drop reason of a frame that is no segment.
fn reason(error: ParseError) -> Drop {
    match error {
        ParseError::Truncated => Drop::Truncated,
        ParseError::NotTcp => Drop::NotTcp,
        ParseError::IpChecksum => Drop::IpChecksum,
        ParseError::BadHeader => Drop::BadHeader,
        ParseError::BadSource => Drop::BadSource,
    }
}
