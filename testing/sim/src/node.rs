//! One host in the simulator: the real slow path and one fast path, with a socket-like interface for tests.

use crate::engine::Engine;
use crate::errno::ENOTCONN;
use crate::invariants::CheckedPort;
use crate::node_config::NodeConfig;
use crate::pipelined::Pipelined;
use crate::sockets::{Phase, SocketId, Sockets};
use crate::{TimedPort, earlier};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use towpath_ports::RxFrame;
use towpath_tcp::counters::{Counters, Drop};
use towpath_tcp::fast::{FastPath, FlowTable};
use towpath_tcp::flow::{FlowId, FlowSnapshot, SocketOptions};
use towpath_tcp::messages::{AppUpdate, AppView, FlowEvent};
use towpath_tcp::slow::{ConnectError, ConnectionInfo, SlowPath};
use towpath_tcp::time::Micros;

/// A host: one flow group's fast path, the slow path, sockets and one port.
pub struct Node {
    fast: Engine,
    slow: SlowPath,
    table: Arc<FlowTable>,
    sockets: Sockets,
    port: Box<dyn TimedPort>,
    frames: Vec<RxFrame>,
    events: Vec<(FlowEvent, AppView)>,
    dirty: VecDeque<SocketId>,
    now: Micros,
}

/// Frames received and segments sent per step.
const BATCH: usize = 64;

impl Node {
    /// A host on `port`.
    pub fn new(config: NodeConfig, port: Box<dyn TimedPort>) -> Self {
        let mut port = if config.check_invariants { Box::new(CheckedPort::new(port)) } else { port };
        let table = Arc::new(FlowTable::new(config.max_flows));
        let fast = FastPath::new(0, config.fast.clone(), table.clone());
        let fast = match config.pipeline {
            None => Engine::Whole(Box::new(fast)),
            Some(seed) => Engine::Pipelined(Box::new(Pipelined::new(fast, &mut *port, seed))),
        };
        Self {
            fast,
            slow: SlowPath::new(config.slow.clone()),
            table,
            sockets: Sockets::new(&config),
            port,
            frames: Vec::new(),
            events: Vec::new(),
            dirty: VecDeque::new(),
            now: Micros(0),
        }
    }

    /// Adds a static route: `remote` is reached at `mac`, with packets of up to `mtu` bytes.
    pub fn add_route(&mut self, remote: IpAddr, mac: [u8; 6], mtu: u16) {
        self.sockets.add_route(remote, mac, mtu);
        self.slow.retry_routes(self.now, &mut self.sockets);
    }

    /// Makes `remote` reachable, but with its MAC address unknown until [`Node::add_route`].
    pub fn add_unresolved(&mut self, remote: IpAddr) {
        self.sockets.add_unresolved(remote);
    }

    /// Listens on `port` of the node's address. Errors are errno values.
    pub fn listen(&mut self, port: u16, backlog: u32) -> Result<SocketId, i32> {
        let id = self.sockets.allocate(Phase::Listening);
        let address = self.sockets.address();
        let listened = self.slow.listen(self.now, id.owner(), address, port, false, backlog, &mut self.sockets);
        self.sockets.get_mut(id).backlog = backlog as usize;
        match listened {
            Ok(()) => Ok(id),
            Err(errno) => {
                self.sockets.fail(id, errno);
                Err(errno)
            }
        }
    }

    /// Starts an active open, whose outcome [`Node::phase`] shows. Errors are errno values.
    pub fn connect(&mut self, remote: IpAddr, port: u16) -> Result<SocketId, i32> {
        self.connect_with(remote, port, 0, SocketOptions::default())
    }

