//! `towpath module`: programs in the data path of a service, while unmodified programs use it.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use std::net::Ipv4Addr;
use towpath_system_tests::module::{PORTS, asks, count, counts, json, module, object};
use towpath_system_tests::namespace::{CLIENT, SERVER};
use towpath_system_tests::program::Running;
use towpath_system_tests::{Lab, Program, Service, bin, until};

/// A user other than root.
const OTHER: u32 = 23_451;

/// A server on ports 7000 and 7001 that answers, and one on 7002 that says what it has received.
const SERVE: &str = "
import socket, threading, hashlib
def talk(c):
    while c.recv(100): c.sendall(b'answer')
def take(c):
    h = hashlib.sha256()
    while True:
        b = c.recv(1 << 16)
        if not b: break
        h.update(b)
    c.sendall(h.hexdigest().encode()); c.close()
def serve(l, how):
    while True:
        c, _ = l.accept()
        threading.Thread(target=how, args=(c,)).start()
for port, how in ((7000, talk), (7001, talk), (7002, take)):
    threading.Thread(target=serve, args=(socket.create_server(('', port)), how)).start()
print('ready', flush=True)";

fn serve(lab: &Lab, service: &Service) -> Running {
    let program = lab.on_server(service.accelerated("python3 -u -c").arg(SERVE));
    let mut running = program.start(service.scratch.path("server.log"));
    running.wait_for("ready", 30);
    running
}

#[test]
fn a_firewall_drops_one_port_while_a_connection_on_another_goes_on() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let _server = serve(&lab, &service);
    let firewall = object(&service.scratch, "firewall", None);
    // A question every 20 ms on one connection, to which each answer must come.
    let talk = format!(
        "import socket, time
s = socket.create_connection(('{SERVER}', 7000), 10); print('talks', flush=True)
for i in range(100000):
    s.sendall(b'question'); assert s.recv(100) == b'answer'; print(i, flush=True); time.sleep(0.02)"
    );
    let mut talks = lab.on_client(Program::line("python3 -u -c").arg(talk)).start(service.scratch.path("talk.log"));
    talks.wait_for("talks", 30);

    let added = json(&service, &format!("add wall {}", firewall.display()));
    assert_eq!(added["modules"][0]["compiled"], true, "the verifier was not asked: {added}");
    assert_eq!(asks(&lab, 7001), "answer", "nothing is blocked yet");
    module(&service, "maps wall blocked_ports set 7001 1").run(30).ok();
    assert_eq!(asks(&lab, 7001), "nothing");
    assert_eq!(asks(&lab, 7000), "answer");
    // Who captures stands below the modules, which change frames in their place there, too.
    let capture = Program::new(&[bin("towpath")]).arg("capture").arg("--socket").arg(&service.socket);
    let file = service.scratch.path("wall.pcapng");
    let mut capture = capture.arg("-w").arg(&file).start(service.scratch.path("capture.log"));
    // The head of the file is written when the service captures.
    until("the capture", 30, || std::fs::metadata(&file).is_ok_and(|file| file.len() > 0));
    assert_eq!((asks(&lab, 7001), asks(&lab, 7000)), ("nothing".into(), "answer".into()));
    capture.signal(libc::SIGINT);
    capture.wait_end(30);
    let dropped = json(&service, "maps wall dropped dump");
    let numbers = dropped["elements"][0]["numbers"].as_array().unwrap();
    let by_port: u64 = numbers.iter().map(|number| number.as_u64().unwrap()).sum();
    assert!(by_port > 0 && by_port <= count(&service, "wall", "drop"), "{dropped}");
    module(&service, "maps wall blocked_ports delete 7001").run(30).ok();
    assert_eq!(asks(&lab, 7001), "answer");
    module(&service, "rm wall").run(30).ok();
    assert_eq!(json(&service, "list")["modules"].as_array().unwrap().len(), 0);
    assert!(talks.alive(), "{}", talks.output());
    let said = talks.output().lines().count();
    until("more answers", 30, || talks.output().lines().count() > said + 10);
    assert!(service.segments() > 0, "the stack has carried nothing");
}

