//! A listener that stays a listening socket of the kernel: its SYNs come from the kernel, by its cookie.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::{fs::File, io};
use towpath_contract_tests::app::{App, Sock, eventually, small};
use towpath_fast::{FastStack, FastStackConfig, Network, SynCounts, SynsWait, TakenSyn};
use towpath_ports::memory::{Loopback, MemoryPort, pair};
use towpath_ports::{Port, TxOffload};
use towpath_ring::lines::{app_flags, status};
use towpath_ring::wake::{doorbell, notify};
use towpath_runtime::policy::AllowAll;
use towpath_runtime::{
    AdmissionPolicy, ClientId, Exceeded, Limit, ListenerProof, OrphanLimits, PeerRule, PeerRules, Proof, Reservation,
    Stack, Verdict,
};
use towpath_tcp::flow::{FourTuple, Link, PortId};
use towpath_tcp::slow::{Route, SlowConfig, Steered};
use towpath_wire::{Header, Options, Segment, emit, fill_checksum, flags, parse};

const US: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const COOKIE: u64 = 4711;

/// The kernel's side.
#[derive(Default)]
struct Kernel {
    syns: VecDeque<TakenSyn>,
    accelerated: BTreeSet<u64>,
    steered: HashMap<FourTuple, Steered>,
    /// The thread that has steered last.
    steered_by: Option<String>,
    /// The peer's ports of the SYNs that the stack leaves to the kernel.
    left: Vec<u16>,
    /// The listening socket is closed.
    closed: bool,
    /// The rules about peers, by cookie; `None`: there is no filter.
    rules: Option<HashMap<u64, Vec<PeerRule>>>,
    /// What they have refused.
    refused: Vec<(u64, u64)>,
}

/// A policy about peers.
#[derive(Default)]
struct InForce {
    version: u64,
    rules: PeerRules,
    refused: Vec<(u64, u64)>,
}

#[derive(Clone, Default)]
struct Rules(Arc<Mutex<InForce>>);

impl AdmissionPolicy for Rules {
    fn connect(&mut self, _: ClientId, _: SocketAddr) -> Verdict {
        Verdict::Allow(0)
    }
    fn listen(&mut self, _: ClientId, _: SocketAddr, _: bool) -> Verdict {
        Verdict::Allow(0)
    }
    fn accept(&mut self, _: ClientId, _: SocketAddr, _: SocketAddr) -> Verdict {
        Verdict::Allow(0)
    }
    fn peer_rules(&mut self, _: ClientId, local: SocketAddr, dual: bool) -> PeerRules {
        assert_eq!((local, dual), ((US, 80).into(), false));
        self.0.lock().unwrap().rules.clone()
    }
    fn peer_rules_version(&mut self) -> u64 {
        self.0.lock().unwrap().version
    }
    fn peers_refused(&mut self, refused: &[(u64, u64)]) {
        self.0.lock().unwrap().refused.extend(refused);
    }
    fn limit(&mut self, _: ClientId) -> Option<Limit> {
        None
    }
    fn exceeded(&mut self, _: ClientId, _: &Limit, _: Exceeded) {}
}

struct KernelNetwork(Arc<Mutex<Kernel>>, OwnedFd);

