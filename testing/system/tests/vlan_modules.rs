//! Modules and VLANs: where a module sees a tag, and what `vlan.bpf.c` makes of it.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::module::{asks, count, json, module, object};
use towpath_system_tests::namespace::{CLIENT, SERVER};
use towpath_system_tests::{Lab, Program, Scratch, Service, require_program, until};

/// Counts frames without a tag in one place, and those with one in the place before.
const TAGS: &str = "
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 2); __type(key, __u32); __type(value, __u64); } seen
    SEC(\".maps\");
SEC(\"xdp\") int tags(struct xdp_md *ctx)
{
    __u8 *frame = (void *)(long)ctx->data;
    if (frame + 14 > (__u8 *)(long)ctx->data_end) return XDP_ABORTED;
    __u32 place = frame[12] != 0x81;
    __u64 *frames = bpf_map_lookup_elem(&seen, &place);
    if (frames) __sync_fetch_and_add(frames, 1);
    return XDP_PASS;
}";

/// Frames with a tag and without one that a module has had.
fn seen(service: &Service, name: &str) -> [u64; 2] {
    let seen = json(service, &format!("maps {name} seen dump"));
    [0, 1].map(|place| seen["elements"][place]["numbers"][0].as_u64().unwrap())
}

const SERVE: &str = "
import socket, threading
def talk(c):
    while c.recv(100): c.sendall(b'answer')
l = socket.create_server(('', 7000)); print('ready', flush=True)
while True: threading.Thread(target=talk, args=(l.accept()[0],), daemon=True).start()";

/// Both ends are services with this VLAN, because this machine's kernel may lack VLAN devices. Their neighbours are
/// permanent, because the kernel's ARP requests have no tag.
struct Tagged {
    lab: Lab,
    server: Service,
    client: Service,
    files: Scratch,
}

impl Tagged {
    fn new() -> Self {
        let lab = Lab::new();
        for (here, there, address) in [(&lab.server, &lab.client, CLIENT), (&lab.client, &lab.server, SERVER)] {
            let shown = Program::line(&format!("ip -n {there} -br link show dev eth1")).run(10).ok();
            let mac = shown.split_whitespace().nth(2).expect("a MAC address");
            let line = format!("ip -n {here} neigh replace {address} lladdr {mac} dev eth1 nud permanent");
            Program::line(&line).run(10).ok();
        }
        let files = Scratch::new("vlan");
        let file = files.path("vlan.toml");
        std::fs::write(&file, "interface = [\"eth1\"]\nvlan = 7\nport = \"xdp\"\nadmit = [\"all\"]\n").unwrap();
        let server = Service::start(|program| lab.on_server(program.arg("--config").arg(&file)));
        let client = Service::start(|program| lab.on_client(program.arg("--config").arg(&file)));
        Self { lab, server, client, files }
    }
}

#[test]
fn modules_between_pop_and_push_see_no_tag_and_the_peer_sees_it() {
    let Tagged { lab, server, client, files } = Tagged::new();
    let mut listener = lab.on_server(server.accelerated("python3 -u -c").arg(SERVE)).start(files.path("listener"));
    listener.wait_for("ready", 30);
    let ask = || {
        let script = format!(
            "import socket
s = socket.create_connection(('{SERVER}', 7000), 20); s.sendall(b'question'); print(s.recv(100).decode())"
        );
        lab.on_client(client.accelerated("python3 -c").arg(script)).run(60).ok().trim().to_owned()
    };
    let (tags, vlan) = (object(&files, "tags", Some(TAGS)), object(&files, "vlan", None));
    let add = |name: &str, line: String| module(&server, &format!("add {name} {line}")).run(60).ok();
    for hook in ["ingress", "egress"] {
        add(&format!("{hook}-outside"), format!("{} --hook {hook} --priority 0", tags.display()));
    }
    assert_eq!(ask(), "answer");
    let tagged = |name: &str| {
        let [with, without] = seen(&server, name);
        assert!(with + without > 0, "{name} has seen nothing");
        (with > 0, without > 0)
    };
    assert_eq!([tagged("ingress-outside"), tagged("egress-outside")], [(true, false); 2], "frames have their tag");
    for hook in ["ingress", "egress"] {
        add(&format!("{hook}-pop"), format!("{} --program vlan_pop --hook {hook} --priority 1", vlan.display()));
        add(&format!("{hook}-inside"), format!("{} --hook {hook} --priority 2", tags.display()));
    }
    add("push", format!("{} --program vlan_push --hook egress --priority 3", vlan.display()));
    module(&server, "maps push tag set 0 7").run(30).ok();
    add("sent", format!("{} --hook egress --priority 4", tags.display()));
    assert_eq!(ask(), "answer", "the stack takes segments whose tag is gone, and the peer takes those with a new one");
    assert_eq!([tagged("ingress-inside"), tagged("egress-inside")], [(false, true); 2]);
    assert_eq!(tagged("sent"), (true, false));
    // Without the tag the frames are not of the peer's VLAN.
    module(&server, "maps push tag set 0 0").run(30).ok();
    let script = format!("import socket; socket.create_connection(('{SERVER}', 7000), 3)");
    let unanswered = lab.on_client(client.accelerated("python3 -c").arg(script)).run(60);
    assert!(unanswered.err.contains("TimeoutError"), "{}", unanswered.err);
}

/// The proxy's peers are programs of the other service.
#[test]
fn connections_of_a_vlan_are_spliced() {
    let Tagged { lab, server: service, client: other, files } = Tagged::new();
    let splice = object(&files, "splice", None);
    module(&service, &format!("add splice {}", splice.display())).run(60).ok();
    require_program("gcc", "gcc");
    let (source, program) = ("../../crates/preload/examples/splice-proxy.c", files.path("proxy"));
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    Program::line("gcc -O1 -o").arg(&program).arg(source).run(60).ok();
    let mut listener = lab.on_client(other.accelerated("python3 -u -c").arg(SERVE)).start(files.path("listener"));
    listener.wait_for("ready", 30);
    let proxy = lab.on_server(service.accelerated(&format!("{} 7001 {CLIENT} 7000", program.display())));
    let mut proxy = proxy.start(files.path("proxy.log"));
    proxy.wait_for("ready", 60);
    let script = format!(
        "import socket, sys, os, time
s = socket.create_connection(('{SERVER}', 7001), 20); s.settimeout(60)
def ask(): s.sendall(b'question'); assert s.recv(100) == b'answer'
ask(); print('asked', flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
for n in range(1000): ask()
s.shutdown(1); assert s.recv(1) == b''; print('whole', flush=True)"
    );
    let go = files.path("go");
    let client = lab.on_client(other.accelerated("python3 -u -c").arg(script).arg(&go));
    let mut client = client.start(files.path("client"));
    client.wait_for("asked", 60);
    proxy.wait_for("spliced: 1\n", 60);
    std::fs::write(&go, "").unwrap();
    client.wait_for("whole", 60);
    let [tx, redirected] = ["tx", "redirect"].map(|of| count(&service, "splice", of));
    assert!(tx + redirected > 2000, "{tx} {redirected}");
}

/// A segment of a connection, sent again with a tag: it is of another network, although all else is the same.
#[test]
fn a_frame_with_a_tag_is_no_frame_of_an_interface_without_a_vlan() {
    for port in ["packet", "xdp"] {
        let lab = Lab::new();
        let service = Service::on_interface_by(&lab, port);
        let server = lab.on_server(service.accelerated("python3 -u -c").arg(SERVE));
        let mut server = server.start(service.scratch.path("server"));
        server.wait_for("ready", 30);
        let tags = object(&service.scratch, "tags", Some(TAGS));
        module(&service, &format!("add tags {}", tags.display())).run(60).ok();
        until("a connection over the stack", 60, || asks(&lab, 7000) == "answer" && seen(&service, "tags")[1] > 2);
        let script = format!(
            "import socket
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)); raw.bind(('eth1', 0)); raw.settimeout(20)
s = socket.create_connection(('{SERVER}', 7000), 20); s.sendall(b'question'); assert s.recv(100) == b'answer'
while True:
    f = raw.recv(2000)
    if f[36:38] == (7000).to_bytes(2, 'big') and b'question' in f: break
for n in range(50): raw.send(f[:12] + bytes([0x81, 0, 0, 7]) + f[12:])
s.sendall(b'question'); assert s.recv(100) == b'answer'
print('sent')"
        );
        assert_eq!(lab.on_client(Program::line("python3 -c").arg(script)).run(60).ok().trim(), "sent");
        let [with, without] = seen(&service, "tags");
        assert!(with == 0 && without > 5, "{port}: {with} {without}");
    }
}
