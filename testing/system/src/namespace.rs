//! Network namespaces of tests: one of the test's own, and two that a veth pair joins. These have `eth1` on each side, the
//! server at 10.77.0.1, the client at 10.77.0.2.

use crate::program::Program;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Gives the test a network namespace of its own, with a loopback device, unless it has one. Its ports are free there,
/// whatever runs beside it.
///
/// Only this thread enters it, and the threads and programs that it starts from now on. [`crate::Service`] calls this. A
/// test calls it itself before other sockets that its programs must reach. Of another user than root the test stays where it is.
pub fn own_network() {
    static FIRST: OnceLock<PathBuf> = OnceLock::new();
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let here = std::fs::read_link("/proc/thread-self/ns/net").expect("the network namespace");
    if FIRST.get_or_init(|| here.clone()) != &here {
        return;
    }
    crate::require_program("ip", "iproute2");
    // SAFETY: only the network namespace of this thread changes, and no Rust code depends on it.
    let made = unsafe { unshare_unsafe(UnshareFlags::NEWNET) };
    made.expect("a network namespace of the test's own");
    run("ip link set lo up");
}

/// Both namespaces. They are deleted with it.
pub struct Lab {
    /// Name of the namespace that Towpath serves.
    pub server: String,
    /// Name of the peer's namespace, plain Linux.
    pub client: String,
}

/// Address of the server side.
pub const SERVER: &str = "10.77.0.1";
/// Address of the client side.
pub const CLIENT: &str = "10.77.0.2";
/// Addresses of both sides after [`Lab::join_again`].
pub const SERVER_TOO: &str = "10.78.0.1";
/// See [`SERVER_TOO`].
pub const CLIENT_TOO: &str = "10.78.0.2";
/// IPv6 address of the server side, after [`Lab::add_ipv6`].
pub const SERVER6: &str = "fd77::1";
/// IPv6 address of the client side, after [`Lab::add_ipv6`].
pub const CLIENT6: &str = "fd77::2";
/// The same after [`Lab::add_ipv6_too`].
pub const SERVER6_TOO: &str = "fd78::1";
/// See [`SERVER6_TOO`].
pub const CLIENT6_TOO: &str = "fd78::2";

impl Lab {
    /// Makes the namespaces, the veth pair and the addresses, with cubic as congestion control.
    pub fn new() -> Self {
        Self::with_queues(1)
    }
    /// [`Lab::new`] with this many queues on both ends of the veth.
    pub fn with_queues(queues: u32) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        crate::require_root();
        crate::require_program("ip", "iproute2");
        let id = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let lab = Self { server: format!("tps-{id}"), client: format!("tpc-{id}") };
        let (server, client) = (&lab.server, &lab.client);
        run(&format!("ip netns add {server}"));
        run(&format!("ip netns add {client}"));
        for namespace in [server, client] {
            run(&format!("ip -n {namespace} link set lo up"));
        }
        lab.join(queues);
        lab
    }
    /// Makes the veth pair and its addresses, once more after its end.
    pub fn join(&self, queues: u32) {
        self.join_by("eth1", [SERVER, CLIENT], "10.77.0.0/24", queues);
    }
    /// A second veth pair, `eth2` on each side.
    pub fn join_again(&self) {
        self.join_by("eth2", [SERVER_TOO, CLIENT_TOO], "10.78.0.0/24", 1);
    }
    /// Gives both sides of that an IPv6 address.
    pub fn add_ipv6_too(&self) {
        self.add_ipv6_by("eth2", [SERVER6_TOO, CLIENT6_TOO], "fd78::/64");
    }
    fn join_by(&self, name: &str, addresses: [&str; 2], network: &str, queues: u32) {
        let (server, client) = (&self.server, &self.client);
        let queues = format!("numrxqueues {queues} numtxqueues {queues}");
        run(&format!("ip link add {name} netns {server} {queues} type veth peer name {name} netns {client} {queues}"));
        for (namespace, address) in [server, client].into_iter().zip(addresses) {
            run(&format!("ip -n {namespace} addr add {address}/24 dev {name}"));
            run(&format!("ip -n {namespace} link set {name} up"));
            // This machine's default may be BBR, whose pacing would dominate. A route can choose cubic without a change
            // to the host.
            run(&format!("ip -n {namespace} route replace {network} dev {name} src {address} congctl cubic"));
        }
    }
    /// Gives both sides an IPv6 address.
    pub fn add_ipv6(&self) {
        self.add_ipv6_by("eth1", [SERVER6, CLIENT6], "fd77::/64");
    }
    fn add_ipv6_by(&self, name: &str, addresses: [&str; 2], network: &str) {
        for (namespace, address) in [&self.server, &self.client].into_iter().zip(addresses) {
            run(&format!("ip -n {namespace} addr add {address}/64 dev {name} nodad"));
            // Of the kernel's own metric, so that it takes the place of the kernel's route.
            let route = format!("{network} dev {name} metric 256 src {address} congctl cubic");
            run(&format!("ip -n {namespace} route replace {route}"));
        }
    }
    /// The program, run in the server's namespace.
    pub fn on_server(&self, program: Program) -> Program {
        program.under(&["ip", "netns", "exec", &self.server])
    }
    /// The program, run in the client's namespace.
    pub fn on_client(&self, program: Program) -> Program {
        program.under(&["ip", "netns", "exec", &self.client])
    }
    /// Is anything of a service on the server's interfaces: an XDP program, or a packet socket that receives? The program on
    /// the ingress hook goes with the sockets' holder, and `ip` does not show it.
    pub fn is_served(&self) -> bool {
        let links = self.on_server(Program::line("ip -d link show")).run(10).ok();
        let sockets = self.on_server(Program::line("cat /proc/net/packet")).run(10).ok();
        links.contains("xdp") || sockets.lines().any(|line| line.split_whitespace().nth(3) == Some("0003"))
    }
    /// Makes the server's kernel drop all TCP on eth1 but first SYNs, so that only another stack can carry it. Listening
    /// sockets see first SYNs, and name the listener; the kernel's answers to them are dropped. First SYNs of the stack
    /// pass the kernel's rules, too.
    pub fn drop_kernel_tcp(&self) {
        crate::require_program("nft", "nftables");
        let rules = "add table inet proof;
            add chain inet proof in { type filter hook input priority -300; };
            add rule inet proof in iifname eth1 tcp flags & (syn | ack | rst | fin) == syn accept;
            add rule inet proof in iifname eth1 meta l4proto tcp drop;
            add chain inet proof out { type filter hook output priority -300; };
            add rule inet proof out oifname eth1 tcp flags & (syn | ack | rst | fin) == syn accept;
            add rule inet proof out oifname eth1 meta l4proto tcp drop;";
        self.on_server(Program::new(&["nft", rules])).run(10).ok();
    }
}