impl Network for KernelNetwork {
    fn route(&mut self, _: IpAddr, local: Option<IpAddr>) -> Route {
        let link = Link { port: PortId(1), source: OUR_MAC, destination: PEER_MAC, vlan: None };
        Route::Via { link, source: local.unwrap_or(US), mtu: 1500 }
    }
    fn is_local(&self, addr: IpAddr) -> bool {
        addr == US
    }
    fn steer(&mut self, tuple: &FourTuple, steered: Steered) {
        let mut kernel = self.0.lock().unwrap();
        kernel.steered_by = std::thread::current().name().map(str::to_owned);
        match steered {
            Steered::No | Steered::Kernels => kernel.steered.remove(tuple),
            _ => kernel.steered.insert(*tuple, steered),
        };
    }
    fn steer_listener(&mut self, _: IpAddr, _: u16, _: bool) {
        panic!("listening ports are the kernel's");
    }
    fn shares_ports_with_kernel(&self) -> bool {
        true
    }
    fn listens_in_kernel(&self) -> bool {
        true
    }
    fn take_syns(&mut self, cookie: u64, on: bool) -> io::Result<()> {
        let mut kernel = self.0.lock().unwrap();
        let changed = if on { kernel.accelerated.insert(cookie) } else { kernel.accelerated.remove(&cookie) };
        assert!(changed, "{cookie} {on} twice");
        Ok(())
    }
    fn judge_peers(&mut self, cookie: u64, rules: &[PeerRule]) -> io::Result<()> {
        let mut kernel = self.0.lock().unwrap();
        match &mut kernel.rules {
            None if rules.is_empty() => {}
            None => return Err(io::ErrorKind::Unsupported.into()),
            Some(all) if rules.is_empty() => _ = all.remove(&cookie),
            Some(all) => _ = all.insert(cookie, rules.to_vec()),
        }
        Ok(())
    }
    fn refused_peers(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.0.lock().unwrap().refused)
    }
    fn refused_at(&mut self, cookie: u64) -> u64 {
        cookie
    }
    fn next_syn(&mut self) -> Option<TakenSyn> {
        self.0.lock().unwrap().syns.pop_front()
    }
    fn leave_syn(&mut self, tuple: &FourTuple) {
        self.0.lock().unwrap().left.push(tuple.remote_port);
    }
    fn syns(&mut self) -> Option<BorrowedFd<'_>> {
        Some(self.1.as_fd())
    }
    fn syns_wait(&mut self) -> io::Result<SynsWait> {
        let kernel = Arc::clone(&self.0);
        Ok(Box::new(move || !kernel.lock().unwrap().syns.is_empty()))
    }
    fn syn_counts(&self) -> SynCounts {
        SynCounts { taken: 5, limited: 4, passed_stale: 6, passed_full: 7 }
    }
    fn is_listening(&mut self, _: u64, _: IpAddr, _: u16) -> bool {
        !self.0.lock().unwrap().closed
    }
    fn changed(&mut self) -> bool {
        false
    }
}

/// A stack with a cable to the peer, and the kernel's side.
struct Bench {
    kernel: Arc<Mutex<Kernel>>,
    arrival: OwnedFd,
    peer: MemoryPort,
    stack: FastStack,
}

impl Bench {
    fn new() -> Self {
        Self::under(Box::new(AllowAll))
    }
    fn under(guard: Box<dyn AdmissionPolicy>) -> Self {
        let (ours, peer) = pair(1500);
        let (kernel, arrival) = (Arc::new(Mutex::default()), doorbell().unwrap());
        let config = FastStackConfig {
            flow_groups: 1,
            max_flows: 64,
            spin_us: 600_000_000, // the cable wakes nobody
            delayed_ack_us: 1000,
            cpus: Vec::new(),
            direct: false,
            orphans: OrphanLimits::default(),
            slow: SlowConfig::default(),
        };
        let network = KernelNetwork(Arc::clone(&kernel), arrival.try_clone().unwrap());
        let ports: Vec<Box<dyn Port>> = vec![Box::new(Loopback::new()), Box::new(ours)];
        let stack = FastStack::start_guarded(config, vec![ports], Box::new(network), guard).unwrap();
        Self { kernel, arrival, peer, stack }
    }
    /// A listener of which the service has shown the socket.
    fn listen(&self, app: &Arc<App>) -> Sock {
        self.listen_on(app, US)
    }
    fn listen_on(&self, app: &Arc<App>, addr: IpAddr) -> Sock {
        self.listen_with(app, addr, 8)
    }
    fn listen_with(&self, app: &Arc<App>, addr: IpAddr, backlog: u32) -> Sock {
        self.try_listen(app, addr, backlog).unwrap()
    }
    fn try_listen(&self, app: &Arc<App>, addr: IpAddr, backlog: u32) -> Result<Sock, i32> {
        let proof = ListenerProof { cookie: COOKIE, addr, port: 80, dual: false };
        let held = File::open("/dev/null").unwrap().into();
        let slot = app.region.layout().app_slots().next().unwrap().raw();
        let seq = app.region.command(app.region.slot(slot).unwrap()).read().0 + 1;
        self.stack.reserve(app.id, slot, seq, Reservation { port: None, held, proof: Proof::Listener(proof) });
        app.listen(addr, 80, backlog)
    }
    fn syn(&self, cookie: u64, port: u16) {
        self.syn_to(cookie, port, US);
    }
    fn syn_to(&self, cookie: u64, port: u16, us: IpAddr) {
        let frame = frame_to(us, port, 5000, 0, flags::SYN).into();
        self.kernel.lock().unwrap().syns.push_back(TakenSyn { cookie, queue: Some(3), port: PortId(1), frame });
        notify(self.arrival.as_fd());
    }
    fn send(&mut self, frame: &[u8]) {
        let out = self.peer.reserve().unwrap();
        out[..frame.len()].copy_from_slice(frame);
        self.peer.commit(frame.len(), TxOffload::default());
        self.peer.flush();
    }
    /// The next frame for the peer.
    fn next(&mut self) -> Segment {
        let mut frames = Vec::new();
        eventually("a frame", || {
            self.peer.receive(&mut frames, 1);
            !frames.is_empty()
        });
        let segment = parse(self.peer.bytes(&frames[0])).unwrap();
        self.peer.release(&frames);
        segment
    }
    fn steered(&self, port: u16) -> Option<Steered> {
        let tuple = FourTuple { local: US, local_port: 80, remote: PEER, remote_port: port };
        self.kernel.lock().unwrap().steered.get(&tuple).copied()
    }
}