#[test]
fn modules_and_their_settings_come_back_when_the_worker_has_died() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let _server = serve(&lab, &service);
    let firewall = object(&service.scratch, "firewall", None);
    let other = module(&service, &format!("add other {} --hook egress --priority 7", firewall.display()));
    other.arg("--app").arg("group 7  user 0").run(60).ok();
    module(&service, &format!("add wall {}", firewall.display())).run(60).ok();
    for port in [7000, 7001] {
        module(&service, &format!("maps wall blocked_ports set {port} 1")).run(30).ok();
    }
    module(&service, "maps wall blocked_ports delete 7000").run(30).ok();
    module(&service, &format!("add gone {}", firewall.display())).run(60).ok();
    module(&service, "rm gone").run(30).ok();
    let elements = || json(&service, "maps wall blocked_ports dump")["elements"].clone();
    let before = elements();
    assert_eq!(before.as_array().unwrap().len(), 1);
    for _ in 0..2 {
        let dead = service.running.worker();
        // SAFETY: the call takes integers. It is a child of the service that this test has started.
        assert_eq!(unsafe { libc::kill(dead, libc::SIGKILL) }, 0);
        let lists = || module(&service, "list --json").run(30);
        until("another worker", 30, || service.running.worker() != dead && lists().code == 0);
        let list: Value = serde_json::from_str(&lists().ok()).unwrap();
        let modules = list["modules"].as_array().unwrap().iter();
        let of = |one: &Value| ["name", "hook", "priority", "compiled", "app"].map(|key| one[key].to_string());
        let said = modules.map(of);
        let said: Vec<_> = said.map(|words| words.join(" ")).collect();
        assert_eq!(said, [r#""wall" "ingress" 0 true null"#, r#""other" "egress" 7 true "user 0 group 7""#]);
        assert_eq!(elements(), before);
    }
    // Until the server's listeners have joined, the kernel accepts, whose frames pass no module.
    until("the port to be blocked", 60, || asks(&lab, 7001) == "nothing");
    assert_eq!(asks(&lab, 7000), "answer");
}

#[test]
fn a_module_for_one_users_programs_sees_only_their_connections_old_and_new() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let user = |id: u32| format!("setpriv --reuid {id} --regid {id} --clear-groups /usr/bin/python3 -u -c");
    let serve = |id, port: u16| {
        let script = format!(
            "import socket, threading
def talk(c):
    while c.recv(100): c.sendall(b'answer')
l = socket.create_server(('', {port})); print('ready', flush=True)
while True: threading.Thread(target=talk, args=(l.accept()[0],)).start()"
        );
        let program = lab.on_server(service.accelerated(&user(id)).arg(script));
        let mut running = program.start(service.scratch.path(&format!("server-{port}.log")));
        running.wait_for("ready", 30);
        running
    };
    let _servers = [serve(0, 7000), serve(OTHER, 7001)];
    // It asks on two connections, which are open before the modules come, whenever it is told to.
    let talk = format!(
        "import os, socket, sys, time
to = {{port: socket.create_connection(('{SERVER}', port), 10) for port in (7000, 7001)}}
def ask(port): to[port].sendall(b'question'); assert to[port].recv(100) == b'answer'; print('answer', port, flush=True)
ask(7000); ask(7001); print('open', flush=True)
for port in (7000, 7001):
    while not os.path.exists(sys.argv[1] + str(port)): time.sleep(0.01)
    ask(port); print('again', port, flush=True)
time.sleep(1000)"
    );
    let begin = service.scratch.path("begin");
    let talk = lab.on_client(Program::line("python3 -u -c").arg(talk).arg(&begin));
    let mut talks = talk.start(service.scratch.path("talk.log"));
    talks.wait_for("open", 30);
    let again = |talks: &mut Running, port: u16| {
        std::fs::write(format!("{}{port}", begin.display()), "").unwrap();
        talks.wait_for(&format!("again {port}"), 30);
    };

    let ports = object(&service.scratch, "ports", Some(PORTS));
    for hook in ["ingress", "egress"] {
        let add = module(&service, &format!("add {hook} {} --hook {hook} --json", ports.display()));
        let added = add.arg("--app").arg(format!("user {OTHER}")).run(60).ok();
        let added: Value = serde_json::from_str(&added).unwrap();
        assert_eq!(added["modules"][0]["app"], format!("user {OTHER}"), "{added}");
    }
    let seen = |hook: &str| {
        let seen = json(&service, &format!("maps {hook} seen dump"));
        [0, 1].map(|place| seen["elements"][place]["numbers"][0].as_u64().unwrap())
    };
    again(&mut talks, 7000);
    assert_eq!((asks(&lab, 7000), seen("ingress"), seen("egress")), ("answer".into(), [0, 0], [0, 0]));
    again(&mut talks, 7001);
    let old = ["ingress", "egress"].map(seen);
    assert!(old.iter().all(|[others, own]| *others == 0 && *own > 0), "{old:?}");
    // Those of the old connection are an acknowledgement more at most.
    for _ in 0..3 {
        assert_eq!(asks(&lab, 7001), "answer");
    }
    let new = ["ingress", "egress"].map(seen);
    assert!(new.iter().zip(&old).all(|(new, old)| new[0] == 0 && new[1] > old[1] + 2), "{old:?} {new:?}");

    let firewall = object(&service.scratch, "firewall", None);
    module(&service, &format!("add wall {}", firewall.display()))
        .arg("--app")
        .arg(format!("user {OTHER}"))
        .run(60)
        .ok();
    for port in [7000, 7001] {
        module(&service, &format!("maps wall blocked_ports set {port} 1")).run(30).ok();
    }
    assert_eq!((asks(&lab, 7000), asks(&lab, 7001)), ("answer".into(), "nothing".into()));
    assert!(count(&service, "wall", "drop") > 0);
    let list = module(&service, "list").run(30).ok();
    assert!(list.lines().any(|line| line.contains("wall") && line.ends_with(&format!(" user {OTHER}"))), "{list}");
    let stats = module(&service, "stats").run(30).ok();
    assert!(stats.contains(&format!("wall (user {OTHER} only): runs ")), "{stats}");
}

