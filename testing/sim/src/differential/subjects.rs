//! Endpoints that can be compared with the model: our stack on a node, and smoltcp.

use super::{Scene, Step};
use crate::frame::framed;
use crate::model::{ModelState, Segment};
use crate::{Link, LinkConfig, LinkPort, Node, NodeConfig, SmoltcpHost, SocketId, TimedPort};
use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp;
use std::net::{IpAddr, Ipv4Addr};
use towpath_ports::RxChecksum;
use towpath_tcp::flow::FlowSnapshot;
use towpath_tcp::slow::TcpState as Slow;
use towpath_tcp::time::Micros;
use towpath_wire::emit::Header;
use towpath_wire::segment::{Options, checksum_ok, flags, parse};

/// The endpoint's address and MAC, and the peer's.
const ENDPOINT: (IpAddr, [u8; 6]) = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), [2, 0, 0, 0, 0, 1]);
const PEER: (IpAddr, [u8; 6]) = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9)), [2, 0, 0, 0, 0, 9]);
/// The endpoint's port, and the peer's.
const PORTS: (u16, u16) = (8080, 40_000);
/// Time per step in µs: longer than any delayed acknowledgement, shorter than any retransmission.
const STEP_US: u64 = 3000;
/// Size of the receive buffer. It is small, so that the window's end is near.
const RX_BYTES: u32 = 2048;
const TX_BYTES: u32 = 32 << 10;

/// An endpoint's reaction to a step.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Sent segments, in order.
    pub sent: Vec<Segment>,
    /// Its state after that.
    pub state: ModelState,
    /// Bytes that the application has read.
    pub read: u32,
    /// Were they the peer's bytes, in order?
    pub intact: bool,
    /// Bytes that it accepted from the application.
    pub wrote: u32,
    /// SND.UNA and SND.WND, if they are visible.
    pub sender: Option<(u32, u32)>,
}

/// An endpoint under test.
pub trait Subject {
    /// Listens or connects.
    fn open(&mut self) -> Seen;
    /// Performs one step.
    fn step(&mut self, step: Step) -> Seen;
}

/// The byte of the stream at this sequence number.
fn byte_at(seq: u32) -> u8 {
    (seq.wrapping_mul(0x9e37_79b1) >> 24) as u8
}

fn is_stream(first: u32, bytes: &[u8]) -> bool {
    (0..).zip(bytes).all(|(i, byte)| *byte == byte_at(first.wrapping_add(i)))
}

/// The other end of the wire: converts model segments to frames and back.
struct Remote {
    port: LinkPort,
    irs: u32,
    iss: u32,
    now: Micros,
}

impl Remote {
    fn new(scene: Scene) -> (Self, LinkPort) {
        let config = LinkConfig { bits_per_s: 0, delay_us: 0, hashed: false, ..LinkConfig::default() };
        let (_, near, far) = Link::new(config);
        (Self { port: far, irs: scene.irs, iss: 0, now: Micros(0) }, near)
    }

    fn send(&mut self, s: &Segment) {
        let mut options = Options { mss: s.mss, window_scale: s.shift, ..Options::default() };
        options.sack_permitted = s.sack_permitted;
        let header = Header {
            source_mac: PEER.1,
            destination_mac: ENDPOINT.1,
            vlan: None,
            source: PEER.0,
            destination: ENDPOINT.0,
            source_port: PORTS.1,
            destination_port: PORTS.0,
            seq: self.irs.wrapping_add(s.seq),
            ack: if s.has(flags::ACK) { self.iss.wrapping_add(s.ack) } else { 0 },
            flags: s.flags,
            window: s.window,
            ident: 0,
            tos: 0,
            ttl: towpath_wire::TTL,
            urgent: s.urgent,
            options,
        };
        let first = s.seq.wrapping_add(u32::from(s.has(flags::SYN)));
        let payload: Vec<u8> = (0..s.len).map(|i| byte_at(first.wrapping_add(i))).collect();
        self.port.send(framed(&header, &payload).expect("a header that can be sent"));
    }