/// A frame from the peer's port to our port 80.
fn frame(port: u16, seq: u32, ack: u32, flags: u8) -> Vec<u8> {
    frame_to(US, port, seq, ack, flags)
}

fn frame_to(us: IpAddr, port: u16, seq: u32, ack: u32, flags: u8) -> Vec<u8> {
    let header = Header {
        source_mac: PEER_MAC,
        destination_mac: OUR_MAC,
        vlan: None,
        source: PEER,
        destination: us,
        source_port: port,
        destination_port: 80,
        seq,
        ack,
        flags,
        window: 8192,
        ident: 1,
        tos: 0,
        ttl: 64,
        urgent: 0,
        options: Options::default(),
    };
    let mut frame = vec![0; header.wire_bytes()];
    emit(&header, 0, &mut frame).unwrap();
    fill_checksum(&mut frame);
    frame
}

#[test]
fn a_syn_that_names_the_listener_opens_a_connection() {
    let mut bench = Bench::new();
    let app = App::new(&bench.stack, small(1));
    let mut listener = bench.listen(&app);
    assert_eq!(bench.kernel.lock().unwrap().accelerated, BTreeSet::from([COOKIE]));
    bench.syn(COOKIE + 1, 4000);
    bench.syn(COOKIE, 4001);
    let answer = bench.next();
    assert_eq!((answer.flags, answer.destination_port), (flags::SYN | flags::ACK, 4001), "no answer to the other one");
    assert_eq!((bench.steered(4001), bench.steered(4000)), (Some(Steered::ButFirstSyns), None));
    bench.send(&frame(4001, 5001, answer.seq.wrapping_add(1), flags::ACK));
    let accepted = listener.accept();
    let counts: Vec<_> = bench.stack.status().listeners.iter().map(|(_, count)| count).collect();
    assert_eq!(counts, [0, 5, 4, 6, 7, 0, 1], "accepted by the kernel, taken, limited, stale, full, refused, unknown");

    // A half-open connection ends with the listener; an accepted one goes on.
    bench.syn(COOKIE, 4002);
    assert_eq!(bench.next().destination_port, 4002);
    listener.close();
    let reset = bench.next();
    assert_eq!((reset.flags, reset.destination_port), (flags::RST | flags::ACK, 4002));
    eventually("the SYNs are the kernel's again", || bench.kernel.lock().unwrap().accelerated.is_empty());
    assert_eq!((bench.steered(4001), bench.steered(4002)), (Some(Steered::ButFirstSyns), None));
    accepted.abort();
    assert_ne!(bench.next().flags & flags::RST, 0);
    eventually("nothing is steered", || bench.steered(4001).is_none());
}

/// The slow thread may be at work for another reason, and then has the SYN, too.
#[test]
fn the_thread_that_has_the_frames_makes_the_connection() {
    let mut bench = Bench::new();
    let app = App::new(&bench.stack, small(1));
    let mut listener = bench.listen(&app);
    let mut port = 4000;
    eventually("a handshake without another thread", || {
        port += 1;
        bench.syn(COOKIE, port);
        let answer = std::iter::from_fn(|| Some(bench.next())).find(|answer| answer.destination_port == port).unwrap();
        bench.send(&frame(port, 5001, answer.seq.wrapping_add(1), flags::ACK));
        listener.accept().abort();
        bench.kernel.lock().unwrap().steered_by.as_deref() == Some("fast-0")
    });
}

