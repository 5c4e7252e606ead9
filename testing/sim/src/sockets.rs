//! A node's sockets: byte rings, and the words that the application writes and reads. Also the [`Host`] of its slow
//! path.

use crate::errno::{EAGAIN, ENOTCONN, EPIPE};
use crate::node_config::NodeConfig;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU8, Ordering};
use towpath_ports::Payload;
use towpath_rng::Rng;
use towpath_tcp::buffers::Rings;
use towpath_tcp::flow::{FlowId, FlowSetup, FourTuple, Link, Owner, PortId, RingBytes};
use towpath_tcp::messages::{AppUpdate, AppView, ToFast};
use towpath_tcp::slow::{Host, Route, Steered};

/// `ENETUNREACH`.
const ENETUNREACH: i32 = 101;

/// The number of a node's socket. It is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId(pub u32);

impl SocketId {
    pub(crate) fn owner(self) -> Owner {
        Owner(u64::from(self.0))
    }
}

/// The phase of a socket's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waiting for connections.
    Listening,
    /// Active open in progress.
    Connecting,
    /// Reserved for a connection that is being opened to a listener.
    Embryo,
    /// Established, maybe half closed.
    Open,
    /// The open failed with this errno.
    Failed(i32),
    /// Removed from every table.
    Gone,
}

/// One socket.
pub(crate) struct Socket {
    pub phase: Phase,
    pub flow: Option<FlowId>,
    pub update: AppUpdate,
    pub view: AppView,
    pub accepted: VecDeque<SocketId>,
    pub backlog: usize,
    /// Atomics, as a port may take the payload of a super-segment where it lies.
    tx: Vec<AtomicU8>,
    rx: Vec<u8>,
}

impl Socket {
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, i32> {
        self.check()?;
        if self.update.shut_wr || self.update.closed || self.view.tx_closed {
            return Err(EPIPE);
        }
        let used = self.update.tx_tail.wrapping_sub(self.view.tx_head) as usize;
        let n = bytes.len().min(self.tx.len() - used);
        if n == 0 && !bytes.is_empty() {
            return Err(EAGAIN);
        }
        let [one, two] = pieces(&self.tx, self.update.tx_tail, n);
        one.iter().chain(two).zip(bytes).for_each(|(place, byte)| place.store(*byte, Ordering::Relaxed));
        self.update.tx_tail = self.update.tx_tail.wrapping_add(n as u32);
        Ok(n)
    }

    pub fn read(&mut self, out: &mut [u8]) -> Result<usize, i32> {
        let ready = self.view.rx_tail.wrapping_sub(self.update.rx_head) as usize;
        if ready == 0 {
            if self.view.eof {
                return Ok(0);
            }
            self.check()?;
            return Err(EAGAIN);
        }
        let n = ready.min(out.len());
        let bytes = pieces(&self.rx, self.update.rx_head, n).into_iter().flatten();
        out.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
        self.update.rx_head = self.update.rx_head.wrapping_add(n as u32);
        Ok(n)
    }

    fn check(&self) -> Result<(), i32> {
        match self.phase {
            Phase::Failed(errno) => Err(errno),
            Phase::Connecting => Err(EAGAIN),
            Phase::Listening | Phase::Embryo => Err(ENOTCONN),
            Phase::Open | Phase::Gone if self.view.errno != 0 => Err(self.view.errno),
            Phase::Gone => Err(ENOTCONN),
            Phase::Open => Ok(()),
        }
    }
}

fn copy_in(ring: &mut [u8], position: u32, bytes: &[u8]) {
    let at = position as usize & (ring.len() - 1);
    let first = bytes.len().min(ring.len() - at);
    ring[at..at + first].copy_from_slice(&bytes[..first]);
    ring[..bytes.len() - first].copy_from_slice(&bytes[first..]);
}

/// The two pieces of `len` bytes of a ring.
fn pieces<T>(ring: &[T], position: u32, len: usize) -> [&[T]; 2] {
    let at = position as usize & (ring.len() - 1);
    let first = len.min(ring.len() - at);
    [&ring[at..at + first], &ring[..len - first]]
}

