//! A fake host that records calls, and checks the rules of the trait.

use crate::flow::{FlowId, FlowSetup, FlowSnapshot, FourTuple, Link, Owner, PortId, RingBytes};
use crate::messages::{Splicing, ToFast, ToSlow};
use crate::seq::Seq;
use crate::slow::{
    Admission, Ending, FirstSyn, Forwarded, Host, Route, SlowConfig, SlowPath, Snapshots, Steered, TcpState,
    Translation,
};
use crate::time::Micros;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use towpath_rng::Rng;
use towpath_wire::{Header, Options, Segment, Timestamps, emit, fill_checksum, flags, parse};

pub const US: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
pub const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
pub const US6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1));
pub const PEER6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2));
pub const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub const LINK: Link = Link { port: PortId(1), source: OUR_MAC, destination: PEER_MAC, vlan: None };
pub const SERVER: Owner = Owner(1);
pub const CLIENT: Owner = Owner(2);

/// A call to the host, other than a message to a flow group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    Established(Owner),
    Accepted(Owner),
    ConnectFailed(Owner, i32),
    SoftError(Owner, i32),
    Released(Owner, Option<FlowId>),
    DropChild(Owner),
}

/// The fake host.
#[derive(Default)]
pub struct World {
    pub route: Option<Route>,
    pub admission: Option<Admission>,
    pub no_children: bool,
    /// It keeps its places for children of other listeners.
    pub spares: bool,
    pub accept_full: bool,
    pub ring_bytes: Option<RingBytes>,
    pub sent: Vec<(usize, ToFast)>,
    pub said: Vec<Said>,
    pub steered: HashMap<FourTuple, Steered>,
    pub half_open: HashSet<FourTuple>,
    /// Its kernel has a connection with every tuple.
    pub kernel_has: bool,
    /// It names the listeners of SYNs.
    pub names: bool,
    pub listening: BTreeSet<(IpAddr, u16)>,
    pub children: BTreeSet<u64>,
    /// The listeners of accepted connections.
    pub parents: Vec<Owner>,
    pub setups: HashMap<FlowId, FlowSetup>,
    /// Connections belong to the flow groups to which their segments come, and not to those of their tuples.
    pub follows: bool,
    /// The flow groups in which connections were established.
    pub established_in: Vec<usize>,
    /// Steps of ports that the host can hold.
    pub ports: Vec<Vec<u16>>,
    pub given_back: Vec<u16>,
    /// It judges first SYNs, which are here then.
    pub judgement: Option<FirstSyn>,
    pub judged: Vec<Box<[u8]>>,
    /// Translations of spliced connections, and what they have done; `None` = there is no module.
    pub splices: Option<HashMap<FourTuple, (Translation, Forwarded)>>,
    pub splice_answers: Vec<(Owner, i32)>,
    /// What has passed, as each socket was last told.
    pub passed_on: HashMap<Owner, u64>,
    /// Segments that were to be translated.
    pub translated: Vec<(usize, Box<[u8]>)>,
    /// Connections that have ended.
    pub ended: Vec<(Owner, Ending)>,
    next_child: u64,
    random: Rng,
}