#[test]
fn modules_come_and_go_under_load_and_no_byte_is_lost() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let _server = serve(&lab, &service);
    let statistics = object(&service.scratch, "statistics", None);
    // It wants room around each frame, and gives it a longer header and back.
    let moves = object(
        &service.scratch,
        "moves",
        Some(
            "SEC(\"xdp\") int moves(struct xdp_md *ctx) {
    if (bpf_xdp_adjust_head(ctx, -8) || bpf_xdp_adjust_head(ctx, 8)) return XDP_ABORTED;
    return XDP_PASS; }",
        ),
    );
    let script = format!(
        "import socket, hashlib, os, time
block, h, end, sent = os.urandom(1 << 16), hashlib.sha256(), time.time() + 8, 0
s = socket.create_connection(('{SERVER}', 7002), 60); print('sends', flush=True)
while time.time() < end: s.sendall(block); h.update(block); sent += len(block)
s.shutdown(1); assert s.makefile().read() == h.hexdigest(), 'other bytes came'
print('whole', sent)"
    );
    let mut load = lab.on_client(Program::line("python3 -u -c").arg(script)).start(service.scratch.path("load.log"));
    load.wait_for("sends", 30);
    let mut rounds = 0;
    while !load.output().contains("whole") && load.alive() {
        for hook in ["ingress", "egress"] {
            for (name, object) in [("statistics", &statistics), ("moves", &moves)] {
                module(&service, &format!("add {name}-{hook} {} --hook {hook}", object.display())).run(60).ok();
            }
        }
        until("frames", 10, || {
            count(&service, "statistics-ingress", "pass") > 0 || !load.alive() || load.output().contains("whole")
        });
        for name in ["statistics-ingress", "moves-ingress", "statistics-egress", "moves-egress"] {
            // A run is counted before what became of it.
            let [runs, pass, aborted] = counts(&service, name, ["runs", "pass", "aborted"]);
            assert!(runs - pass.min(runs) <= 1 && aborted == 0, "{name}: {runs} {pass} {aborted}");
        }
        for name in ["statistics-ingress", "moves-egress", "moves-ingress", "statistics-egress"] {
            module(&service, &format!("rm {name}")).run(60).ok();
        }
        rounds += 1;
    }
    load.wait_end(60);
    assert!(load.output().contains("whole"), "{}", load.output());
    assert!(rounds >= 2, "{rounds} rounds");
}

