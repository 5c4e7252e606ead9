//! Routes and neighbours of a served interface, in two namespaces joined by a veth. Needs root and iproute2.
#![allow(clippy::unwrap_used, missing_docs)]

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use towpath_broker::{Change, Privileges};
use towpath_fast::Network;
use towpath_ports::attachment::Description;
use towpath_ports::listening::Listening;
use towpath_service::config::{Config, FirewallSetting};
use towpath_service::stack_factory::NetworkWatcher;
use towpath_tcp::flow::{FourTuple, PortId};
use towpath_tcp::slow::{Route, Steered};
use towpath_towpathd::health::Health;
use towpath_towpathd::network::held_ports::HeldPorts;
use towpath_towpathd::network::netlink::Netlink;
use towpath_towpathd::network::{HostNetwork, Steer, Watcher};
use towpath_towpathd::privileges::ServicePrivileges;
use towpath_towpathd::served::Interface;

/// The MTU of AF_XDP with its largest frames.
const PORT_MTU: u32 = 3826;
const PEER6: &str = "fd79::2";
const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 79, 0, 2));

/// The names of the namespaces: ours, and our peers'. Another run of this test may have some at the same time.
fn names() -> [String; 2] {
    ["a", "b"].map(|side| format!("service-test-{side}-{}", std::process::id()))
}

/// The namespaces. Dropping it deletes them.
struct Lab;

impl Lab {
    fn new() -> Self {
        assert!(rustix::process::geteuid().is_root(), "this test makes network namespaces: run `sudo make test`");
        let (lab, [ours, peers]) = (Lab, names());
        for line in [
            format!("netns add {ours}"),
            format!("netns add {peers}"),
            format!("link add eth1 netns {ours} address 02:00:00:00:00:01 type veth peer name eth1 netns {peers}"),
            format!("-n {peers} link set eth1 address 02:00:00:00:00:02 up"),
            format!("-n {peers} addr add {PEER}/24 dev eth1"),
            format!("-n {ours} addr add 10.79.0.1/24 dev eth1"),
            format!("-n {peers} addr add {PEER6}/64 dev eth1 nodad"),
            format!("-n {ours} addr add fd79::1/64 dev eth1 nodad"),
            format!("-n {ours} link set lo up"),
            format!("-n {ours} link set eth1 up"),
            format!("-n {ours} route add 10.80.0.0/16 via {PEER} mtu 1400"),
        ] {
            ip(&line);
        }
        lab
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for namespace in names() {
            let _ = Command::new("ip").args(["netns", "del", &namespace]).status();
        }
    }
}