impl Host for World {
    fn route(&mut self, remote: IpAddr, _: Option<IpAddr>) -> Route {
        self.route.unwrap_or(Route::Via { link: LINK, source: if remote.is_ipv4() { US } else { US6 }, mtu: 1500 })
    }
    fn is_local(&self, addr: IpAddr) -> bool {
        addr == US || addr == US6
    }
    fn more_ports(&mut self) -> Vec<u16> {
        self.ports.pop().unwrap_or_default()
    }
    fn give_back_ports(&mut self, ports: Vec<u16>) {
        self.given_back.extend(ports);
    }
    /// The user's number is in the owner's thousands.
    fn user(&self, owner: Owner) -> u32 {
        (owner.0 / 1000) as u32
    }
    fn flow_group_for(&self, tuple: &FourTuple, came_to: Option<usize>) -> usize {
        came_to.filter(|_| self.follows).unwrap_or_else(|| usize::from(tuple.remote_port % 2))
    }
    fn send(&mut self, flow_group: usize, message: ToFast) {
        if let ToFast::Transmit(_, frame) = &message
            && let Ok(sent) = parse(frame)
            && sent.flags & flags::SYN != 0
            && self.names
        {
            let (local, remote) = ((sent.source, sent.source_port), (sent.destination, sent.destination_port));
            let tuple = FourTuple { local: local.0, local_port: local.1, remote: remote.0, remote_port: remote.1 };
            assert!(
                self.steered.contains_key(&tuple) || self.half_open.contains(&tuple),
                "steered before it is answered"
            );
        }
        self.sent.push((flow_group, message));
    }
    fn send_first_syn(&mut self, _: Owner, tuple: &FourTuple, _: PortId, frame: &[u8]) -> FirstSyn {
        let Some(judgement) = self.judgement else { return FirstSyn::ByPort };
        assert!(self.steered.contains_key(tuple), "steered before the SYN");
        self.judged.push(frame.into());
        judgement
    }
    fn steer(&mut self, tuple: &FourTuple, steered: Steered) {
        let was = match steered {
            Steered::AnswerToCookie => {
                self.half_open.insert(*tuple);
                return;
            }
            Steered::Kernels => {
                let steered = self.steered.remove(tuple).is_some();
                assert!(self.half_open.remove(tuple) || steered || self.kernel_has, "it was not ours");
                return;
            }
            Steered::No => self.steered.remove(tuple),
            _ => self.steered.insert(*tuple, steered),
        };
        assert!(was.unwrap_or(Steered::No) != steered, "steer({tuple:?}, {steered:?}) twice");
    }
    fn kernel_has(&mut self, _: &FourTuple) -> bool {
        self.kernel_has
    }
    fn names_listeners(&self) -> bool {
        self.names
    }
    fn finds_listeners(&self, _: PortId) -> bool {
        !self.names
    }
    fn steer_listener(&mut self, addr: IpAddr, port: u16, on: bool) {
        let changed = if on { self.listening.insert((addr, port)) } else { self.listening.remove(&(addr, port)) };
        assert!(changed, "steer_listener({addr}, {port}, {on}) twice");
    }
    fn admit(&mut self, _: Owner, _: &FourTuple) -> Admission {
        self.admission.unwrap_or(Admission::Yes(0))
    }
    fn class(&self, owner: Owner) -> u16 {
        (owner.0 % 100) as u16
    }
    fn new_child(&mut self, _: Owner) -> Option<Owner> {
        if self.no_children {
            return None;
        }
        self.next_child += 1;
        self.children.insert(1000 + self.next_child);
        Some(Owner(1000 + self.next_child))
    }
    fn spares_children(&mut self, _: Owner) -> bool {
        self.spares
    }
    fn drop_child(&mut self, child: Owner) {
        assert!(self.children.remove(&child.0), "{child:?} dropped twice");
        self.said.push(Said::DropChild(child));
    }
    fn ring_bytes(&self, _: Owner) -> RingBytes {
        self.ring_bytes.unwrap_or(RingBytes::fixed(65_536, 262_144))
    }
    fn established(&mut self, owner: Owner, setup: &FlowSetup, flow_group: usize) {
        self.setups.insert(setup.flow, setup.clone());
        self.established_in.push(flow_group);
        self.said.push(Said::Established(owner));
    }
    fn accept_queue_full(&mut self, _: Owner) -> bool {
        self.accept_full
    }
    fn accepted(&mut self, parent: Owner, child: Owner, _: &FourTuple) -> bool {
        if !self.accept_full {
            self.parents.push(parent);
            assert!(self.children.remove(&child.0), "{child:?} accepted but not reserved");
            self.said.push(Said::Accepted(child));
        }
        !self.accept_full
    }
    fn connect_failed(&mut self, owner: Owner, errno: i32) {
        self.said.push(Said::ConnectFailed(owner, errno));
    }
    fn ended(&mut self, owner: Owner, _: &FourTuple, why: Ending) {
        self.ended.push((owner, why));
    }
    fn released(&mut self, owner: Owner, flow: Option<FlowId>) {
        self.said.push(Said::Released(owner, flow));
    }
    fn soft_error(&mut self, owner: Owner, errno: i32) {
        self.said.push(Said::SoftError(owner, errno));
    }
    fn random(&mut self) -> u64 {
        self.random.next_u64()
    }
    fn may_splice(&self, _: Owner) -> bool {
        self.splices.is_some()
    }
    fn splice(&mut self, both: &[Translation; 2]) -> Result<(), i32> {
        let splices = self.splices.as_mut().ok_or(95)?;
        for translation in both {
            let seen = Forwarded { acked: translation.acked, newest: translation.acked, ..Forwarded::default() };
            assert!(splices.insert(translation.from, (*translation, seen)).is_none());
        }
        Ok(())
    }
    fn resplice(&mut self, translation: &Translation) -> bool {
        if let Some((there, _)) = self.splices.as_mut().and_then(|splices| splices.get_mut(&translation.from)) {
            *there = *translation;
        }
        translation.link.port != PortId(9)
    }
    fn forwarded(&mut self, tuple: &FourTuple) -> Option<Forwarded> {
        Some(self.splices.as_ref()?.get(tuple)?.1)
    }
    fn translate(&mut self, flow_group: usize, port: PortId, frame: Box<[u8]>) {
        assert_eq!(port, PortId(1));
        self.translated.push((flow_group, frame));
    }
    fn unsplice(&mut self, tuple: &FourTuple) {
        self.splices.as_mut().map(|splices| splices.remove(tuple));
    }
    fn passed_on(&mut self, owner: Owner, bytes: u64) {
        self.passed_on.insert(owner, bytes);
    }
    fn splice_answered(&mut self, owner: Owner, _: u32, errno: i32) {
        self.splice_answers.push((owner, errno));
    }
}

