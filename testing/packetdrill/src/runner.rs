//! The runner of scripts: the clock, the wire, and the comparison.

use crate::Report;
use crate::connection::ScriptedConnection;
use crate::descriptors::Descriptors;
use crate::frame::{self, Frame, REMOTE, REMOTE_MAC};
use crate::info::{Info, Refusal};
use crate::notation::{ACK, Endpoint, FIN, SYN, Segment};
use crate::pending_call::{PendingCall, Progress, show};
use crate::port::{ScriptPort, Wire};
use crate::script::{Action, Call, Event, Icmp, Returns, Script, ScriptError, When};
use crate::settings::Settings;
use std::collections::VecDeque;
use std::net::IpAddr;
use towpath_sim::Node;
use towpath_tcp::flow::{FlowSnapshot, FourTuple};
use towpath_tcp::slow::TcpState;
use towpath_tcp::time::Micros;

/// Time 0 of the script.
const START: Micros = Micros(10_000_000);
/// Default port of the stack.
pub const LOCAL_PORT: u16 = 8080;
/// Default port of a peer that connects.
const REMOTE_PORT: u16 = 33_000;
/// Most turns without progress of the clock. With more the stack is in an endless loop.
const TURNS_MAX: u32 = 20_000;

/// One run.
pub struct Runner {
    pub(crate) settings: Settings,
    pub(crate) node: Node,
    pub(crate) now: Micros,
    pub(crate) descriptors: Descriptors,
    pub(crate) connections: Vec<ScriptedConnection>,
    /// The connection of lines without ports.
    pub(crate) current: Option<usize>,
    wire: Wire,
    sent: VecDeque<(Micros, Vec<u8>)>,
    /// The script's time of the previous event.
    base: Micros,
    pending: Option<PendingCall>,
    trace: Vec<String>,
    /// Acknowledgement number and window field of the stack's last segment.
    offered: (Option<u32>, Option<u16>),
}

impl Runner {
    /// A runner with these settings.
    pub fn new(settings: Settings) -> Self {
        let wire = Wire::default();
        let mut node = Node::new(settings.node.clone(), Box::new(ScriptPort::new(wire.clone(), settings.mtu)));
        node.add_route(IpAddr::from(REMOTE), REMOTE_MAC, settings.mtu);
        Self {
            settings,
            node,
            now: START,
            descriptors: Descriptors::default(),
            connections: Vec::new(),
            current: None,
            wire,
            sent: VecDeque::new(),
            base: START,
            pending: None,
            trace: Vec::new(),
            offered: (None, None),
        }
    }

    /// Runs all events.
    pub fn run(mut self, script: &Script) -> Report {
        let mut result = script.events.iter().try_for_each(|event| self.event(event));
        let last = script.events.last().map_or(0, |event| event.line);
        if result.is_ok() {
            result = self.end(last);
        }
        Report { trace: self.trace, result }
    }

    fn end(&mut self, line: usize) -> Result<(), ScriptError> {
        self.settle(line)?;
        if let Some(pending) = &self.pending {
            return Err(failed(pending.line, "the call has not returned"));
        }
        match self.sent.front() {
            Some((at, bytes)) if !self.settings.linux => {
                let (at, shown) = (self.show_time(*at), self.show_frame(bytes));
                Err(failed(line, format!("not in the script: {at} > {shown}")))
            }
            _ => Ok(()),
        }
    }

    fn event(&mut self, event: &Event) -> Result<(), ScriptError> {
        let line = event.line;
        let range = match event.when {
            When::Any => None,
            When::At { relative, from, to } => {
                let base = if relative { self.base } else { START };
                Some((base.after(from), base.after(to)))
            }
        };
        if let Action::Outbound(ports, segment) = &event.action {
            self.base = range.map_or(self.base, |(from, _)| from);
            self.outbound(line, range, *ports, segment)?;
            if range.is_none() {
                self.base = self.now;
            }
            return Ok(());
        }
        let (from, to) = range.unwrap_or((self.now, self.now));
        self.base = from;
        self.advance(line, from)?;
        match &event.action {
            Action::Outbound(..) | Action::Command(_) => {}
            Action::Inbound(ports, segment) => self.inbound(*ports, segment),
            Action::Icmp(icmp) => self.icmp(line, icmp)?,
            Action::Call(call) => self.call(line, call, to)?,
            Action::Code(code) => self.assert(line, code)?,
        }
        self.settle(line)
    }

