//! Clients of two network namespaces. The stack joins them if the service has the proof that it may.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use towpath_contract_tests::app::{App, Sock, eventually, small};
use towpath_fast::{FastStack, FastStackConfig, KernelListener, Network};
use towpath_ports::Port;
use towpath_ports::memory::Loopback;
use towpath_ring::address;
use towpath_ring::command::{Command, MAY_JOIN, NOT_OURS, join_at, not_ours, op};
use towpath_runtime::{
    AdmissionPolicy, ClientId, ClientNamespace, Exceeded, JoinProof, Limit, ListenerProof, OrphanLimits, Proof,
    Reservation, Stack, Verdict,
};
use towpath_tcp::flow::FourTuple;
use towpath_tcp::slow::{Route, SlowConfig, Steered};

const US: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const THEM: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const COOKIE: u64 = 4711;
/// The namespace that the stack serves, and that of the others.
const OURS: u64 = 7;
const THEIRS: u64 = 8;
/// The device by which they come.
const DEVICE: u32 = 3;

/// The kernel has one listener on port 80, which gets only what comes by the device.
struct OneListener;

impl Network for OneListener {
    fn route(&mut self, _: IpAddr, _: Option<IpAddr>) -> Route {
        Route::NotOurs
    }
    fn is_local(&self, addr: IpAddr) -> bool {
        addr == US || addr.is_loopback()
    }
    fn steer(&mut self, _: &FourTuple, _: Steered) {}
    fn steer_listener(&mut self, _: IpAddr, _: u16, _: bool) {}
    fn shares_ports_with_kernel(&self) -> bool {
        true
    }
    fn listens_in_kernel(&self) -> bool {
        true
    }
    fn namespace(&self) -> Option<u64> {
        Some(OURS)
    }
    fn take_syns(&mut self, _: u64, _: bool) -> io::Result<()> {
        Ok(())
    }
    fn is_listening(&mut self, _: u64, _: IpAddr, _: u16) -> bool {
        true
    }
    fn listener_by(&mut self, tuple: &FourTuple, interface: u32) -> KernelListener {
        let is_it = (tuple.remote, tuple.remote_port, interface) == (US, 80, DEVICE);
        if is_it { KernelListener::Cookie(COOKIE) } else { KernelListener::None }
    }
    fn changed(&mut self) -> bool {
        false
    }
}

/// Lets clients ask stack 5 for everything at port 80, and refuses peers from port 6666. All have a limit of this rate.
struct Rules {
    rate: u64,
}

impl AdmissionPolicy for Rules {
    fn connect(&mut self, _: ClientId, _: SocketAddr) -> Verdict {
        Verdict::Allow(0)
    }
    fn joins_to(&mut self, _: ClientId, listener: SocketAddr) -> Option<u8> {
        (listener.port() == 80).then_some(5)
    }
    fn listen(&mut self, _: ClientId, _: SocketAddr, _: bool) -> Verdict {
        Verdict::Allow(0)
    }
    fn accept(&mut self, _: ClientId, _: SocketAddr, remote: SocketAddr) -> Verdict {
        if remote.port() == 6666 { Verdict::Refuse(libc::ECONNREFUSED) } else { Verdict::Allow(0) }
    }
    fn limit(&mut self, _: ClientId) -> Option<Limit> {
        Some(Limit { id: 1, number: 1, weight: 1, rate: self.rate, connections: 0, new_per_s: 0 })
    }
    fn exceeded(&mut self, _: ClientId, _: &Limit, _: Exceeded) {}
}

fn stack(direct: bool) -> FastStack {
    limited(direct, 0)
}

fn limited(direct: bool, rate: u64) -> FastStack {
    let config = FastStackConfig {
        flow_groups: 1,
        max_flows: 64,
        spin_us: 0,
        delayed_ack_us: 1000,
        cpus: Vec::new(),
        direct,
        orphans: OrphanLimits::default(),
        slow: SlowConfig::default(),
    };
    let ports: Vec<Box<dyn Port>> = vec![Box::new(Loopback::new())];
    FastStack::start_guarded(config, vec![ports], Box::new(OneListener), Box::new(Rules { rate })).unwrap()
}