/// Snapshots that a test sets.
#[derive(Default)]
pub struct Readings(pub HashMap<FlowId, FlowSnapshot>);

impl Snapshots for Readings {
    fn snapshot(&self, flow: FlowId) -> FlowSnapshot {
        self.0.get(&flow).copied().unwrap_or_default()
    }
}

/// The fields of a peer's segment.
#[derive(Clone, Copy, Default)]
pub struct Peer {
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub options: Options,
    pub payload: usize,
}

/// A slow path, its host, and a clock.
pub struct Bench {
    pub slow: SlowPath,
    pub world: World,
    pub readings: Readings,
    pub now: Micros,
}

impl Bench {
    pub fn new() -> Self {
        Self::with(SlowConfig::default())
    }
    pub fn with(config: SlowConfig) -> Self {
        let now = Micros(1_000_000_000);
        Self { slow: SlowPath::new(config), world: World::default(), readings: Readings::default(), now }
    }
    /// A listener on port 80 of every address.
    pub fn listening(backlog: u32) -> Self {
        let mut bench = Self::new();
        bench
            .slow
            .listen(bench.now, SERVER, IpAddr::V4(Ipv4Addr::UNSPECIFIED), 80, false, backlog, &mut bench.world)
            .unwrap();
        bench
    }
    pub fn connect(&mut self) {
        self.slow.connect(self.now, CLIENT, PEER, 80, None, false, &mut self.world).unwrap();
    }
    /// Advances time, polling at every deadline.
    pub fn pass_ms(&mut self, ms: u64) {
        let end = self.now.after(ms * 1000);
        while let Some(due) = self.slow.next_deadline().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.slow.poll(self.now, &self.readings, &mut self.world);
        }
        self.now = end;
    }
    pub fn poll(&mut self) {
        self.slow.poll(self.now, &self.readings, &mut self.world);
    }
    pub fn say(&mut self, message: ToSlow) {
        self.slow.on_message(self.now, 0, message, &mut self.world);
    }
    /// A segment from `from` to `to`.
    pub fn segment_at(&mut self, from: (IpAddr, u16), to: (IpAddr, u16), peer: Peer) {
        let frame = frame(from, to, peer);
        self.slow.on_message(self.now, 3, ToSlow::Segment(PortId(1), frame), &mut self.world);
    }
    /// A SYN from the peer's `port` to our port 80, for this listener.
    pub fn syn_for(&mut self, listener: Owner, port: u16, peer: Peer) {
        let frame = frame((PEER, port), (US, 80), peer);
        self.slow.on_syn(self.now, 3, PortId(1), frame, listener, &mut self.world);
    }
    /// A segment from the peer's `port` to our port 80.
    pub fn for_server(&mut self, port: u16, peer: Peer) {
        self.segment_at((PEER, port), (US, 80), peer);
    }
    /// A segment from the peer's port 80 to the client's port.
    pub fn for_client(&mut self, port: u16, peer: Peer) {
        self.segment_at((PEER, 80), (US, port), peer);
    }
    /// Frames sent since the last call, with the flow group each was sent by.
    pub fn frames(&mut self) -> Vec<Segment> {
        let mut frames = Vec::new();
        self.world.sent.retain(|(_, message)| match message {
            ToFast::Transmit(port, frame) => {
                assert!(*port == PortId(1) || self.world.route.is_some());
                let segment = parse(frame).expect("our own frame");
                assert!(towpath_wire::checksum_ok(frame, &segment, Default::default()), "TCP checksum");
                frames.push(segment);
                false
            }
            _ => true,
        });
        frames
    }
    /// The only frame sent since the last call.
    pub fn frame(&mut self) -> Segment {
        let frames = self.frames();
        assert_eq!(frames.len(), 1, "{frames:?}");
        frames[0]
    }
    /// Messages other than frames since the last call, in short form.
    pub fn messages(&mut self) -> Vec<String> {
        assert!(self.frames().is_empty(), "look at the frames first");
        self.world.sent.drain(..).map(|(flow_group, message)| format!("{flow_group}:{}", word(&message))).collect()
    }
    pub fn said(&mut self) -> Vec<Said> {
        std::mem::take(&mut self.world.said)
    }
    pub fn states(&self) -> Vec<TcpState> {
        self.slow.connections().iter().map(|c| c.state).collect()
    }
    /// A child of the listener, established by a peer with ISN 5000; nothing is left in the logs.
    pub fn child(&mut self, port: u16) -> FlowId {
        self.for_server(port, syn(5000));
        let answer = self.frame();
        let ack = Peer { seq: 5001, ack: answer.seq.wrapping_add(1), flags: flags::ACK, ..stamped(1) };
        self.for_server(port, ack);
        self.settle()
    }
    /// A connection to the peer, established; nothing is left in the logs.
    pub fn client(&mut self) -> FlowId {
        self.client_of(CLIENT, PEER, US)
    }
    /// [`Bench::client`] of this owner, between these addresses.
    pub fn client_of(&mut self, owner: Owner, remote: IpAddr, local: IpAddr) -> FlowId {
        self.slow.connect(self.now, owner, remote, 80, None, false, &mut self.world).unwrap();
        let sent = self.frame();
        let answer = Peer { ack: sent.seq.wrapping_add(1), flags: flags::SYN | flags::ACK, ..syn(7000) };
        self.segment_at((remote, 80), (local, sent.source_port), answer);
        self.settle()
    }
    fn settle(&mut self) -> FlowId {
        let info = self.slow.connections();
        let flow = info
            .iter()
            .filter(|c| c.state == TcpState::Established)
            .filter_map(|c| c.flow)
            .next_back()
            .expect("established");
        let setup = &self.world.setups[&flow];
        let (snd, rcv) = (setup.snd_start, setup.rcv_start);
        let snapshot = FlowSnapshot {
            snd_una: snd,
            snd_nxt: snd,
            snd_max: snd,
            snd_queued: snd,
            rcv_nxt: rcv,
            snd_wnd: 65_535,
            cwnd: setup.window.cwnd,
            ssthresh: setup.window.ssthresh,
            mss: setup.mss,
            ts_recent: setup.ts_recent,
            ..Default::default()
        };
        self.readings.0.insert(flow, snapshot);
        self.world.sent.clear();
        self.world.said.clear();
        flow
    }
    /// The snapshot of a flow, to be changed.
    pub fn reading(&mut self, flow: FlowId) -> &mut FlowSnapshot {
        self.readings.0.get_mut(&flow).unwrap()
    }
    /// Sets the snapshot so that `bytes` are sent and not acknowledged.
    pub fn outstanding(&mut self, flow: FlowId, bytes: u32) {
        let reading = self.reading(flow);
        reading.snd_max = reading.snd_una.add(bytes);
        reading.snd_nxt = reading.snd_max;
        reading.snd_queued = Seq::max(reading.snd_queued, reading.snd_max);
        self.say(ToSlow::Active(flow));
    }
}