#[test]
fn a_syn_that_the_stack_does_not_answer_is_left_to_the_kernel() {
    let mut bench = Bench::new();
    let app = App::new(&bench.stack, small(1));
    let _listener = bench.listen_on(&app, IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    // One that has ended, and an address that a route alone makes ours.
    bench.syn(COOKIE + 1, 4000);
    bench.syn_to(COOKIE, 4001, IpAddr::V4(Ipv4Addr::new(10, 9, 9, 9)));
    bench.syn(COOKIE, 4002);
    assert_eq!(bench.next().destination_port, 4002);
    assert_eq!(bench.kernel.lock().unwrap().left, [4000, 4001]);
}

#[test]
fn a_listener_whose_connections_nobody_accepts_is_left_to_the_kernel() {
    let mut bench = Bench::new();
    let app = App::new(&bench.stack, small(1));
    let mut listener = bench.listen(&app);
    let connect = |bench: &mut Bench, port| {
        bench.syn(COOKIE, port);
        // Those to others may be repeated.
        let answer = std::iter::from_fn(|| Some(bench.next())).find(|answer| answer.destination_port == port).unwrap();
        assert_eq!(answer.flags, flags::SYN | flags::ACK);
        bench.send(&frame(port, 5001, answer.seq.wrapping_add(1), flags::ACK));
    };
    connect(&mut bench, 4000);
    std::thread::sleep(std::time::Duration::from_millis(3100));
    connect(&mut bench, 4003);
    listener.accept();
    // Nobody else could accept so far.
    let slot = app.region.layout().app_slots().next().unwrap();
    app.region.app(slot).flags.fetch_or(app_flags::PASSED, Ordering::Relaxed);
    eventually("it has stalled", || {
        bench.syn(COOKIE, 4001);
        std::thread::sleep(std::time::Duration::from_millis(100));
        !bench.kernel.lock().unwrap().left.is_empty()
    });
    listener.accept();
    bench.kernel.lock().unwrap().left.clear();
    connect(&mut bench, 4002);
    listener.accept();
    assert!(bench.kernel.lock().unwrap().left.is_empty());
}

/// The application has fewer slots than its backlogs together.
#[test]
fn a_flood_of_syns_leaves_slots_for_those_who_answer() {
    let mut bench = Bench::new();
    let app = App::new(&bench.stack, small(1));
    let mut listener = bench.listen_with(&app, US, 64);
    for port in 5000..5040 {
        bench.syn(COOKIE, port);
        assert_eq!(bench.next().flags, flags::SYN | flags::ACK);
    }
    for port in 4000..4004 {
        bench.syn(COOKIE, port);
        let answer = bench.next();
        assert_eq!(bench.steered(port), Some(Steered::AnswerToCookie));
        bench.send(&frame(port, 5001, answer.seq.wrapping_add(1), flags::ACK));
        listener.accept();
    }
}

#[test]
fn a_listener_ends_with_its_socket() {
    let bench = Bench::new();
    let app = App::new(&bench.stack, small(1));
    let _listener = bench.listen(&app);
    bench.kernel.lock().unwrap().closed = true;
    eventually("the SYNs are the kernel's again", || bench.kernel.lock().unwrap().accelerated.is_empty());
}

/// Allows everything, and drains from some time on.
struct Draining(Arc<AtomicBool>);

impl AdmissionPolicy for Draining {
    fn connect(&mut self, _: ClientId, _: SocketAddr) -> Verdict {
        Verdict::Allow(0)
    }
    fn listen(&mut self, _: ClientId, _: SocketAddr, _: bool) -> Verdict {
        Verdict::Allow(0)
    }
    fn accept(&mut self, _: ClientId, _: SocketAddr, _: SocketAddr) -> Verdict {
        Verdict::Allow(0)
    }
    fn drains(&mut self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
    fn limit(&mut self, _: ClientId) -> Option<Limit> {
        None
    }
    fn exceeded(&mut self, _: ClientId, _: &Limit, _: Exceeded) {}
}

#[test]
fn a_stack_that_drains_gives_its_listeners_back_and_serves_whom_it_has() {
    let drains = Arc::new(AtomicBool::new(false));
    let mut bench = Bench::under(Box::new(Draining(drains.clone())));
    let app = App::new(&bench.stack, small(1));
    let mut listener = bench.listen(&app);
    bench.stack.policy_changed();
    assert_eq!(bench.kernel.lock().unwrap().accelerated, BTreeSet::from([COOKIE]), "the policy has changed, no more");
    bench.syn(COOKIE, 4001);
    let answer = bench.next();
    drains.store(true, Ordering::Relaxed);
    bench.stack.policy_changed();
    assert!(bench.kernel.lock().unwrap().accelerated.is_empty(), "all is told when the call returns");
    bench.send(&frame(4001, 5001, answer.seq.wrapping_add(1), flags::ACK));
    let accepted = listener.accept();
    // A second question changes nothing, nor does the end of the listener.
    bench.stack.policy_changed();
    listener.close();
    assert_eq!(bench.steered(4001), Some(Steered::ButFirstSyns));
    accepted.abort();
    eventually("nothing is steered", || bench.steered(4001).is_none());
}

/// The status that the stack shows of a listener.
fn status_of(app: &App) -> u32 {
    let slot = app.region.layout().app_slots().next().unwrap();
    app.region.stack(slot).status.load(Ordering::Acquire)
}

#[test]
fn the_rules_about_a_listeners_peers_are_set_changed_and_end_with_its_socket() {
    let policy = Rules::default();
    let bench = Bench::under(Box::new(policy.clone()));
    let app = App::new(&bench.stack, small(1));
    let in_force = || bench.kernel.lock().unwrap().rules.clone().unwrap_or_default();
    let change = |version: u64, rules: PeerRules| {
        let mut policy = policy.0.lock().unwrap();
        (policy.version, policy.rules) = (version, rules);
    };
    bench.kernel.lock().unwrap().rules = Some(HashMap::new());
    change(1, PeerRules::nobody(5));
    let listener = bench.listen(&app);
    assert_eq!(in_force(), HashMap::from([(COOKIE, PeerRules::nobody(5).rules)]));
    assert_eq!(status_of(&app), status::JUDGED);
    change(2, PeerRules::default());
    bench.stack.policy_changed();
    assert_eq!((in_force(), status_of(&app)), (HashMap::new(), 0));
    change(2, PeerRules::nobody(6));
    bench.stack.policy_changed();
    assert_eq!(in_force(), HashMap::new(), "the version says that nothing has changed");
    change(3, PeerRules::nobody(6));
    bench.stack.policy_changed();
    assert_eq!((in_force()[&COOKIE].clone(), status_of(&app)), (PeerRules::nobody(6).rules, status::JUDGED));

    bench.kernel.lock().unwrap().refused = vec![(6, 3), (5, 4)];
    bench.stack.count_refusals();
    assert_eq!(policy.0.lock().unwrap().refused, [(6, 3), (5, 4)]);
    assert_eq!(bench.stack.status().listeners.get("refused"), Some(7));
    let halves = bench.stack.connections()[0].halves.unwrap();
    assert_eq!(halves.refused, COOKIE);

    // Its socket still listens. Some process may have it, or the service may be about to end.
    listener.close();
    eventually("the SYNs are the kernel's again", || bench.kernel.lock().unwrap().accelerated.is_empty());
    assert_eq!(in_force().len(), 1);
    bench.kernel.lock().unwrap().closed = true;
    eventually("the rules have ended", || in_force().is_empty());
}

#[test]
fn without_a_filter_a_listener_for_accelerated_connections_only_is_refused() {
    let policy = Rules::default();
    let bench = Bench::under(Box::new(policy.clone()));
    let app = App::new(&bench.stack, small(1));
    policy.0.lock().unwrap().rules = PeerRules { only_accelerated: true, ..PeerRules::nobody(5) };
    assert_eq!(bench.try_listen(&app, US, 8).err(), Some(-libc::EACCES));
    assert!(bench.kernel.lock().unwrap().accelerated.is_empty());
    policy.0.lock().unwrap().rules = PeerRules::nobody(5);
    let listener = bench.listen(&app);
    assert_eq!(status_of(&app), 0);
    listener.close();
}