    /// Takes received segments. A SYN sets the base of the endpoint's numbers.
    fn take(&mut self) -> Vec<Segment> {
        self.port.advance(self.now);
        let mut sent = Vec::new();
        while let Some(frame) = self.port.take() {
            // Ignore ARP.
            let Ok(s) = parse(&frame) else { continue };
            assert!(checksum_ok(&frame, &s, RxChecksum::Unknown), "a wrong checksum");
            if s.flags & flags::SYN != 0 {
                self.iss = s.seq;
            }
            let seq = s.seq.wrapping_sub(self.iss);
            let payload = &frame[s.payload_offset as usize..][..s.payload_len as usize];
            assert!(is_stream(seq, payload), "other bytes than were written, from {seq} on");
            sent.push(Segment {
                seq,
                ack: if s.flags & flags::ACK != 0 { s.ack.wrapping_sub(self.irs) } else { 0 },
                flags: s.flags,
                window: s.window,
                len: s.payload_len,
                urgent: s.urgent,
                mss: s.options.mss,
                shift: s.options.window_scale,
                sack_permitted: s.options.sack_permitted,
            });
        }
        sent
    }
}

/// Counts what the application reads and writes, and checks the bytes.
struct Application {
    written: u32,
    /// Sequence number of the next byte to be read.
    next: u32,
    /// Were all bytes so far right?
    intact: bool,
}

impl Application {
    fn new(next: u32) -> Self {
        Self { written: 0, next, intact: true }
    }

    fn to_write(&self, bytes: u32) -> Vec<u8> {
        (0..bytes).map(|i| byte_at(1 + self.written + i)).collect()
    }

    fn check(&mut self, bytes: &[u8]) -> u32 {
        self.intact &= is_stream(self.next, bytes);
        self.next = self.next.wrapping_add(bytes.len() as u32);
        bytes.len() as u32
    }
}

/// Our stack.
pub struct Ours {
    node: Node,
    remote: Remote,
    scene: Scene,
    listener: Option<SocketId>,
    socket: Option<SocketId>,
    application: Application,
    /// First sequence number of the peer's data in the connection that is being opened.
    first: u32,
}

impl Ours {
    /// An endpoint at the start of this scene.
    pub fn new(scene: Scene) -> Self {
        let (remote, port) = Remote::new(scene);
        let mut config = NodeConfig::numbered(1, scene.seed);
        config.rings = (TX_BYTES, RX_BYTES);
        config.max_flows = 4;
        // The invariant checker expects one handshake per connection. Here segments may be repeated.
        config.check_invariants = false;
        let slow = &mut config.slow;
        // Timers have their own tests. Rate limits would make replies depend on each other.
        (slow.max_flows, slow.replies_per_s, slow.timestamps, slow.ecn) = (4, 1_000_000, false, 0);
        (slow.syn_timeout_ms, slow.rto_initial_ms, slow.rto_min_ms) = (60_000, 60_000, 60_000);
        (config.fast.challenge_acks_per_s, config.fast.challenge_interval_ms) = (1_000_000, 0);
        config.slow.challenge_interval_ms = 0;
        let mut node = Node::new(config, Box::new(port));
        node.add_route(PEER.0, PEER.1, 1500);
        Self { node, remote, scene, listener: None, socket: None, application: Application::new(1), first: 1 }
    }

    fn settle(&mut self) {
        let until = self.remote.now.after(STEP_US);
        loop {
            if self.node.step(self.remote.now) {
                continue;
            }
            match self.node.next_deadline().filter(|due| *due <= until) {
                Some(due) => self.remote.now = due.max(self.remote.now.after(1)),
                None => break,
            }
        }
        self.remote.now = until;
        if let Some(child) = self.listener.and_then(|listener| self.node.accept(listener)) {
            self.socket = Some(child);
            self.node.set_nodelay(child);
            self.application = Application::new(self.first);
            if let Some(listener) = self.listener.take_if(|_| !self.scene.listener) {
                self.node.close(listener, false);
            }
            self.node.step(until);
        }
    }