/// Shows the proof for the next command of the first free slot.
fn show(stack: &FastStack, app: &Arc<App>, proof: Proof) {
    let slot = app.next_slot();
    let seq = app.region.command(slot).read().0 + 1;
    let held = File::open("/dev/null").unwrap().into();
    stack.reserve(app.id, slot.raw(), seq, Reservation { port: None, held, proof });
}

fn listen(stack: &FastStack, app: &Arc<App>) -> Sock {
    show(stack, app, Proof::Listener(ListenerProof { cookie: COOKIE, addr: US, port: 80, dual: false }));
    app.listen(US, 80, 8).unwrap()
}

fn proof() -> JoinProof {
    JoinProof { from: THEIRS, local: (THEM, 4000).into(), listener: (US, 80).into(), interface: DEVICE }
}

fn join(stack: &FastStack, app: &Arc<App>, proof: JoinProof, to: (IpAddr, u16)) -> Result<Sock, i32> {
    show(stack, app, Proof::Joined(proof));
    app.post(&command(op::JOIN, to))
}

fn command(op: u32, (remote, port): (IpAddr, u16)) -> Command {
    let IpAddr::V4(remote) = remote else { panic!() };
    let remote_addr = remote.to_ipv6_mapped();
    Command {
        op,
        remote_addr,
        remote_port: port.into(),
        local_addr: Ipv4Addr::UNSPECIFIED.to_ipv6_mapped(),
        ..Command::default()
    }
}

fn elsewhere(stack: &FastStack) -> Arc<App> {
    App::of_namespace(stack, small(1), ClientNamespace::new(Some(THEIRS)))
}

#[test]
fn a_proof_joins_a_client_of_another_namespace_to_the_listener_that_the_kernel_chooses() {
    let stack = stack(true);
    let (server, client) = (App::of_namespace(&stack, small(1), ClientNamespace::new(Some(OURS))), elsewhere(&stack));
    let mut listener = listen(&stack, &server);
    let joined = join(&stack, &client, proof(), (US, 80)).unwrap();
    let accepted = listener.accept();
    let shown = |app: &Arc<App>, sock: &Sock| {
        let info = app.region.info(sock.slot);
        (address::load(&info.local_addr).to_canonical(), address::load(&info.remote_addr).to_canonical())
    };
    assert_eq!((shown(&client, &joined), shown(&server, &accepted)), ((THEM, US), (US, THEM)));
    assert_eq!(stack.connections().iter().filter(|one| one.direct).count(), 2);
    // The same tuple has a connection now.
    assert_eq!(join(&stack, &client, proof(), (US, 80)).err(), Some(NOT_OURS + not_ours::NO_LISTENER as i32));
    drop((joined, accepted));
}