    /// Advances the clock to `target`, stopping whenever the stack has work.
    fn advance(&mut self, line: usize, target: Micros) -> Result<(), ScriptError> {
        loop {
            self.settle(line)?;
            match self.next_stop().filter(|stop| *stop <= target) {
                Some(stop) => self.now = stop,
                None => break,
            }
        }
        self.now = self.now.max(target);
        self.settle(line)
    }

    /// When the stack must be called next.
    fn next_stop(&self) -> Option<Micros> {
        self.node.next_deadline().map(|due| due.max(self.now.after(1)))
    }

    /// Lets the stack do all its current work, collects its frames, and retries the pending call.
    fn settle(&mut self, line: usize) -> Result<(), ScriptError> {
        let mut turns = 0;
        loop {
            let mut busy = self.node.step(self.now);
            self.sent.extend(self.wire.take().into_iter().map(|bytes| (self.now, bytes)));
            busy |= self.retry()?;
            if !busy {
                return Ok(());
            }
            turns += 1;
            if turns > TURNS_MAX {
                return Err(failed(line, "the stack does not come to rest"));
            }
        }
    }

    fn inbound(&mut self, ports: Endpoint, segment: &Segment) {
        let connection = match ports {
            Some((remote, local)) => self.connection(local, remote),
            None => match self.current {
                Some(current) => current,
                None => self.connection(self.descriptors.listening_port().unwrap_or(LOCAL_PORT), REMOTE_PORT),
            },
        };
        self.current = Some(connection);
        self.note(format!("< {segment}"));
        if segment.has(SYN) && !segment.has(ACK) && !self.is_known(connection) {
            self.connections[connection].rebirth();
        }
        let frame = self.connections[connection].inbound(segment);
        self.wire.send(frame::build(&frame));
    }

    /// Does the stack have this connection?
    fn is_known(&self, id: usize) -> bool {
        let ports = (self.connections[id].local, self.connections[id].remote);
        let is_it = |tuple: FourTuple| (tuple.local_port, tuple.remote_port) == ports;
        self.node.list().iter().any(|entry| entry.state != TcpState::TimeWait && is_it(entry.tuple))
    }

    /// The connection with these ports, created if there is none.
    fn connection(&mut self, local: u16, remote: u16) -> usize {
        let found = self.connections.iter().position(|c| c.local == local && c.remote == remote);
        found.unwrap_or_else(|| {
            self.connections.push(ScriptedConnection::new(local, remote));
            self.connections.len() - 1
        })
    }

    fn icmp(&mut self, line: usize, icmp: &Icmp) -> Result<(), ScriptError> {
        let Some(current) = self.current else { return Err(failed(line, "there is no connection yet")) };
        let connection = &self.connections[current];
        let (ports, seq) = ((connection.local, connection.remote), connection.wire_seq(icmp.seq));
        self.note(format!("< icmp type {} code {} mtu {}", icmp.kind, icmp.code, icmp.mtu));
        self.wire.send(frame::icmp(icmp.kind, icmp.code, icmp.mtu, ports, seq, icmp.len));
        Ok(())
    }

    fn outbound(
        &mut self,
        line: usize,
        range: Option<(Micros, Micros)>,
        ports: Endpoint,
        expected: &Segment,
    ) -> Result<(), ScriptError> {
        let tolerance = self.settings.tolerance_us;
        let limit = range.map(|(_, to)| to.after(tolerance));
        self.settle(line)?;
        while self.sent.is_empty() {
            match self.next_stop() {
                Some(stop) if limit.is_none_or(|limit| stop <= limit) => self.now = stop,
                _ => return Err(failed(line, format!("expected > {expected}, and nothing was sent"))),
            }
            self.settle(line)?;
        }
        let Some((at, bytes)) = self.sent.pop_front() else { return Ok(()) };
        if self.is_window_update(&bytes, expected) {
            return self.outbound(line, range, ports, expected);
        }
        let moment = self.show_time(at);
        let wrong =
            |actual: &str| failed(line, format!("\n    expected > {expected}\n    actual   > {actual} at {moment}"));
        let mut frame = frame::parse(&bytes).map_err(|error| wrong(&error))?;
        self.join(&mut frame, expected);
        let id = self.sender(&frame, ports).ok_or_else(|| wrong(&format!("{} (another connection)", frame.segment)))?;
        let connection = &mut self.connections[id];
        connection.learn(&frame, expected);
        let mut actual = connection.outbound(&frame);
        connection.stamp(&mut actual, expected, self.settings.tick_us, tolerance);
        let right_payload = connection.payload_is_right(&actual, &frame.payload);
        self.note_at(at, format!("> {actual}"));
        if let Some(difference) = difference(expected, &actual, self.settings.linux) {
            return Err(wrong(&format!("{} ({difference})", shown_like(&actual, expected))));
        }
        if !right_payload {
            return Err(wrong("the wrong bytes"));
        }
        match range {
            Some((from, to)) if at.after(tolerance) < from || at > to.after(tolerance) => {
                let (from, to) = (self.show_time(from), self.show_time(to));
                Err(failed(line, format!("> {expected} was sent at {moment}, expected between {from} and {to}")))
            }
            _ => Ok(()),
        }
    }