    /// Its state, and the snapshot of its flow, if there is one.
    fn state(&self) -> (ModelState, Option<FlowSnapshot>) {
        let found = self.node.list().into_iter().find(|c| c.tuple.remote_port == PORTS.1);
        let snapshot = found.as_ref().and_then(|c| c.flow).map(|flow| self.node.snapshot(flow));
        let state = match (&found, &snapshot) {
            (Some(c), _) if c.state == Slow::Closed => Slow::Closed,
            (_, Some(snapshot)) => Slow::of_flags(snapshot.flags),
            (Some(c), None) => c.state,
            (None, _) if self.listener.is_some() => Slow::Listen,
            (None, _) => Slow::Closed,
        };
        (state_of(state), snapshot)
    }

    fn seen(&mut self, read: u32, wrote: u32) -> Seen {
        self.settle();
        let sent = self.remote.take();
        let (state, snapshot) = self.state();
        let sender = snapshot.map(|s| (s.snd_una.0.wrapping_sub(self.remote.iss), s.snd_wnd));
        Seen { sent, state, read, intact: self.application.intact, wrote, sender }
    }

    fn call(&mut self, socket: SocketId, step: Step) -> (u32, u32) {
        match step {
            Step::Write(bytes) => {
                let bytes = self.application.to_write(bytes);
                let wrote = self.node.send(socket, &bytes).unwrap_or(0) as u32;
                self.application.written += wrote;
                return (0, wrote);
            }
            Step::Read => {
                let mut buffer = [0; RX_BYTES as usize];
                let n = self.node.recv(socket, &mut buffer).unwrap_or(0);
                return (self.application.check(&buffer[..n]), 0);
            }
            Step::Shutdown => self.node.shutdown(socket),
            Step::Close => self.node.close(socket, false),
            Step::Arrives(_) => {}
        }
        (0, 0)
    }
}

fn state_of(state: Slow) -> ModelState {
    match state {
        Slow::Listen => ModelState::Listen,
        Slow::SynSent => ModelState::SynSent,
        Slow::SynReceived => ModelState::SynReceived,
        Slow::Established => ModelState::Established,
        Slow::FinWait1 => ModelState::FinWait1,
        Slow::FinWait2 => ModelState::FinWait2,
        Slow::Closing => ModelState::Closing,
        Slow::CloseWait => ModelState::CloseWait,
        Slow::LastAck => ModelState::LastAck,
        Slow::TimeWait => ModelState::TimeWait,
        Slow::Closed => ModelState::Closed,
    }
}

impl Subject for Ours {
    fn open(&mut self) -> Seen {
        match self.scene.start {
            ModelState::Listen => self.listener = self.node.listen(PORTS.0, 8).ok(),
            ModelState::SynSent => {
                self.application.next = 1;
                self.socket = self.node.connect_with(PEER.0, PORTS.1, PORTS.0, Default::default()).ok();
            }
            _ => {}
        }
        self.seen(0, 0)
    }

    fn step(&mut self, step: Step) -> Seen {
        if let Step::Arrives(s) = &step {
            self.remote.send(s);
            match self.state().0 {
                ModelState::SynSent if s.has(flags::SYN) => self.application.next = s.seq.wrapping_add(1),
                ModelState::Listen | ModelState::TimeWait if s.has(flags::SYN) => self.first = s.seq.wrapping_add(1),
                _ => {}
            }
        }
        let (read, wrote) = self.socket.map_or((0, 0), |socket| self.call(socket, step));
        self.seen(read, wrote)
    }
}

/// smoltcp.
pub struct Smoltcp {
    peer: SmoltcpHost,
    remote: Remote,
    scene: Scene,
    socket: Option<SocketHandle>,
    application: Application,
}

