//! The host of the slow path: it answers the protocol's questions and shows applications its results.

use crate::api::{KernelListener, Network};
use crate::client::SlowClient;
use crate::direct_frames::{Chosen, DirectFrames};
use crate::ended::EndedConnections;
use crate::kernel_listeners::KernelListeners;
use crate::mailbox::Sender;
use crate::messages::ToGroup;
use crate::owner::{owner, split};
use crate::pairs::Pairs;
use crate::random::Random;
use crate::selection::Selection;
use crate::slots::{Phase, Queued};
use crate::splices::Splices;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use towpath_capture::Tap;
use towpath_capture::direct::Watch;
use towpath_capture::tap::now_ns;
use towpath_ring::Slot;
use towpath_ring::lines::state;
use towpath_runtime::admission::{AdmissionControl, AdmissionState};
use towpath_runtime::info::{self, ring_addr};
use towpath_runtime::{AdmissionPolicy, ListenerProof, Verdict};
use towpath_tcp::flow::{FlowId, FlowSetup, FourTuple, Owner, PortId, RingBytes};
use towpath_tcp::messages::ToFast;
use towpath_tcp::slow::{Admission, Ending, FirstSyn, Forwarded, Host, Route, Steered, Translation};
use towpath_tcp::time::Micros;

/// A flow group, as the slow path knows it.
pub struct GroupLink {
    /// Messages to it.
    pub to: Sender<ToGroup>,
    /// How many ports it has.
    pub ports: usize,
}

/// Work that waits until the slow path has returned.
pub enum Later {
    /// Close this connection: its application is gone, or never saw it.
    Close {
        /// Client index.
        client: u32,
        /// Slot.
        slot: Slot,
        /// The slot's generation then.
        generation: u32,
        /// With RST.
        abort: bool,
    },
    /// End this listener: its application breaks the contract.
    EndListener {
        /// Client index.
        client: u32,
        /// Slot.
        slot: Slot,
    },
}

/// The listener of a connection within this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalListener {
    /// None that is ours.
    None,
    /// None: the kernel has a connection with that tuple.
    Taken,
    /// This one.
    Ours(Owner),
}

/// Every flow group's loopback. No kernel sees its segments.
pub const LOOPBACK: PortId = PortId(0);

/// The slow path's tables.
pub struct SlowHost {
    /// Clients by index.
    pub clients: Vec<Option<SlowClient>>,
    /// The flow groups.
    pub flow_groups: Vec<GroupLink>,
    /// Routes and steering.
    pub network: Box<dyn Network>,
    /// Owner of each flow.
    pub owners: Vec<Option<Owner>>,
    /// See [`Later`].
    pub later: Vec<Later>,
    /// The operator's policy.
    pub gate: AdmissionState,
    /// Sharing classes with a weight or rate of their own.
    pub shaped: BTreeSet<u16>,
    /// Listeners that stay the kernel's.
    pub kernel_listeners: KernelListeners,
    /// Regions that two clients share.
    pub pairs: Pairs,
    /// The module that translates segments of spliced connections.
    pub splices: Splices,
    /// Connections and listeners, while there are modules with selectors.
    pub selection: Option<Selection>,
    /// Told of connections while somebody captures.
    pub watch: Option<Arc<Mutex<Watch<Tap>>>>,
    /// The frames of direct connections for modules.
    pub direct_frames: Arc<DirectFrames>,
    /// Which direct connections have modules, while there are such modules.
    pub direct_modules: Option<Chosen>,
    /// Connections that have ended.
    pub ended: EndedConnections,
    /// The congestion control of the next child, if the policy has chosen one (`Algorithm::id`).
    child_congestion: u8,
    /// When the present turn began.
    pub now: Micros,
    random: Random,
}