/// All sockets of a node.
pub(crate) struct Sockets {
    sockets: Vec<Socket>,
    by_flow: BTreeMap<FlowId, SocketId>,
    routes: BTreeMap<IpAddr, Route>,
    pub to_fast: VecDeque<ToFast>,
    pub steered: BTreeSet<(IpAddr, u16, IpAddr, u16)>,
    /// Sockets whose application may have written before the flow was installed.
    pub newly_installed: Vec<SocketId>,
    address: IpAddr,
    mac: [u8; 6],
    vlan: Option<u16>,
    rings: (u32, u32),
    rng: Rng,
}

impl Sockets {
    pub fn new(config: &NodeConfig) -> Self {
        assert!(config.rings.0.is_power_of_two() && config.rings.1.is_power_of_two());
        Self {
            sockets: Vec::new(),
            by_flow: BTreeMap::new(),
            routes: BTreeMap::new(),
            to_fast: VecDeque::new(),
            steered: BTreeSet::new(),
            newly_installed: Vec::new(),
            address: config.address,
            mac: config.mac,
            vlan: config.vlan,
            rings: config.rings,
            rng: Rng::new(config.seed),
        }
    }

    pub fn address(&self) -> IpAddr {
        self.address
    }

    pub fn add_route(&mut self, remote: IpAddr, mac: [u8; 6], mtu: u16) {
        let link = Link { port: PortId(0), source: self.mac, destination: mac, vlan: self.vlan };
        self.routes.insert(remote, Route::Via { link, source: self.address, mtu });
    }

    pub fn add_unresolved(&mut self, remote: IpAddr) {
        self.routes.insert(remote, Route::Resolving);
    }

    pub fn allocate(&mut self, phase: Phase) -> SocketId {
        self.sockets.push(Socket {
            phase,
            flow: None,
            update: AppUpdate::default(),
            view: AppView::default(),
            accepted: VecDeque::new(),
            backlog: 0,
            tx: (0..self.rings.0).map(|_| AtomicU8::new(0)).collect(),
            rx: vec![0; self.rings.1 as usize],
        });
        SocketId(self.sockets.len() as u32 - 1)
    }

    pub fn get(&self, id: SocketId) -> &Socket {
        &self.sockets[id.0 as usize]
    }

    pub fn get_mut(&mut self, id: SocketId) -> &mut Socket {
        &mut self.sockets[id.0 as usize]
    }

    pub fn fail(&mut self, id: SocketId, errno: i32) {
        self.get_mut(id).phase = Phase::Failed(errno);
    }

    pub fn flows(&self) -> usize {
        self.by_flow.len()
    }

    pub fn listeners(&self) -> usize {
        self.sockets.iter().filter(|s| s.phase == Phase::Listening).count()
    }

    pub fn unreleased(&self) -> usize {
        self.sockets.iter().filter(|s| !matches!(s.phase, Phase::Gone | Phase::Failed(_))).count()
    }

    pub fn show(&mut self, flow: FlowId, view: AppView) {
        if let Some(&id) = self.by_flow.get(&flow) {
            self.get_mut(id).view = view;
        }
    }

    /// Bytes that a flow may send.
    fn to_send(&self, flow: FlowId, position: u32, len: usize) -> [&[AtomicU8]; 2] {
        let socket = self.get(self.by_flow[&flow]);
        let left = socket.update.tx_tail.wrapping_sub(position) as usize;
        assert!(len <= left && left <= socket.tx.len(), "{flow:?}: fetch of {len} at {position}");
        pieces(&socket.tx, position, len)
    }

    fn owned(&mut self, owner: Owner) -> (SocketId, &mut Socket) {
        let id = SocketId(owner.0 as u32);
        (id, self.get_mut(id))
    }
}

impl Rings for Sockets {
    fn deliver(&mut self, flow: FlowId, position: u32, bytes: &[u8]) {
        let id = self.by_flow[&flow];
        let socket = self.get_mut(id);
        let end = position.wrapping_add(bytes.len() as u32).wrapping_sub(socket.update.rx_head);
        assert!(
            end as usize <= socket.rx.len(),
            "{flow:?}: delivery of {} at {position} overwrites unread bytes",
            bytes.len()
        );
        copy_in(&mut socket.rx, position, bytes);
    }