impl Smoltcp {
    /// An endpoint at the start of this scene.
    pub fn new(scene: Scene) -> Self {
        let (mut remote, port) = Remote::new(scene);
        let peer = SmoltcpHost::new(ENDPOINT.0, ENDPOINT.1, scene.seed, vec![PEER], Box::new(port));
        // It replies only to neighbours whose address it has learnt.
        let mut arp = vec![0xff; 6];
        arp.extend(PEER.1);
        arp.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        arp.extend(PEER.1);
        arp.extend([10, 0, 0, 9, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
        remote.port.send(arp);
        Self { peer, remote, scene, socket: None, application: Application::new(1) }
    }

    fn seen(&mut self, read: u32, wrote: u32) -> Seen {
        let until = self.remote.now.after(STEP_US);
        loop {
            if self.peer.step(self.remote.now) {
                continue;
            }
            match self.peer.next_deadline().filter(|due| *due <= until) {
                Some(due) => self.remote.now = due.max(self.remote.now.after(1)),
                None => break,
            }
        }
        self.remote.now = until;
        let sent = self.remote.take();
        let state = self.socket.map_or(tcp::State::Closed, |handle| self.peer.socket(handle).state());
        let state = match state {
            tcp::State::Closed => ModelState::Closed,
            tcp::State::Listen => ModelState::Listen,
            tcp::State::SynSent => ModelState::SynSent,
            tcp::State::SynReceived => ModelState::SynReceived,
            tcp::State::Established => ModelState::Established,
            tcp::State::FinWait1 => ModelState::FinWait1,
            tcp::State::FinWait2 => ModelState::FinWait2,
            tcp::State::CloseWait => ModelState::CloseWait,
            tcp::State::Closing => ModelState::Closing,
            tcp::State::LastAck => ModelState::LastAck,
            tcp::State::TimeWait => ModelState::TimeWait,
        };
        Seen { sent, state, read, intact: self.application.intact, wrote, sender: None }
    }
}

impl Subject for Smoltcp {
    fn open(&mut self) -> Seen {
        let rings = RX_BYTES as usize;
        self.socket = match self.scene.start {
            ModelState::Listen => Some(self.peer.listen(PORTS.0, rings)),
            ModelState::SynSent => {
                self.peer.step(self.remote.now);
                Some(self.peer.connect((PEER.0, PORTS.1), PORTS.0, rings))
            }
            _ => None,
        };
        if let Some(handle) = self.socket {
            let socket = self.peer.socket(handle);
            socket.set_ack_delay(None);
            socket.set_nagle_enabled(false);
        }
        self.seen(0, 0)
    }

    fn step(&mut self, step: Step) -> Seen {
        let (mut read, mut wrote) = (0, 0);
        match (step, self.socket) {
            (Step::Arrives(s), _) => {
                self.remote.send(&s);
                let waits =
                    |socket: &tcp::Socket<'_>| matches!(socket.state(), tcp::State::Listen | tcp::State::SynSent);
                if s.has(flags::SYN) && self.socket.is_some_and(|handle| waits(self.peer.socket(handle))) {
                    self.application.next = s.seq.wrapping_add(1);
                }
            }
            (Step::Write(bytes), Some(handle)) => {
                let bytes = self.application.to_write(bytes);
                wrote = self.peer.send(handle, &bytes).unwrap_or(0) as u32;
                self.application.written += wrote;
            }
            (Step::Read, Some(handle)) => {
                let mut buffer = [0; RX_BYTES as usize];
                while let Ok(n @ 1..) = self.peer.recv(handle, &mut buffer) {
                    read += self.application.check(&buffer[..n]);
                }
            }
            (Step::Shutdown | Step::Close, Some(handle)) => self.peer.socket(handle).close(),
            _ => {}
        }
        self.seen(read, wrote)
    }
}