    /// In Linux's scripts: is this an empty segment that only changes the window? Stacks may send those at different
    /// times.
    fn is_window_update(&mut self, bytes: &[u8], expected: &Segment) -> bool {
        let Ok(frame) = frame::parse(bytes) else { return false };
        let offer = (frame.segment.ack, frame.segment.win);
        let before = std::mem::replace(&mut self.offered, offer);
        let empty = frame.segment.flags == ACK && frame.segment.len == 0;
        let more = offer.0 == before.0 && offer.1 != before.1;
        self.settings.linux && empty && more && expected.len > 0
    }

    /// Joins adjacent frames to one of Linux's super-segments, up to the expected length.
    fn join(&mut self, frame: &mut Frame, expected: &Segment) {
        while frame.segment.len > 0 && frame.segment.len < expected.len && self.settings.linux {
            let Some((_, bytes)) = self.sent.front() else { return };
            let Ok(next) = frame::parse(bytes) else { return };
            let end = frame.segment.seq.wrapping_add(frame.segment.len);
            if next.segment.seq != end || next.segment.len == 0 || frame.segment.has(FIN) {
                return;
            }
            frame.payload.extend(&next.payload);
            let (seq, len) = (frame.segment.seq, frame.segment.len + next.segment.len);
            frame.segment = Segment { seq, len, ..next.segment };
            self.sent.pop_front();
        }
    }

    /// The connection of a frame of ours, if the line applies to it.
    fn sender(&mut self, frame: &Frame, ports: Endpoint) -> Option<usize> {
        if ports.is_some_and(|ports| ports != (frame.source, frame.destination)) {
            return None;
        }
        let opens = frame.segment.has(SYN) && !frame.segment.has(ACK);
        let id = self.connection(frame.source, frame.destination);
        if ports.is_none() && self.current.is_some_and(|current| current != id) && !opens {
            return None;
        }
        self.current = Some(id);
        Some(id)
    }

    fn assert(&mut self, line: usize, code: &str) -> Result<(), ScriptError> {
        self.info().check(code).map_err(|refusal| match refusal {
            Refusal::Unsupported(what) => ScriptError::Unsupported { line, what },
            Refusal::False(what) => failed(line, what),
        })
    }

    /// The current connection's state and snapshot, or the listener's before there is one.
    fn info(&self) -> Info {
        let list = self.node.list();
        let tuple = self.current.map(|id| (self.connections[id].local, self.connections[id].remote));
        let entry = list.iter().find(|entry| match tuple {
            Some(ports) => ports == (entry.tuple.local_port, entry.tuple.remote_port),
            None => entry.state == TcpState::Listen,
        });
        let Some(entry) = entry else { return Info { state: TcpState::Closed, flow: FlowSnapshot::default() } };
        match entry.flow.filter(|_| entry.state != TcpState::Closed) {
            Some(flow) => {
                let flow = self.node.snapshot(flow);
                Info { state: TcpState::of_flags(flow.flags), flow }
            }
            None => Info { state: entry.state, flow: FlowSnapshot::default() },
        }
    }

    /// Sequence number of the current peer's first byte.
    pub(crate) fn first_received(&self) -> u32 {
        self.current.map_or(1, |id| self.connections[id].first_received())
    }