#[test]
fn without_everything_that_it_takes_nothing_is_joined() {
    let no = |why: u32| Some(NOT_OURS + why as i32);
    let stack_ = stack(true);
    let server = App::of_namespace(&stack_, small(1), ClientNamespace::new(Some(OURS)));
    let client = elsewhere(&stack_);
    let stack = &stack_;
    assert_eq!(join(stack, &client, proof(), (US, 80)).err(), no(not_ours::NO_LISTENER), "nobody listens");
    let _listener = listen(stack, &server);
    let other = |change: fn(&mut JoinProof)| {
        let mut proof = proof();
        change(&mut proof);
        let to = (proof.listener.ip(), proof.listener.port());
        join(stack, &client, proof, to).err()
    };
    assert_eq!(other(|proof| proof.interface = 1), no(not_ours::NO_LISTENER), "not the one for that device");
    assert_eq!(other(|proof| proof.listener.set_port(81)), no(not_ours::NO_LISTENER));
    assert_eq!(other(|proof| proof.listener.set_ip(Ipv4Addr::LOCALHOST.into())), no(not_ours::NO_LISTENER));
    assert_eq!(other(|proof| proof.listener.set_ip(THEM)), no(not_ours::NO_LISTENER), "nobody's address here");
    assert_eq!(other(|proof| proof.local.set_port(6666)), no(not_ours::NO_LISTENER), "a peer that is refused");
    assert_eq!(other(|proof| proof.from = 9), no(not_ours::NAMESPACE), "a socket of a third namespace");
    // Proofs for other ports and commands.
    assert_eq!(join(stack, &client, proof(), (US, 81)).err(), Some(-libc::EACCES));
    show(stack, &client, Proof::Joined(proof()));
    let bound = Command { local_port: 4000, ..command(op::CONNECT, (US, 80)) };
    assert_eq!(client.post(&bound).err(), Some(-libc::EACCES));
    show(stack, &client, Proof::Refused(NOT_OURS + not_ours::POLICY as i32));
    assert_eq!(client.post(&command(op::JOIN, (US, 80))).err(), no(not_ours::POLICY));
    assert_eq!(client.post(&command(op::CONNECT, (US, 80))).err(), no(not_ours::NAMESPACE), "it may join, no more");
    // Whoever has processes of two namespaces has none.
    let namespace = ClientNamespace::new(Some(THEIRS));
    let mixed = App::of_namespace(stack, small(1), namespace.clone());
    namespace.join(Some(OURS));
    assert_eq!(join(stack, &mixed, proof(), (US, 80)).err(), no(not_ours::NAMESPACE));
    assert!(join(stack, &client, proof(), (US, 80)).is_ok(), "all that was refused is not for another reason");
}

#[test]
fn a_service_that_joins_nobody_directly_joins_nobody_of_another_namespace() {
    let stack = stack(false);
    let (server, client) = (App::of_namespace(&stack, small(1), ClientNamespace::new(Some(OURS))), elsewhere(&stack));
    let _listener = listen(&stack, &server);
    let refused = join(&stack, &client, proof(), (US, 80)).err();
    assert_eq!(refused, Some(NOT_OURS + not_ours::NO_LISTENER as i32));
    let home = App::of_namespace(&stack, small(1), ClientNamespace::new(Some(OURS)));
    let connect = Command { flags: MAY_JOIN, ..command(op::CONNECT, (THEM, 80)) };
    assert_eq!(home.post(&connect).err(), Some(NOT_OURS + not_ours::ELSEWHERE as i32));
}

#[test]
fn a_connect_is_sent_to_the_stack_that_may_join_it_if_the_library_says_that_it_can() {
    let stack = stack(true);
    let app = App::of_namespace(&stack, small(1), ClientNamespace::new(Some(OURS)));
    let ask = |to: (IpAddr, u16), flags: u32| app.post(&Command { flags, ..command(op::CONNECT, to) }).err();
    assert_eq!(ask((THEM, 80), MAY_JOIN), Some(join_at(5)));
    assert_eq!(ask((THEM, 80), 0), Some(NOT_OURS + not_ours::ELSEWHERE as i32), "it has been tried");
    assert_eq!(ask((THEM, 81), MAY_JOIN), Some(NOT_OURS + not_ours::ELSEWHERE as i32), "no rule");
    assert_eq!(ask((US, 80), MAY_JOIN), Some(NOT_OURS + not_ours::NO_LISTENER as i32), "an address of its own");
    let bound = Command { local_addr: address_of(US), flags: MAY_JOIN, ..command(op::CONNECT, (THEM, 80)) };
    assert_eq!(app.post(&bound).err(), Some(NOT_OURS + not_ours::ELSEWHERE as i32), "a bound socket stays");
    let slow = limited(true, 1_000_000);
    let limited = App::of_namespace(&slow, small(1), ClientNamespace::new(Some(OURS)));
    let connect = Command { flags: MAY_JOIN, ..command(op::CONNECT, (THEM, 80)) };
    let stays = Some(NOT_OURS + not_ours::ELSEWHERE as i32);
    slow.policy_changed();
    eventually("the limit is this stack's to keep", || limited.post(&connect).err() == stays);
    eventually("it is counted", || stack.status().not_ours[not_ours::JOIN as usize] == 1);
}

fn address_of(address: IpAddr) -> std::net::Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}
