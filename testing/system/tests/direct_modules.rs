//! `towpath module add --direct`: what modules see of direct connections of unmodified programs.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::path::PathBuf;
use towpath_system_tests::module::{asks, count, counts, json, module, object};
use towpath_system_tests::program::Running;
use towpath_system_tests::{Lab, Service, until};

/// Users other than root. Nobody runs a program as the second one.
const OTHER: u32 = 23_451;
const NOBODY: u32 = 23_452;

/// What the module says of each frame.
const PASS: &str = "XDP_PASS";
const DROP: &str = "XDP_DROP";

/// Counts what it sees of connections to port 7000: see [`Seen`]. It says this of each frame, and makes it another one first.
fn watcher(service: &Service, name: &str, verdict: &str) -> PathBuf {
    let text = format!(
        "#include \"{}/../../bpf/modules/towpath.h\"
struct {{ __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 8); __type(key, __u32); __type(value, __u64); }} seen
    SEC(\".maps\");
static void add(__u32 place, __u64 by) {{
    __u64 *sum = bpf_map_lookup_elem(&seen, &place);
    if (sum) __sync_fetch_and_add(sum, by);
}}
SEC(\"xdp\") int {name}(struct xdp_md *ctx) {{
    struct towpath_frame *about = (void *)(long)ctx->data_meta;
    __u8 *frame = (void *)(long)ctx->data;
    if ((void *)(about + 1) > (void *)frame) return XDP_ABORTED;
    if (frame + 54 > (__u8 *)(long)ctx->data_end) return XDP_ABORTED;
    if (about->port != TOWPATH_DIRECT) {{ add(6, 1); return XDP_PASS; }}
    if (about->egress || about->gso_bytes || ctx->ingress_ifindex != TOWPATH_DIRECT) add(7, 1);
    if (about->flow_group != ctx->rx_queue_index) add(7, 1);
    __u32 flags = frame[47], to = frame[36] << 8 | frame[37];
    add(0, (flags & 2) != 0);
    add(1, (flags & 1) != 0);
    add(2, (flags & 4) != 0);
    add(3, (flags & 16) == 0);
    __u32 payload = (frame[16] << 8 | frame[17]) - 20 - (frame[46] >> 4) * 4;
    add(to == 7000 ? 4 : 5, payload);
    __builtin_memset(frame, 0xff, 54);
    return {verdict};
}}",
        env!("CARGO_MANIFEST_DIR")
    );
    object(&service.scratch, name, Some(&text))
}

/// What such a module has seen.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    syns: u64,
    fins: u64,
    resets: u64,
    /// Frames that acknowledge nothing: first SYNs.
    first: u64,
    /// Bytes to port 7000, and from it.
    asked: u64,
    answered: u64,
    /// Frames of other connections.
    others: u64,
    /// Frames of direct connections of which something else is said.
    wrong: u64,
}

fn seen(service: &Service, name: &str) -> Seen {
    let dump = json(service, &format!("maps {name} seen dump"));
    let number = |place: usize| dump["elements"][place]["numbers"][0].as_u64().unwrap();
    let [syns, fins, resets, first, asked, answered, others, wrong] = std::array::from_fn(number);
    Seen { syns, fins, resets, first, asked, answered, others, wrong }
}

/// A server on port 7000 of all addresses. Each question gets an answer.
const SERVE: &str = "
import socket, threading
def talk(c):
    while c.recv(100): c.sendall(b'answer')
    c.close()
l = socket.create_server(('', 7000)); print('ready', flush=True)
while True: threading.Thread(target=talk, args=(l.accept()[0],)).start()";

/// The server, as another user than root.
fn serve(lab: &Lab, service: &Service) -> Running {
    let user = format!("setpriv --reuid {OTHER} --regid {OTHER} --clear-groups /usr/bin/python3 -u -c");
    let program = lab.on_server(service.accelerated(&user).arg(SERVE));
    let mut running = program.start(service.scratch.path("server.log"));
    running.wait_for("ready", 30);
    running
}

const ROUNDS: u64 = 300;