#[test]
fn frames_within_the_host_go_through_modules_too_and_super_segments_are_one_frame() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let _server = serve(&lab, &service);
    // Sums the bytes of frames, and of those that are super-segments by what `struct towpath_frame` says of them.
    let sizes = object(
        &service.scratch,
        "sizes",
        Some(
            "struct towpath_frame { __u32 bytes; __u16 gso_bytes; __u8 egress; __u8 zero; __u32 port; __u32 group; };
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 3); __type(key, __u32); __type(value, __u64); } seen
    SEC(\".maps\");
static void add(__u32 place, __u64 by) {
    __u64 *sum = bpf_map_lookup_elem(&seen, &place);
    if (sum) __sync_fetch_and_add(sum, by);
}
SEC(\"xdp\") int sizes(struct xdp_md *ctx) {
    struct towpath_frame *about = (void *)(long)ctx->data_meta;
    if ((void *)(about + 1) > (void *)(long)ctx->data) return XDP_ABORTED;
    add(0, 1);
    if (about->gso_bytes) { add(1, 1); add(2, ctx->data_end - ctx->data); }
    return XDP_PASS; }",
        ),
    );
    module(&service, &format!("add sizes {} --hook egress", sizes.display())).run(60).ok();
    // The server sends 20 MB to the kernel's client.
    let send = "import socket
l = socket.create_server(('', 7003)); print('ready', flush=True)
c, _ = l.accept(); c.sendall(bytes(20_000_000)); c.close()";
    let program = lab.on_server(service.accelerated("python3 -u -c").arg(send));
    let mut sender = program.start(service.scratch.path("sender.log"));
    sender.wait_for("ready", 30);
    let take = format!(
        "import socket
s = socket.create_connection(('{SERVER}', 7003), 60); n = 0
while True:
    b = s.recv(1 << 20); n += len(b)
    if not b: break
assert n == 20_000_000, n"
    );
    lab.on_client(Program::line("python3 -c").arg(take)).run(60).ok();
    let seen = json(&service, "maps sizes seen dump");
    let number = |place: usize| seen["elements"][place]["numbers"][0].as_u64().unwrap();
    assert!(number(1) > 100 && number(2) > 10_000_000, "super-segments: {seen}");
    assert!(number(2) / number(1) > 3000, "they are longer than segments: {seen}");
    let [runs, pass] = counts(&service, "sizes", ["runs", "pass"]);
    assert_eq!(runs, pass);
}