    fn fetch(&self, flow: FlowId, position: u32, out: &mut [u8]) {
        let bytes = self.to_send(flow, position, out.len()).into_iter().flatten();
        out.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte.load(Ordering::Relaxed));
    }

    fn payload(&self, flow: FlowId, position: u32, len: u32) -> Option<Payload<'_>> {
        let [one, two] = self.to_send(flow, position, len as usize);
        Some([one, two, &[]])
    }
}

impl Host for Sockets {
    fn route(&mut self, remote: IpAddr, _: Option<IpAddr>) -> Route {
        self.routes.get(&remote).copied().unwrap_or(Route::Unreachable(ENETUNREACH))
    }

    fn is_local(&self, addr: IpAddr) -> bool {
        addr == self.address
    }

    fn flow_group_for(&self, _: &FourTuple, _: Option<usize>) -> usize {
        0
    }

    fn send(&mut self, flow_group: usize, message: ToFast) {
        assert_eq!(flow_group, 0, "a node has one flow group");
        self.to_fast.push_back(message);
    }

    fn steer(&mut self, tuple: &FourTuple, steered: Steered) {
        let key = (tuple.local, tuple.local_port, tuple.remote, tuple.remote_port);
        if !matches!(steered, Steered::No | Steered::Kernels) {
            self.steered.insert(key);
        } else {
            self.steered.remove(&key);
        }
    }

    fn steer_listener(&mut self, addr: IpAddr, port: u16, on: bool) {
        let key = (addr, port, IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        if on {
            self.steered.insert(key);
        } else {
            self.steered.remove(&key);
        }
    }

    fn new_child(&mut self, _: Owner) -> Option<Owner> {
        Some(self.allocate(Phase::Embryo).owner())
    }

    fn drop_child(&mut self, child: Owner) {
        self.owned(child).1.phase = Phase::Gone;
    }

    fn ring_bytes(&self, _: Owner) -> RingBytes {
        let (send, receive) = self.rings;
        RingBytes::fixed(send, receive)
    }

    fn established(&mut self, owner: Owner, setup: &FlowSetup, _: usize) {
        let (id, socket) = self.owned(owner);
        assert!(matches!(socket.phase, Phase::Connecting | Phase::Embryo), "established from {:?}", socket.phase);
        socket.phase = Phase::Open;
        socket.flow = Some(setup.flow);
        let before = self.by_flow.insert(setup.flow, id);
        assert!(before.is_none(), "{:?} installed twice", setup.flow);
        self.newly_installed.push(id);
    }

    fn accept_queue_full(&mut self, listener: Owner) -> bool {
        let (_, socket) = self.owned(listener);
        socket.accepted.len() > socket.backlog
    }

    fn accepted(&mut self, listener: Owner, child: Owner, _: &FourTuple) -> bool {
        let (id, socket) = self.owned(listener);
        if socket.accepted.len() > socket.backlog {
            // `established` will be called for it again.
            let (_, waiting) = self.owned(child);
            waiting.phase = Phase::Embryo;
            if let Some(flow) = waiting.flow.take() {
                self.by_flow.remove(&flow);
            }
            return false;
        }
        self.get_mut(id).accepted.push_back(SocketId(child.0 as u32));
        true
    }

    fn connect_failed(&mut self, owner: Owner, errno: i32) {
        self.owned(owner).1.phase = Phase::Failed(errno);
    }

    fn released(&mut self, owner: Owner, flow: Option<FlowId>) {
        let (id, socket) = self.owned(owner);
        assert_ne!(socket.phase, Phase::Gone, "{id:?} released twice");
        if !matches!(socket.phase, Phase::Failed(_)) {
            socket.phase = Phase::Gone;
        }
        socket.flow = None;
        if let Some(flow) = flow {
            assert_eq!(self.by_flow.remove(&flow), Some(id), "{flow:?} released by another owner");
        }
    }

    fn random(&mut self) -> u64 {
        self.rng.next_u64()
    }
}