impl SlowHost {
    /// Empty tables.
    pub fn new(
        flow_groups: Vec<GroupLink>,
        network: Box<dyn Network>,
        guard: Box<dyn AdmissionPolicy>,
    ) -> std::io::Result<Self> {
        let (clients, owners, later) = (Vec::new(), Vec::new(), Vec::new());
        let (gate, now) = (AdmissionState::new(guard), Micros(0));
        let (child_congestion, pairs, shaped) = (0, Pairs::default(), BTreeSet::new());
        Ok(Self {
            clients,
            flow_groups,
            network,
            owners,
            later,
            gate,
            shaped,
            kernel_listeners: KernelListeners::default(),
            pairs,
            splices: Splices::default(),
            selection: None,
            watch: None,
            direct_frames: Arc::default(),
            direct_modules: None,
            ended: EndedConnections::default(),
            child_congestion,
            now,
            random: Random::new()?,
        })
    }
    /// May a client open connections in the network namespace that is served? Listeners need no answer: the service has seen
    /// their sockets, and the kernel says for each SYN which one it is for.
    pub fn is_of_our_namespace(&mut self, index: u32) -> bool {
        let home = self.network.namespace();
        self.client(index).is_some_and(|client| client.shared.namespace.is(home))
    }
    /// Client and slot of an owner.
    pub fn find(&mut self, owner: Owner) -> Option<(&mut SlowClient, Slot)> {
        let (index, raw) = split(owner);
        let client = self.clients.get_mut(index as usize)?.as_mut()?;
        let slot = client.shared.region.slot(raw)?;
        Some((client, slot))
    }
    /// The client in place `index`.
    pub fn client(&mut self, index: u32) -> Option<&mut SlowClient> {
        self.clients.get_mut(index as usize)?.as_mut()
    }
    /// Takes the SYNs of a listener that stays the kernel's.
    pub fn take_from_kernel(&mut self, owner: Owner, proof: ListenerProof) -> std::io::Result<()> {
        if let Err(error) = self.network.take_syns(proof.cookie, true) {
            self.end_rules_of(proof.cookie);
            return Err(error);
        }
        self.network.beat();
        self.kernel_listeners.insert(owner, proof);
        Ok(())
    }
    /// The listener within this host that the kernel chooses for a connection of this tuple, seen from the peer.
    pub fn kernels_listener(&mut self, tuple: &FourTuple) -> LocalListener {
        let chosen = self.network.listener_of(tuple);
        self.ours(tuple, chosen)
    }
    /// [`Self::kernels_listener`], for a connection that would come by the device of this index.
    pub fn kernels_listener_by(&mut self, tuple: &FourTuple, interface: u32) -> LocalListener {
        let chosen = self.network.listener_by(tuple, interface);
        self.ours(tuple, chosen)
    }
    fn ours(&self, tuple: &FourTuple, chosen: KernelListener) -> LocalListener {
        match chosen {
            KernelListener::None => LocalListener::None,
            KernelListener::Taken => LocalListener::Taken,
            KernelListener::Cookie(cookie) => {
                let ours = self.kernel_listeners.find(cookie, tuple.remote, tuple.remote_port);
                ours.map_or(LocalListener::None, LocalListener::Ours)
            }
        }
    }
    /// Fills the words that `getsockname` and the like show.
    pub fn show_info(client: &SlowClient, slot: Slot, tuple: &FourTuple, mss: u16, srtt_us: u32, tcp_state: u32) {
        let (local, remote) =
            (SocketAddr::new(tuple.local, tuple.local_port), SocketAddr::new(tuple.remote, tuple.remote_port));
        info::show(client.shared.region.info(slot), local, remote, mss, srtt_us, tcp_state);
    }
    /// Shows the addresses of a slot that has no flow yet.
    pub fn show_addresses(client: &SlowClient, slot: Slot, tuple: &FourTuple, tcp_state: u32) {
        Self::show_info(client, slot, tuple, 0, 0, tcp_state);
    }
}