#[test]
fn what_is_no_module_is_refused_with_the_reason() {
    let service = Service::embedded();
    let refused = |line: &str| module(&service, line).run(60);
    let text = service.scratch.path("text");
    std::fs::write(&text, "text").unwrap();
    let out = refused(&format!("add a {}", text.display()));
    assert!(out.code != 0 && out.err.contains("no ELF object: compile it with `clang"), "{}", out.err);
    assert!(refused("add a /nonexistent").err.contains("No such file"));
    assert!(refused("rm a").err.contains("there is no module \"a\"; the service has none"));
    let null = object(&service.scratch, "null", Some("SEC(\"xdp\") int f(struct xdp_md *c) { return XDP_PASS; }"));
    for (selector, why) in
        [("colour blue", "\"colour\" is no keyword here"), ("user no-such-user", "there is no user"), ("", "an empty")]
    {
        let out = module(&service, &format!("add a {}", null.display())).arg("--app").arg(selector).run(60);
        assert!(out.code != 0 && out.err.contains(why), "{selector:?}: {}", out.err);
    }
    let cases = [
        (
            "helper",
            "SEC(\"xdp\") int f(struct xdp_md *c) { return bpf_get_numa_node_id(); }",
            "calls the helper bpf_get_numa_node_id",
        ),
        (
            "section",
            "SEC(\"tc\") int f(struct __sk_buff *c) { return 0; }",
            "no program in a section \"xdp\" (it has \"tc\")",
        ),
        (
            "load",
            "SEC(\"xdp\") int f(struct xdp_md *c) { return *(char *)(long)c->data; }",
            "verifier refuses f: Permission denied",
        ),
    ];
    for (name, text, why) in cases {
        let out = refused(&format!("add {name} {}", object(&service.scratch, name, Some(text)).display()));
        assert!(out.code != 0 && out.err.contains(why), "{name}: {}", out.err);
        if name == "load" {
            assert!(out.err.contains("invalid access to packet"), "the verifier's own words: {}", out.err);
        }
    }
    assert_eq!(json(&service, "list")["modules"].as_array().unwrap().len(), 0);
    // Frames within the host.
    for hook in ["ingress", "egress"] {
        module(&service, &format!("add {hook} {} --hook {hook}", null.display())).run(60).ok();
    }
    let script = "import socket
l = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(l.getsockname()); s, _ = l.accept()
c.sendall(b'x'); assert s.recv(1) == b'x'";
    service.accelerated("python3 -c").arg(script).run(60).ok();
    until("the same frames", 10, || {
        let runs = ["ingress", "egress"].map(|name| count(&service, name, "runs"));
        runs[0] > 3 && runs[0] == runs[1]
    });
}