/// A namespace behind the client's, which routes to it over a path of 1400 bytes, and does not say so before a packet comes.
pub struct Behind(String);

/// Its address over IPv4 and over IPv6.
pub const BEHIND: &str = "10.79.0.2";
/// See [`BEHIND`].
pub const BEHIND6: &str = "fd79::2";

impl Behind {
    /// Behind this laboratory's client, which has IPv6 addresses.
    pub fn new(lab: &Lab) -> Self {
        let (server, client, name) = (&lab.server, &lab.client, lab.client.replace("tpc", "tpb"));
        run(&format!("ip netns add {name}"));
        run(&format!("ip link add eth3 netns {client} type veth peer name eth1 netns {name}"));
        for (address, of_router, via, all) in
            [(BEHIND, "10.79.0.1", CLIENT, "10.79.0.0/24"), (BEHIND6, "fd79::1", CLIENT6, "fd79::/64")]
        {
            // Over IPv6 with the kernel's own metric, so that it takes the place of the kernel's route.
            let (bits, nodad, metric) = if all.contains(':') { (64, "nodad", "metric 256") } else { (24, "", "") };
            run(&format!("ip -n {client} addr add {of_router}/{bits} dev eth3 {nodad}"));
            run(&format!("ip -n {name} addr add {address}/{bits} dev eth1 {nodad}"));
            run(&format!("ip -n {client} link set eth3 up"));
            run(&format!("ip -n {name} link set eth1 up"));
            run(&format!("ip -n {client} route replace {all} dev eth3 {metric} mtu lock 1400"));
            run(&format!("ip -n {name} route replace default via {of_router} dev eth1"));
            run(&format!("ip -n {server} route replace {all} via {via} dev eth1"));
        }
        for setting in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            lab.on_client(Program::line(&format!("sysctl -q -w {setting}=1"))).run(10).ok();
        }
        Self(name)
    }
    /// The program, run there.
    pub fn on_it(&self, program: Program) -> Program {
        program.under(&["ip", "netns", "exec", &self.0])
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        let _ = Program::line(&format!("ip netns del {}", self.0)).run(10);
    }
}

impl Default for Lab {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for namespace in [&self.server, &self.client] {
            let _ = Program::line(&format!("ip netns del {namespace}")).run(10);
        }
    }
}

fn run(line: &str) {
    Program::line(line).run(10).ok();
}