/// The flow group of a tuple. It is the same from both ends, so that both ends of a connection within this host are in
/// one flow group.
pub fn flow_group_of(tuple: &FourTuple, flow_groups: usize) -> usize {
    let end = |addr: IpAddr, port: u16| {
        let addr = match addr {
            IpAddr::V4(addr) => u64::from(addr.to_bits()),
            IpAddr::V6(addr) => addr.segments().iter().fold(0u64, |sum, part| sum.rotate_left(13) ^ u64::from(*part)),
        };
        (addr << 16 ^ addr >> 48 ^ u64::from(port)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    };
    let sum = end(tuple.local, tuple.local_port).wrapping_add(end(tuple.remote, tuple.remote_port));
    let mixed = (sum ^ sum >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((mixed >> 32) as usize) % flow_groups.max(1)
}

impl Host for SlowHost {
    fn route(&mut self, remote: IpAddr, local: Option<IpAddr>) -> Route {
        self.network.route(remote, local)
    }
    fn is_local(&self, addr: IpAddr) -> bool {
        self.network.is_local(addr)
    }
    fn kernel_has(&mut self, tuple: &FourTuple) -> bool {
        self.network.kernel_has(tuple)
    }
    fn more_ports(&mut self) -> Vec<u16> {
        self.network.more_ports()
    }
    fn give_back_ports(&mut self, ports: Vec<u16>) {
        self.network.give_back_ports(ports);
    }
    fn user(&self, owner: Owner) -> u32 {
        let client = self.clients.get(split(owner).0 as usize).and_then(Option::as_ref);
        client.map_or(0, |client| client.shared.uid)
    }
    fn flow_group_for(&self, tuple: &FourTuple, came_to: Option<usize>) -> usize {
        if self.network.is_local(tuple.remote) {
            return flow_group_of(tuple, self.flow_groups.len());
        }
        // A connection that leaves this host belongs to a flow group with the most ports, which has one that leads out.
        let most = self.flow_groups.iter().map(|c| c.ports).max().unwrap_or(1);
        if let Some(group) = came_to.filter(|group| self.flow_groups.get(*group).is_some_and(|c| c.ports == most)) {
            return group;
        }
        let able = self.flow_groups.iter().filter(|c| c.ports == most).count();
        let nth = flow_group_of(tuple, able);
        self.flow_groups
            .iter()
            .enumerate()
            .filter(|(_, c)| c.ports == most)
            .nth(nth)
            .map_or(0, |(flow_group, _)| flow_group)
    }
    fn send(&mut self, flow_group: usize, message: ToFast) {
        let flow_group = match &message {
            ToFast::Transmit(port, _)
                if self.flow_groups.get(flow_group).is_none_or(|c| c.ports <= usize::from(port.0)) =>
            {
                0
            }
            _ => flow_group,
        };
        if let Some(link) = self.flow_groups.get_mut(flow_group) {
            link.to.send(ToGroup::Tcp(message));
        }
    }
    fn steer(&mut self, tuple: &FourTuple, steered: Steered) {
        self.network.steer(tuple, steered);
    }
    fn send_first_syn(&mut self, owner: Owner, tuple: &FourTuple, port: PortId, frame: &[u8]) -> FirstSyn {
        self.select_connection(owner, tuple, None);
        if port == LOOPBACK {
            return FirstSyn::ByPort;
        }
        // The answer may be there before this call is over.
        let time = now_ns();
        let sent = self.network.send_first_syn(tuple, port, frame);
        if sent == FirstSyn::Sent {
            self.watch_sent_syn(owner, tuple, port, time, frame);
        }
        sent
    }
    fn names_listeners(&self) -> bool {
        self.network.listens_in_kernel()
    }
    fn listener_of(&mut self, tuple: &FourTuple) -> Option<Owner> {
        match self.kernels_listener(&tuple.reversed()) {
            LocalListener::Ours(listener) => Some(listener),
            LocalListener::None | LocalListener::Taken => None,
        }
    }
    fn finds_listeners(&self, port: PortId) -> bool {
        port == LOOPBACK || self.network.finds_listeners()
    }
    fn steer_listener(&mut self, addr: IpAddr, port: u16, on: bool) {
        self.network.steer_listener(addr, port, on);
    }
    fn new_child(&mut self, listener: Owner) -> Option<Owner> {
        let (index, _) = split(listener);
        let (client, slot) = self.find(listener)?;
        if client.slot(slot).phase != Phase::Listening {
            return None;
        }
        if !self.within_limits(index) {
            return None;
        }
        let congestion = std::mem::take(&mut self.child_congestion);
        let client = self.client(index)?;
        let child = client.take_child()?;
        client.slot(child).own.congestion = congestion;
        client.own.half_open += 1;
        self.spend_token(index);
        Some(owner(index, child))
    }
    fn admit(&mut self, listener: Owner, tuple: &FourTuple) -> Admission {
        match self.permit_accept(split(listener).0, tuple.local_end(), tuple.remote_end()) {
            Verdict::Allow(congestion) => {
                self.child_congestion = congestion;
                Admission::Yes(congestion)
            }
            Verdict::Refuse(_) => Admission::Refuse,
            Verdict::Drop | Verdict::Kernel | Verdict::Stack(_) => Admission::Drop,
        }
    }
    fn class(&self, owner: Owner) -> u16 {
        let (index, _) = split(owner);
        self.clients.get(index as usize).and_then(Option::as_ref).map_or(0, |client| client.own.class)
    }
    fn spares_children(&mut self, listener: Owner) -> bool {
        let half_open = self.client(split(listener).0).map(|client| (client.own.half_open, client.children_left()));
        half_open.is_some_and(|(half_open, left)| half_open > 0 && half_open >= left)
    }
    fn drop_child(&mut self, child: Owner) {
        self.forget_selected(child);
        let Some((client, slot)) = self.find(child) else { return };
        if client.slot(slot).phase != Phase::Child {
            return;
        }
        let flow = client.slot(slot).own.flow;
        client.own.half_open = client.own.half_open.saturating_sub(1);
        client.free(slot);
        if let Some(place) = flow.and_then(|f| self.owners.get_mut(f.0 as usize)) {
            *place = None;
        }
    }
    fn ring_bytes(&self, owner: Owner) -> RingBytes {
        let (index, _) = split(owner);
        match self.clients.get(index as usize) {
            Some(Some(client)) => {
                let geometry = client.shared.region.geometry();
                RingBytes { send: geometry.tx_bytes, receive: geometry.rx_bytes, receive_most: geometry.rx_space() }
            }
            _ => RingBytes::fixed(4096, 4096),
        }
    }
    fn established(&mut self, owner: Owner, setup: &FlowSetup, flow_group: usize) {
        let flow = setup.flow.0 as usize;
        if self.owners.len() <= flow {
            self.owners.resize(flow + 1, None);
        }
        self.owners[flow] = Some(owner);
        self.tell_name(owner, &setup.tuple);
        self.select_connection(owner, &setup.tuple, Some(setup.flow));
        let (index, _) = split(owner);
        let Some((client, slot)) = self.find(owner) else { return };
        let was = client.slot(slot).phase;
        if !matches!(was, Phase::Opening | Phase::Child) {
            return;
        }
        Self::show_info(client, slot, &setup.tuple, setup.mss, setup.srtt_us, 1);
        let generation = client.shared.generation(slot);
        let entry = client.slot(slot);
        (entry.own.flow_group, entry.own.flow) = (flow_group, Some(setup.flow));
        client.show(slot, state::ESTABLISHED, flow_group);
        if was == Phase::Child {
            return; // `accepted` follows
        }
        let entry = client.slot(slot);
        entry.phase = Phase::Open;
        let gone = entry.app_closed;
        client.raise(slot);
        if gone {
            self.later.push(Later::Close { client: index, slot, generation, abort: false });
        }
    }
    fn accept_queue_full(&mut self, listener: Owner) -> bool {
        let (index, _) = split(listener);
        let Some((client, slot)) = self.find(listener) else { return true };
        if !client.sync_listener(slot) {
            client.shared.violated_contract();
            self.later.push(Later::EndListener { client: index, slot });
            return true;
        }
        !client.has_room(slot)
    }
    fn accepted(&mut self, listener: Owner, child: Owner, tuple: &FourTuple) -> bool {
        let (index, child_raw) = split(child);
        let Some((client, slot)) = self.find(listener) else { return false };
        if client.slot(slot).phase != Phase::Listening {
            return false;
        }
        let Some(child) = client.shared.region.slot(child_raw) else { return false };
        let region = &client.shared.region;
        region.info(child).congestion.store(region.info(slot).congestion.load(Ordering::Relaxed), Ordering::Relaxed);
        match client.queue(slot, child, ring_addr(tuple.remote), tuple.remote_port) {
            Queued::Yes => {
                client.slot(child).phase = Phase::Open;
                client.own.half_open = client.own.half_open.saturating_sub(1);
                true
            }
            Queued::Full => false,
            Queued::ContractViolation => {
                client.shared.violated_contract();
                self.later.push(Later::EndListener { client: index, slot });
                false
            }
        }
    }
    /// A weight or a rate of its own would have no effect on what passes below the stack.
    fn may_splice(&self, owner: Owner) -> bool {
        self.splices.is_for(self.selectors_of(owner).unwrap_or(0)) && !self.shaped.contains(&self.class(owner))
    }
    fn splice(&mut self, translations: &[Translation; 2]) -> Result<(), i32> {
        self.begin_splice(translations)
    }
    fn resplice(&mut self, translation: &Translation) -> bool {
        self.change_splice(translation)
    }
    fn forwarded(&mut self, tuple: &FourTuple) -> Option<Forwarded> {
        self.look_at_splice(tuple)
    }
    fn passed_on(&mut self, owner: Owner, bytes: u64) {
        self.tell_passed_on(owner, bytes);
    }
    fn translate(&mut self, flow_group: usize, port: PortId, frame: Box<[u8]>) {
        if let Some(link) = self.flow_groups.get_mut(flow_group) {
            link.to.send(ToGroup::Translate(port, frame));
        }
    }
    fn unsplice(&mut self, tuple: &FourTuple) {
        self.end_splice(tuple);
    }
    fn splice_answered(&mut self, owner: Owner, command: u32, errno: i32) {
        self.answer_splice(owner, command, errno);
    }
    fn soft_error(&mut self, owner: Owner, errno: i32) {
        if let Some((client, slot)) = self.find(owner) {
            client.soft_error(slot, errno);
        }
    }
    fn connect_failed(&mut self, owner: Owner, errno: i32) {
        let Some((client, slot)) = self.find(owner) else { return };
        if client.slot(slot).phase == Phase::Opening {
            client.over(slot, errno);
        }
    }
    fn random(&mut self) -> u64 {
        self.random.next()
    }
    fn ended(&mut self, owner: Owner, tuple: &FourTuple, why: Ending) {
        self.remember(split(owner).0, tuple, false, why);
    }
    fn released(&mut self, owner: Owner, flow: Option<FlowId>) {
        self.forget_selected(owner);
        if let Some(place) = flow.and_then(|f| self.owners.get_mut(f.0 as usize)) {
            *place = None;
        }
        if flow.is_none() {
            self.leave_to_kernel(owner);
        }
        let Some((client, slot)) = self.find(owner) else { return };
        match client.slot(slot).phase {
            Phase::Free | Phase::Over | Phase::Direct => {}
            Phase::Child | Phase::Listening => client.free(slot),
            Phase::Opening | Phase::Open => client.over(slot, 0),
        }
    }
}