#[test]
fn what_a_module_prints_is_read_once_and_followed() {
    const TALK: &str = "
        SEC(\"xdp\") int talk(struct xdp_md *ctx) {
            bpf_printk(\"port %d, %u bytes\", ctx->ingress_ifindex, (__u32)(ctx->data_end - ctx->data));
            bpf_printk(\"%d %d %d %lld\", 1, 2, 3, -4LL);
            return XDP_PASS;
        }";
    const MUTE: &str = "SEC(\"xdp\") int mute(struct xdp_md *ctx) { return XDP_PASS; }";
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    for (name, text) in [("talk", TALK), ("mute", MUTE)] {
        let object = object(&service.scratch, name, Some(text));
        module(&service, &format!("add {name} {}", object.display())).run(60).ok();
    }
    assert_eq!(module(&service, "trace talk").run(60).ok(), "");
    let _server = serve(&lab, &service);
    let follower = module(&service, "trace talk --follow").start(service.scratch.path("followed"));
    asks(&lab, 7000);
    let index = lab.on_server(Program::line("cat /sys/class/net/eth1/ifindex")).run(10).ok();
    let port = format!(" flow group 0: port {}, ", index.trim());
    let is_whole = |text: &str| text.contains(&port) && text.contains(" flow group 0: 1 2 3 -4\n");
    until("what it prints", 30, || is_whole(&follower.output()));
    follower.signal(libc::SIGKILL);
    until("its end", 30, || {
        asks(&lab, 7000);
        is_whole(&module(&service, "trace talk").run(60).ok())
    });
    assert!(count(&service, "talk", "traced") > 2);
    let silent = module(&service, "trace mute").run(60);
    assert!(silent.code != 0 && silent.err.contains("module mute prints nothing"), "{}", silent.err);
}

/// A client says its port when it has an answer, with the next sequence numbers of both directions, and its window scale. Once the file is there, it sends 8 MB, and all of it is to come back.
const SPLICED: &str = "
import os, socket, struct, sys, threading, time
s = socket.create_connection((sys.argv[1], 7000), 10); s.sendall(b'question'); assert s.recv(100) == b'answer'
TCP, INFO, REPAIR, QUEUE, SEQ = 6, 11, 19, 20, 21
scales = s.getsockopt(TCP, INFO, 8)[6]
s.setsockopt(TCP, REPAIR, 1)
def number(queue):
    s.setsockopt(TCP, QUEUE, queue)
    return struct.unpack('I', s.getsockopt(TCP, SEQ, 4))[0]
received, sent = number(1), number(2)
s.setsockopt(TCP, QUEUE, 0); s.setsockopt(TCP, REPAIR, -1)
print(s.getsockname()[1], sent, received, (scales >> 4) - (scales & 15), flush=True)
while not os.path.exists(sys.argv[2]): time.sleep(0.01)
data = bytes(i * i % 251 for i in range(8000)) * 1000
threading.Thread(target=s.sendall, args=(data,)).start()
back = bytearray()
while len(back) < len(data):
    some = s.recv(1 << 20)
    assert some
    back += some
assert back == data
print('whole', flush=True); time.sleep(1000)";

fn mac(program: Program) -> Vec<u8> {
    let text = program.run(10).ok();
    text.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

/// `most`: frames that may go back, data and acknowledgements.
fn a_connection_is_spliced_with_itself(port: &str, most: u64) {
    let lab = Lab::new();
    lab.on_client(Program::line("sysctl -qw net.ipv4.tcp_timestamps=0")).run(10).ok();
    let service = Service::on_interface_by(&lab, port);
    let _server = serve(&lab, &service);
    let splice = object(&service.scratch, "splice", None);
    let added = json(&service, &format!("add splice {}", splice.display()));
    assert_eq!(added["modules"][0]["compiled"], true, "{added}");
    let begin = service.scratch.path("begin");
    let client = Program::line("python3 -u -c").arg(SPLICED).arg(SERVER).arg(&begin);
    let mut client = lab.on_client(client).start(service.scratch.path("spliced.log"));
    client.wait_for("\n", 30);
    let said = client.output();
    let said: Vec<i64> = said.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let [from, sent, received, shift] = said[..] else { panic!("{said:?}") };

    // What the client sends, it receives. What it acknowledges, it has sent.
    let address = |text: &str| [text.parse::<Ipv4Addr>().unwrap().octets().to_vec(), vec![0; 12]].concat();
    let ports = [(from as u16).to_be_bytes(), 7000u16.to_be_bytes()].concat();
    let connection = [address(CLIENT), address(SERVER), ports, 4u32.to_ne_bytes().to_vec()].concat();
    let macs = [lab.on_client(Program::line("cat")), lab.on_server(Program::line("cat"))];
    let macs = macs.map(|program| mac(program.arg("/sys/class/net/eth1/address"))).concat();
    let by = (received as u32).wrapping_sub(sent as u32);
    let numbers = [by, by.wrapping_neg(), 0, 0].map(u32::to_ne_bytes).concat();
    let shifts = [shift.max(0) as u8, (-shift).max(0) as u8];
    let value = [&connection[..], &macs, &numbers, &shifts, &[0; 58]].concat();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let line = format!("maps splice towpath_splices set hex:{} hex:{}", hex(&connection), hex(&value));
    module(&service, &line).run(30).ok();
    std::fs::write(&begin, "").unwrap();
    client.wait_for("whole", 60);

    let frames = counts(&service, "splice", ["tx"])[0];
    assert!((1..most).contains(&frames), "{frames} frames went back");
}

#[test]
fn a_connection_is_spliced_with_itself_in_super_segments() {
    for port in ["packet", "xdp-generic"] {
        a_connection_is_spliced_with_itself(port, 8_000_000 / 3000);
    }
}

/// With the XDP program in the driver, the peer's kernel cuts what it sends.
#[test]
fn a_connection_is_spliced_with_itself_in_single_frames() {
    a_connection_is_spliced_with_itself("xdp", u64::MAX);
}