    /// Like [`Node::connect`], from a local port (0 = any) and with options set before.
    pub fn connect_with(
        &mut self,
        remote: IpAddr,
        port: u16,
        local_port: u16,
        options: SocketOptions,
    ) -> Result<SocketId, i32> {
        let id = self.sockets.allocate(Phase::Connecting);
        self.slow.set_options(self.now, id.owner(), options, &mut self.sockets);
        let local = (local_port != 0).then(|| (self.sockets.address(), local_port));
        match self.slow.connect(self.now, id.owner(), remote, port, local, false, &mut self.sockets) {
            Ok(()) => Ok(id),
            Err(ConnectError::Errno(errno)) => {
                self.sockets.fail(id, errno);
                Err(errno)
            }
            Err(ConnectError::NotOurs | ConnectError::Refused) => Err(ENOTCONN),
        }
    }

    /// Sets the socket options that the slow path handles.
    pub fn set_options(&mut self, id: SocketId, options: SocketOptions) {
        self.slow.set_options(self.now, id.owner(), options, &mut self.sockets);
    }

    /// The next established connection of a listener.
    pub fn accept(&mut self, listener: SocketId) -> Option<SocketId> {
        self.sockets.get_mut(listener).accepted.pop_front()
    }

    /// The socket's phase.
    pub fn phase(&self, id: SocketId) -> Phase {
        self.sockets.get(id).phase
    }

    /// Queues bytes and returns how many fitted. Errors are errno values (`EAGAIN` = none).
    pub fn send(&mut self, id: SocketId, bytes: &[u8]) -> Result<usize, i32> {
        let sent = self.sockets.get_mut(id).write(bytes);
        if sent.is_ok() {
            self.dirty.push_back(id);
        }
        sent
    }

    /// Reads bytes; 0 = end of stream. Errors are errno values (`EAGAIN` = none now).
    pub fn recv(&mut self, id: SocketId, out: &mut [u8]) -> Result<usize, i32> {
        let got = self.sockets.get_mut(id).read(out);
        if got.is_ok_and(|n| n > 0) {
            self.dirty.push_back(id);
        }
        got
    }

    /// Changes the words that the application writes, as the socket library does for options and `shutdown`.
    pub fn tell(&mut self, id: SocketId, change: impl FnOnce(&mut AppUpdate)) {
        change(&mut self.sockets.get_mut(id).update);
        self.dirty.push_back(id);
    }

    /// The words that the application writes, and those that it reads.
    pub fn words(&self, id: SocketId) -> (AppUpdate, AppView) {
        let socket = self.sockets.get(id);
        (socket.update, socket.view)
    }

    /// The number of connections in the accept queue.
    pub fn acceptable(&self, listener: SocketId) -> usize {
        self.sockets.get(listener).accepted.len()
    }

    /// A snapshot of an installed flow.
    pub fn snapshot(&self, flow: FlowId) -> FlowSnapshot {
        self.table.snapshot(flow)
    }

    /// Listeners and connections in all states, TIME-WAIT included.
    pub fn list(&self) -> Vec<ConnectionInfo> {
        self.slow.connections()
    }

    /// Turns Nagle's algorithm off.
    pub fn set_nodelay(&mut self, id: SocketId) {
        self.sockets.get_mut(id).update.nodelay = true;
        self.dirty.push_back(id);
    }

    /// Sends FIN after what is queued.
    pub fn shutdown(&mut self, id: SocketId) {
        self.sockets.get_mut(id).update.shut_wr = true;
        self.dirty.push_back(id);
    }

    /// Closes the socket, with RST if `abort`.
    pub fn close(&mut self, id: SocketId, abort: bool) {
        let socket = self.sockets.get_mut(id);
        socket.update.closed = true;
        socket.update.abort = abort;
        if socket.flow.is_some() {
            self.dirty.push_back(id);
        } else if matches!(socket.phase, Phase::Listening | Phase::Connecting) {
            self.slow.close(self.now, id.owner(), &mut self.sockets);
        }
    }

    /// Does the work that is possible at `now`. True = something was done.
    pub fn step(&mut self, now: Micros) -> bool {
        self.now = now;
        self.port.advance(now);
        self.port.flush();
        let mut busy = self.receive();
        busy |= self.app_updates();
        busy |= self.messages();
        busy |= self.fast.transmit(now, BATCH, &mut self.sockets, &mut *self.port) > 0;
        self.port.flush();
        let Self { fast, slow, sockets, .. } = &mut *self;
        busy |= fast.messages(sockets, |message, sockets| slow.on_message(now, 0, message, sockets));
        if self.slow.next_deadline().is_some_and(|due| due <= now) {
            self.slow.poll(now, &self.table, &mut self.sockets);
        }
        busy |= self.messages();
        busy |= self.publish();
        busy || self.fast.has_work()
    }