fn ip(line: &str) -> String {
    let output = Command::new("ip").args(line.split_whitespace()).output().expect("iproute2");
    assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Moves this thread, and those that it starts, into our namespace.
fn enter() {
    let [ours, _] = names();
    let file = std::fs::File::open(format!("/run/netns/{ours}")).unwrap();
    use rustix::fd::AsFd;
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
}

#[derive(Clone, Default)]
struct Noted(Arc<Mutex<Vec<String>>>);

impl Steer for Noted {
    fn flow(&mut self, tuple: &FourTuple, steered: Steered) {
        self.0.lock().unwrap().push(format!("{}:{} {steered:?}", tuple.remote, tuple.remote_port));
    }
    fn listening(&mut self) -> Option<&mut Listening> {
        None
    }
}

/// Asks until the neighbour is resolved or given up.
fn settled(network: &mut HostNetwork, remote: IpAddr) -> Route {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let route = network.route(remote, None);
        if route != Route::Resolving {
            return route;
        }
        assert!(Instant::now() < end, "{remote} is being resolved for ever");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn routes_neighbours_and_changes() {
    let _lab = Lab::new();
    std::thread::spawn(in_our_namespace).join().unwrap();
}

fn in_our_namespace() {
    enter();
    let [ours, _] = names();
    let steered = Noted::default();
    // The veth is the second interface of a fresh namespace.
    let index: u32 = ip("-o link show dev eth1").split(':').next().unwrap().trim().parse().unwrap();
    let ports = HeldPorts::hold(60_000..=60_009).unwrap();
    let (steer, firewall) = (Some(Box::new(steered.clone()) as Box<dyn Steer>), FirewallSetting::Respect);
    let interface = Description::decode(&format!("{index} 0 0 0 0 1 0 0 0 1500")).unwrap();
    let health = Arc::new(Health::new("eth1", None, None, &interface, 1));
    let eth1 = Interface { number: 0, index, vlan: None, mtu: PORT_MTU, port: PortId(1), ports_each: 1, health };
    let mut network = HostNetwork::serving(65_535, &[eth1], steer, ports, firewall).unwrap();
    let (stop, known) = (towpath_ring::wake::doorbell().unwrap(), network.known());
    let watcher = {
        use rustix::fd::AsFd;
        let stop = stop.try_clone().unwrap();
        let mut watcher = Watcher::new(known, Vec::new()).unwrap();
        std::thread::spawn(move || watcher.run(stop.as_fd(), &|| ()))
    };

    // A neighbour on the link: the kernel resolves it and keeps it resolved.
    let route = settled(&mut network, PEER);
    let Route::Via { link, source, mtu } = route else { panic!("{route:?}") };
    assert_eq!((link.port, link.source, link.destination), (PortId(1), [2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]));
    assert_eq!((source, mtu), (IpAddr::V4(Ipv4Addr::new(10, 79, 0, 1)), 1500));
    assert!(ip(&format!("-n {ours} neigh show {PEER} dev eth1")).contains("managed"));

    // The same over IPv6.
    let peer6: IpAddr = PEER6.parse().unwrap();
    let Route::Via { link, source: source6, mtu } = settled(&mut network, peer6) else { panic!("no way to {peer6}") };
    assert_eq!((link.destination, source6, mtu), ([2, 0, 0, 0, 0, 2], "fd79::1".parse().unwrap(), 1500));
    assert!(ip(&format!("-n {ours} neigh show {PEER6} dev eth1")).contains("managed"));
    assert_eq!(settled(&mut network, "fd79::99".parse().unwrap()), Route::Unreachable(libc::EHOSTUNREACH));
    assert!(network.is_local(source6));

    // The operator's own entry stays as it is.
    let permanent = IpAddr::V4(Ipv4Addr::new(10, 79, 0, 50));
    let is_permanent = || ip(&format!("-n {ours} neigh show {permanent} dev eth1")).contains("PERMANENT");
    ip(&format!("-n {ours} neigh add {permanent} lladdr 02:00:00:00:00:50 dev eth1 nud permanent"));
    let Route::Via { link, .. } = settled(&mut network, permanent) else { panic!("no way to {permanent}") };
    assert_eq!(link.destination, [2, 0, 0, 0, 0, 0x50]);
    assert!(is_permanent(), "used");
    let mut netlink = Netlink::connect().unwrap();
    netlink.resolve(index, permanent).unwrap();
    netlink.manage(index, permanent, true).unwrap();
    netlink.manage(index, permanent, false).unwrap();
    assert!(is_permanent(), "by a fallen worker");

    // The MTU never exceeds the port's.
    ip(&format!("-n {ours} link set eth1 mtu 9000"));
    until("the port's limit", || matches!(network.route(PEER, None), Route::Via { mtu: 3826, .. }));
    ip(&format!("-n {ours} link set eth1 mtu 1500"));
    until("the interface's MTU", || matches!(network.route(PEER, None), Route::Via { mtu: 1500, .. }));

    // A gateway, with the route's MTU.
    let behind = IpAddr::V4(Ipv4Addr::new(10, 80, 3, 4));
    let Route::Via { link, mtu, .. } = settled(&mut network, behind) else { panic!("no way to {behind}") };
    assert_eq!((link.destination, mtu), ([2, 0, 0, 0, 0, 2], 1400));

    // No such neighbour: the errno of Linux, and a new question the next time.
    let absent = IpAddr::V4(Ipv4Addr::new(10, 79, 0, 99));
    assert_eq!(settled(&mut network, absent), Route::Unreachable(libc::EHOSTUNREACH));
    assert_eq!(network.route(absent, None), Route::Resolving);

    // Without a route, or with a source that is not ours, the connection is the kernel's.
    assert_eq!(network.route(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), None), Route::NotOurs);
    assert_eq!(network.route(PEER, Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9)))), Route::NotOurs);

    // The host's own addresses, also new ones.
    let new = IpAddr::V4(Ipv4Addr::new(10, 79, 0, 77));
    assert!(!network.is_local(new));
    while network.changed() {}
    ip(&format!("-n {ours} addr add {new}/32 dev eth1"));
    until("the new address is known", || network.is_local(new));
    assert!(network.changed());

    // A changed route is noticed although the old one was remembered.
    ip(&format!("-n {ours} route change 10.80.0.0/16 via {PEER} mtu 1300"));
    until("the new MTU is used", || matches!(network.route(behind, None), Route::Via { mtu: 1300, .. }));
    ip(&format!("-n {ours} route del 10.80.0.0/16"));
    until("the route is gone", || network.route(behind, None) == Route::NotOurs);

    // Listeners stay the kernel's.
    let tuple = FourTuple { local: source, local_port: 1, remote: PEER, remote_port: 2 };
    network.steer(&tuple, Steered::ButFirstSyns);
    network.steer(&tuple, Steered::No);
    assert_eq!(*steered.0.lock().unwrap(), ["10.79.0.2:2 ButFirstSyns", "10.79.0.2:2 No"]);
    assert!(network.listens_in_kernel());

    drop(network);
    assert!(!ip(&format!("-n {ours} neigh show {PEER} dev eth1")).contains("managed"), "restored");

    // A worker that dies restores nothing, so its broker does.
    let is_managed = || ip(&format!("-n {ours} neigh show {PEER} dev eth1")).contains("managed");
    let socket = Some("/nonexistent/a.sock".into());
    let config = Config { interface: vec!["eth1".into()], socket, ..Config::default() };
    let mut privileges = ServicePrivileges::new(&config);
    privileges.neighbour(index, PEER, Change::Manage).unwrap();
    assert!(is_managed());
    privileges.worker_ended(false);
    assert!(!is_managed(), "restored by the broker");
    assert!(Netlink::connect().unwrap().addresses().unwrap().contains(&new));
    use rustix::fd::AsFd;
    towpath_ring::wake::notify(stop.as_fd());
    watcher.join().unwrap().unwrap();
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < end, "not within 60 s: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