/// A program of root's that asks the server over a direct connection.
fn ask(lab: &Lab, service: &Service) {
    let script = format!(
        "import socket
s = socket.create_connection(('127.0.0.1', 7000), 60)
for i in range({ROUNDS}): s.sendall(b'question'); assert s.recv(100) == b'answer'
s.shutdown(1); assert s.recv(1) == b''"
    );
    lab.on_server(service.accelerated("python3 -c").arg(script)).run(60).ok();
}

/// What is seen of this many such connections: handshake, data and ends. Bytes that pass between two looks are one frame, so
/// nobody can say how many frames they are.
fn whole(connections: u64) -> Seen {
    let rounds = connections * ROUNDS;
    Seen {
        syns: 2 * connections,
        fins: 2 * connections,
        first: connections,
        asked: 8 * rounds,
        answered: 6 * rounds,
        ..Seen::default()
    }
}

#[test]
fn a_module_that_asks_for_direct_connections_sees_them_whole_and_changes_nothing() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let pass = watcher(&service, "pass", PASS);
    let drop = watcher(&service, "drops", DROP);
    let add = |name: &str, object: &PathBuf, line: &str, app: Option<u32>| {
        let program = module(&service, &format!("add {name} {} {line}", object.display()));
        match app {
            Some(user) => program.arg("--app").arg(format!("user {user}")).run(60).ok(),
            None => program.run(60).ok(),
        }
    };
    // The first one says drop of each, and makes other bytes of it: the others see them all the same.
    let said = add("drops", &drop, "--direct --priority -1", None);
    assert!(said.contains("module drops runs at ingress and watches direct connections: "), "{said}");
    add("plain", &pass, "", None);
    add("egress", &pass, "--direct --hook egress", None);
    add("servers", &pass, "--direct", Some(OTHER));
    add("clients", &pass, "--direct", Some(0));
    add("nobodys", &pass, "--direct", Some(NOBODY));
    let _server = serve(&lab, &service);
    ask(&lab, &service);
    assert_eq!(service.segments(), 0, "the stack has carried it");
    let of = |name: &str| seen(&service, name);
    for name in ["drops", "egress", "servers", "clients"] {
        until("the whole connection", 30, || of(name) == whole(1) || panic_if_more(&of(name), &whole(1)));
    }
    assert_eq!((of("plain"), of("nobodys")), (Seen::default(), Seen::default()));
    // All have had the same frames.
    until("their counts", 30, || {
        let [runs, drop, missed] = counts(&service, "drops", ["runs", "drop", "missed"]);
        (runs > 5, drop, missed) == (true, runs, 0) && counts(&service, "clients", ["pass", "missed"]) == [runs, 0]
    });

    // Who asks over the interface is seen there, as without `--direct`.
    assert_eq!(asks(&lab, 7000), "answer");
    until("its frames", 30, || of("plain").others > 0 && of("egress").others > 0 && of("servers").others > 0);
    assert_eq!((of("clients"), of("nobodys")), (whole(1), Seen::default()));

    let list = json(&service, "list");
    let modules = list["modules"].as_array().unwrap().iter();
    let direct: Vec<_> = modules.map(|one| (one["name"].as_str().unwrap(), one["direct"] == true)).collect();
    let expected =
        [("drops", true), ("plain", false), ("servers", true), ("clients", true), ("nobodys", true), ("egress", true)];
    assert_eq!(direct, expected);
    let text = module(&service, "list").run(30).ok();
    assert!(text.contains(" ingress+direct ") && text.contains(" egress+direct "), "{text}");
    let stats = module(&service, "stats").run(30).ok();
    assert_eq!(stats.lines().filter(|line| line.ends_with(", missed 0")).count(), 5, "{stats}");

    // One that goes sees no more, and the others do.
    module(&service, "rm clients").run(30).ok();
    ask(&lab, &service);
    until("another connection", 30, || {
        let Seen { others, .. } = of("servers");
        of("servers") == Seen { others, ..whole(2) }
    });
}