/// A frame of the peer.
pub fn frame(from: (IpAddr, u16), to: (IpAddr, u16), peer: Peer) -> Box<[u8]> {
    let header = Header {
        source_mac: PEER_MAC,
        destination_mac: OUR_MAC,
        vlan: None,
        source: from.0,
        destination: to.0,
        source_port: from.1,
        destination_port: to.1,
        seq: peer.seq,
        ack: peer.ack,
        flags: peer.flags,
        window: 8192,
        ident: 1,
        tos: 0,
        ttl: towpath_wire::TTL,
        urgent: 0,
        options: peer.options,
    };
    let mut frame = vec![0u8; 128 + peer.payload];
    let len = emit(&header, peer.payload, &mut frame).unwrap() + peer.payload;
    frame.truncate(len);
    fill_checksum(&mut frame);
    frame.into()
}

/// A SYN as Linux sends it.
pub fn syn(seq: u32) -> Peer {
    let timestamps = Some(Timestamps { value: 1, echo: 0 });
    let options =
        Options { mss: Some(1460), window_scale: Some(7), sack_permitted: true, timestamps, ..Options::default() };
    Peer { seq, flags: flags::SYN, options, ..Default::default() }
}

/// Options with only a timestamp.
pub fn stamped(value: u32) -> Peer {
    let options = Options { timestamps: Some(Timestamps { value, echo: 0 }), ..Default::default() };
    Peer { options, ..Default::default() }
}