    fn call(&mut self, line: usize, call: &Call, to: Micros) -> Result<(), ScriptError> {
        // Only one call is pending at a time.
        while self.pending.is_some() {
            match self.next_stop() {
                Some(stop) if stop <= to.after(3_600_000_000) => self.now = stop,
                _ => return Err(failed(line, "the call before has not returned")),
            }
            self.settle(line)?;
        }
        self.pending = Some(PendingCall { line, call: call.clone(), to, progress: Progress::default() });
        self.retry().map(|_| ())
    }

    /// Retries the pending call. True = it has returned.
    fn retry(&mut self) -> Result<bool, ScriptError> {
        let Some(mut pending) = self.pending.take() else { return Ok(false) };
        let line = pending.line;
        let done = self.attempt(&pending.call, &mut pending.progress);
        let done = done.map_err(|what| ScriptError::Unsupported { line, what })?;
        let Some(outcome) = done else {
            if self.now > pending.to.after(self.settings.tolerance_us) {
                return Err(failed(line, format!("{}() has not returned", pending.call.name)));
            }
            self.pending = Some(pending);
            return Ok(false);
        };
        let result = outcome.map_err(|wrong| failed(line, wrong))?;
        self.note(format!("{}() = {}", pending.call.name, show(result)));
        let as_expected = match (pending.call.returns.clone(), result) {
            (Returns::Any, _) => true,
            (Returns::Number(n), Ok(m)) => n == m,
            (Returns::Number(n), Err(_)) => n == -1,
            (Returns::Error(wanted), Err(errno)) => wanted == errno,
            (Returns::Error(_), Ok(_)) => false,
        };
        if !as_expected {
            return Err(failed(line, format!("{}() returned {}", pending.call.name, show(result))));
        }
        if self.now.after(self.settings.tolerance_us) < pending.to {
            let (at, due) = (self.show_time(self.now), self.show_time(pending.to));
            return Err(failed(line, format!("{}() returned at {at}, expected at {due}", pending.call.name)));
        }
        Ok(true)
    }

    fn note(&mut self, what: String) {
        self.note_at(self.now, what);
    }

    fn note_at(&mut self, at: Micros, what: String) {
        let at = self.show_time(at);
        self.trace.push(format!("{at} {what}"));
    }

    fn show_time(&self, at: Micros) -> String {
        let us = at.since(START);
        format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
    }

    fn show_frame(&self, bytes: &[u8]) -> String {
        match frame::parse(bytes) {
            Ok(frame) => {
                let known = self.connections.iter().find(|c| c.local == frame.source && c.remote == frame.destination);
                let segment = known.map_or_else(|| frame.segment.clone(), |c| c.outbound(&frame));
                shown_like(&segment, &Segment { win: Some(0), ..Segment::default() }).to_string()
            }
            Err(error) => error,
        }
    }
}

fn failed(line: usize, what: impl Into<String>) -> ScriptError {
    ScriptError::Failed { line, what: what.into() }
}

/// The segment, without fields that the line does not compare.
fn shown_like(actual: &Segment, expected: &Segment) -> Segment {
    Segment {
        tos: expected.tos.and(actual.tos),
        ecn_only: expected.ecn_only,
        ttl: expected.ttl.and(actual.ttl),
        win: expected.win.and(actual.win),
        ..actual.clone()
    }
}

/// The first field in which the sent segment differs from the expected one.
fn difference(expected: &Segment, actual: &Segment, linux: bool) -> Option<&'static str> {
    const PSH: u8 = 8;
    let ignored = if linux { PSH } else { 0 };
    let ecn = if expected.ecn_only { 3 } else { 0xff };
    let checks = [
        ("flags", expected.flags | ignored == actual.flags | ignored),
        ("sequence number", expected.seq == actual.seq),
        ("length", expected.len == actual.len),
        ("acknowledgement number", expected.ack.is_none() || expected.ack == actual.ack),
        ("window", expected.win.is_none() || expected.win == actual.win),
        ("urgent pointer", expected.urgent.is_none() || expected.urgent == actual.urgent),
        ("options", expected.options.is_none() || expected.options == actual.options),
        ("type of service", expected.tos.is_none_or(|tos| actual.tos.is_some_and(|real| real & ecn == tos & ecn))),
        ("time to live", expected.ttl.is_none() || expected.ttl == actual.ttl),
    ];
    checks.into_iter().find(|(_, same)| !same).map(|(name, _)| name)
}