/// False, but a frame that is seen twice fails the test at once.
fn panic_if_more(seen: &Seen, whole: &Seen) -> bool {
    assert!(seen.fins <= whole.fins && seen.asked <= whole.asked, "{seen:?}");
    false
}

#[test]
fn such_a_module_that_takes_more_than_its_budget_is_detached_and_connections_go_on() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    // It takes a good part of a millisecond for a frame. Its budget is one percent, and it may save up a millisecond.
    let text = "SEC(\"xdp\") int greedy(struct xdp_md *ctx)
{
    __u64 sum = 0;
    for (int i = 0; i < 120000; i++) { sum += sum * 31 + i; asm volatile(\"\" : \"+r\"(sum)); }
    return sum == 1 ? XDP_DROP : XDP_PASS;
}";
    let greedy = object(&service.scratch, "greedy", Some(text));
    module(&service, &format!("add greedy {} --direct --budget 1", greedy.display())).run(60).ok();
    let _server = serve(&lab, &service);
    until("its end", 60, || {
        ask(&lab, &service);
        json(&service, "list")["modules"][0]["detached"] == true
    });
    ask(&lab, &service);
    until("the message", 30, || service.running.output().contains("have taken more than 1 % of a core's time"));
    assert_eq!(service.segments(), 0, "the stack has carried something");
}

#[test]
fn such_a_module_comes_back_when_the_worker_has_died_and_sees_connections_that_begin_then() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let pass = watcher(&service, "pass", PASS);
    module(&service, &format!("add watch {} --direct", pass.display())).run(60).ok();
    let dead = service.running.worker();
    // SAFETY: the call takes integers. It is a child of the service that this test has started.
    assert_eq!(unsafe { libc::kill(dead, libc::SIGKILL) }, 0);
    until("another worker", 30, || {
        service.running.worker() != dead && module(&service, "list --json").run(30).code == 0
    });
    assert_eq!(json(&service, "list")["modules"][0]["direct"], true);
    let _server = serve(&lab, &service);
    ask(&lab, &service);
    until("the whole connection", 30, || seen(&service, "watch") == whole(1));
}

#[test]
fn modules_come_and_go_while_much_passes_and_no_byte_of_the_connection_is_lost() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let drops = watcher(&service, "drops", DROP);
    // Both ends are one program's. It sends until it is told to stop, and compares.
    let stop = service.scratch.path("stop");
    let script = "
import socket, threading, hashlib, os, sys
l = socket.create_server(('127.0.0.1', 7000)); c = socket.create_connection(l.getsockname()); s, _ = l.accept()
block, sent, got = os.urandom(1 << 18), hashlib.sha256(), hashlib.sha256()
def send():
    while not os.path.exists(sys.argv[1]): c.sendall(block); sent.update(block)
    c.shutdown(1)
t = threading.Thread(target=send); t.start(); print('sends', flush=True)
while True:
    b = s.recv(1 << 20)
    if not b: break
    got.update(b)
t.join(); assert sent.digest() == got.digest(), 'other bytes came'
print('whole', flush=True)";
    let program = lab.on_server(service.accelerated("python3 -u -c").arg(script).arg(&stop));
    let mut load = program.start(service.scratch.path("load.log"));
    load.wait_for("sends", 30);
    for round in 0..4 {
        for name in ["first", "second"] {
            module(&service, &format!("add {name} {} --direct", drops.display())).run(60).ok();
        }
        until("frames", 30, || {
            assert!(load.alive(), "{}", load.output());
            ["first", "second"].iter().all(|name| count(&service, name, "runs") + count(&service, name, "missed") > 0)
        });
        if round < 3 {
            module(&service, "rm first").run(60).ok();
            module(&service, "rm second").run(60).ok();
        }
    }
    std::fs::write(&stop, "").unwrap();
    load.wait_for("whole", 60);
    load.wait_end(60);
    until("the ends", 30, || seen(&service, "first").fins == 2 && seen(&service, "second").fins == 2);
    assert_eq!(service.segments(), 0, "the stack has carried it");
}