/// The short form of a message.
pub fn word(message: &ToFast) -> String {
    match message {
        ToFast::Install(setup) => format!("install {}", setup.flow.0),
        ToFast::Remove(flow) => format!("remove {}", flow.0),
        ToFast::SetWindow(flow, _) => format!("window {}", flow.0),
        ToFast::Timeout(flow, window) => {
            format!("timeout {} cwnd {} ssthresh {}", flow.0, window.cwnd, window.ssthresh)
        }
        ToFast::ProbeWindow(flow) => format!("probe {}", flow.0),
        ToFast::ProbeTail(flow) => format!("tail {}", flow.0),
        ToFast::SendAck(flow) => format!("ack {}", flow.0),
        ToFast::Challenge(flow) => format!("challenge {}", flow.0),
        ToFast::KeepAlive(flow) => format!("keepalive {}", flow.0),
        ToFast::SetMss(flow, mss) => format!("mss {} {mss}", flow.0),
        ToFast::SetService { flow, tos, ttl } => format!("service {} tos {tos} ttl {ttl}", flow.0),
        ToFast::Deactivate(flow) => format!("deactivate {}", flow.0),
        ToFast::Abort { flow, rst, errno } => format!("abort {} rst {rst} errno {}", flow.0, errno.unwrap_or(0)),
        ToFast::Relink(flow, _) => format!("relink {}", flow.0),
        ToFast::SetWeight { class, weight } => format!("weight {class} {weight}"),
        ToFast::SetClass(flow, class) => format!("class {} {class}", flow.0),
        ToFast::SetLimit { class, bytes_per_s } => format!("limit {class} {bytes_per_s}"),
        ToFast::Splice(flow, Splicing::Hold(_)) => format!("hold {}", flow.0),
        ToFast::Splice(flow, step) => format!("{step:?} {}", flow.0).to_lowercase(),
        ToFast::Transmit(..) => "transmit".into(),
        ToFast::Inject(_, frame) => format!("inject {}", parse(frame).unwrap().payload_len),
    }
}