    /// When [`Node::step`] must be called again although no frame arrives.
    pub fn next_deadline(&self) -> Option<Micros> {
        let timers = earlier(self.fast.next_deadline(), self.slow.next_deadline());
        earlier(timers, self.port.next_deadline())
    }

    fn receive(&mut self) -> bool {
        self.frames.clear();
        self.port.receive(&mut self.frames, BATCH);
        if self.frames.is_empty() {
            return false;
        }
        self.fast.receive(self.now, &*self.port, &self.frames, &mut self.sockets);
        self.port.release(&self.frames);
        true
    }

    fn app_updates(&mut self) -> bool {
        let mut busy = false;
        while let Some(id) = self.dirty.pop_front() {
            let socket = self.sockets.get(id);
            if let Some(flow) = socket.flow {
                let told = self.fast.app_update(self.now, (flow, socket.update), &self.sockets, &mut *self.port);
                assert!(told.is_ok(), "the simulated application never violates the contract: {told:?}");
                busy = true;
            }
        }
        busy
    }

    fn messages(&mut self) -> bool {
        let mut busy = false;
        while let Some(message) = self.sockets.to_fast.pop_front() {
            self.fast.message(self.now, message, &mut self.sockets);
            busy = true;
        }
        busy
    }

    fn publish(&mut self) -> bool {
        self.events.clear();
        self.fast.events(&mut self.sockets, &mut self.events);
        for (event, view) in &self.events {
            self.sockets.show(event.flow, *view);
        }
        self.dirty.extend(self.sockets.newly_installed.drain(..));
        !self.events.is_empty() || !self.dirty.is_empty()
    }

    /// Frames that this node dropped for `reason`, in either path.
    pub fn drops(&self, reason: Drop) -> u64 {
        self.counters().iter().map(|c| c.drops[reason as usize]).sum()
    }

    /// Counters of the fast and of the slow path.
    pub fn counters(&self) -> [Counters; 2] {
        [self.fast.counters(), *self.slow.counters()]
    }

    /// Flows installed now.
    pub fn flows(&self) -> usize {
        self.sockets.flows()
    }

    /// Connections that the slow path knows, in any state, TIME-WAIT included.
    pub fn connections(&self) -> usize {
        self.slow.connections().len()
    }

    /// Sockets that listen.
    pub fn listeners(&self) -> usize {
        self.sockets.listeners()
    }

    /// Sockets that the slow path has accepted, and neither failed nor released.
    pub fn unreleased(&self) -> usize {
        self.sockets.unreleased()
    }

    /// Tuples steered to this node now.
    pub fn steered(&self) -> usize {
        self.sockets.steered.len()
    }

    /// The node's address.
    pub fn address(&self) -> IpAddr {
        self.sockets.address()
    }

    /// The port, for tests that bypass the stack.
    pub fn port(&mut self) -> &mut dyn TimedPort {
        &mut *self.port
    }

    /// The slow path's connections and the drop counters, for messages of failing tests.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for connection in self.slow.connections() {
            let snapshot = connection.flow.map(|flow| self.table.snapshot(flow));
            text += &format!("  {connection:?}\n    {snapshot:?}\n");
        }
        for (i, name) in Drop::NAMES.iter().enumerate() {
            let dropped: u64 = self.counters().iter().map(|c| c.drops[i]).sum();
            if dropped > 0 {
                text += &format!("  {name} {dropped}");
            }
        }
        let [fast, slow] = self.counters();
        text + &format!(
            "\n  {} retransmits, {} time-outs, {} resets",
            fast.retransmits,
            fast.timeouts,
            fast.resets + slow.resets
        )
    }
}
