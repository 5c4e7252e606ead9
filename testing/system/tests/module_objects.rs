//! Modules that include `vmlinux.h`, and modules that send frames over another interface.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::module::{asks, count, json, module, object};
use towpath_system_tests::{Lab, Program, Service, until};

/// Sends segments to port 7001 over the interface of the map's first element. Without one they pass. Another map has the
/// interface that they came from.
const FORWARD: &str = "
// KERNEL_TYPES
struct { __uint(type, BPF_MAP_TYPE_DEVMAP); __uint(max_entries, 2); __uint(key_size, 4); __uint(value_size, 4); } ports
    SEC(\".maps\");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, __u32); __type(value, __u32); } came
    SEC(\".maps\");
SEC(\"xdp\") int forward(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    struct iphdr *ip = (void *)(eth + 1);
    struct tcphdr *tcp = (void *)(ip + 1);
    __u32 zero = 0, *from = bpf_map_lookup_elem(&came, &zero);
    if ((void *)(tcp + 1) > (void *)(long)ctx->data_end || !from) return XDP_PASS;
    if (ip->ihl != 5 || ip->protocol != IPPROTO_TCP || tcp->dest != __builtin_bswap16(7001)) return XDP_PASS;
    *from = ctx->ingress_ifindex;
    return bpf_redirect_map(&ports, 0, XDP_PASS);
}";

/// Reads a field that no kernel has, without asking.
const MISSING: &str = "
// KERNEL_TYPES
struct iphdr___other { __u32 no_such_field; } __attribute__((preserve_access_index));
SEC(\"xdp\") int missing(struct xdp_md *ctx)
{
    struct iphdr___other *ip = (void *)(long)ctx->data;
    return (void *)ip + 64 <= (void *)(long)ctx->data_end && ip->no_such_field ? XDP_DROP : XDP_PASS;
}";

/// Answers on both ports.
const SERVE: &str = "
import socket, threading
def talk(c):
    while c.recv(100): c.sendall(b'answer')
def serve(l):
    while True: threading.Thread(target=talk, args=(l.accept()[0],), daemon=True).start()
for port in (7000, 7001): threading.Thread(target=serve, args=(socket.create_server(('', port)),)).start()
print('ready', flush=True)";

/// The number of a server's interface.
fn index(lab: &Lab, name: &str) -> String {
    lab.on_server(Program::line(&format!("cat /sys/class/net/{name}/ifindex"))).run(10).ok().trim().to_owned()
}

#[test]
fn a_module_sends_frames_over_another_interface_that_a_devmap_names() {
    let lab = Lab::new();
    lab.join_again();
    let service = Service::start(|program| {
        let words = ["--interface", "eth1", "--interface", "eth2", "--admit", "all"];
        lab.on_server(words.into_iter().fold(program, Program::arg))
    });
    let server = lab.on_server(service.accelerated("python3 -u -c").arg(SERVE));
    let mut server = server.start(service.scratch.path("server.log"));
    server.wait_for("ready", 30);
    let forward = object(&service.scratch, "forward", Some(FORWARD));
    let added = json(&service, &format!("add forward {}", forward.display()));
    assert_eq!(added["modules"][0]["compiled"], true, "{added}");
    // Whatever comes out of eth2 for port 7001.
    let hear = "import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)); s.bind(('eth2', 0)); print('hears', flush=True)
while True:
    f, a = s.recvfrom(2000)
    if a[2] != 4 and f[36:38] == (7001).to_bytes(2, 'big'): print('segment', len(f), flush=True)";
    let mut hears = lab.on_client(Program::line("python3 -u -c").arg(hear)).start(service.scratch.path("hear.log"));
    hears.wait_for("hears", 30);

    assert_eq!(asks(&lab, 7001), "answer", "no interface is in the map");
    assert_eq!(json(&service, "maps forward came dump")["elements"][0]["numbers"][0].to_string(), index(&lab, "eth1"));
    module(&service, &format!("maps forward ports set 0 {}", index(&lab, "eth2"))).run(30).ok();
    assert_eq!(asks(&lab, 7001), "nothing");
    hears.wait_for("segment", 30);
    assert_eq!(asks(&lab, 7000), "answer");
    let (sent, failed) = (count(&service, "forward", "redirect"), count(&service, "forward", "aborted"));
    assert!(sent > 0 && failed == 0, "{sent} {failed}");
    // An interface that is not the service's, back over its own, and none again.
    module(&service, "maps forward ports set 0 1").run(30).ok();
    assert_eq!(asks(&lab, 7001), "nothing");
    assert!(count(&service, "forward", "aborted") > 0);
    module(&service, "maps forward ports delete 0").run(30).ok();
    assert_eq!(asks(&lab, 7001), "answer");
    assert_eq!(json(&service, "maps forward ports dump")["elements"].as_array().unwrap().len(), 0);
}

#[test]
fn a_module_that_relies_on_what_this_kernel_has_not_is_refused_with_its_name() {
    let service = Service::embedded();
    let missing = object(&service.scratch, "missing", Some(MISSING));
    let refused = module(&service, &format!("add missing {}", missing.display())).run(60);
    assert_ne!(refused.code, 0);
    assert!(refused.err.contains("struct iphdr___other.no_such_field"), "{}", refused.err);
    until("the service to go on", 30, || module(&service, "list").run(30).code == 0);
}
