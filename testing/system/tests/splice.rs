//! Splicing: a proxy under Towpath hands two connections over, and the module `splice` passes their segments on. Client and
//! server are plain Linux programs on the far side of one veth, or of two.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::collections::BTreeSet;
use towpath_system_tests::module::{STEPS, Spliced, counts, module, object, spliced};
use towpath_system_tests::namespace::{
    BEHIND, BEHIND6, Behind, CLIENT, CLIENT_TOO, CLIENT6, CLIENT6_TOO, SERVER, SERVER6,
};
use towpath_system_tests::program::Running;
use towpath_system_tests::{Lab, Program, Service, bin, require_program, until, until_or};

/// The proxy's port, and that of the server behind it.
const PORTS: [u16; 2] = [7000, 7001];

/// `serve DIRECTORY`, or what a client does. A client and the server's thread for it do the same, each in its part. Where a
/// step waits for a word of the test, a file of that name in the directory gives it.
const PEERS: &str = r"
import hashlib, os, socket, struct, sys, threading, time
what, directory, proxy, MB = sys.argv[1], sys.argv[2], sys.argv[3], 1 << 20
RESETS = socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)
def exchange(s, who):
    # At least 30 MB, and until the test has seen what it waits for.
    sent, received, count = hashlib.sha256(), hashlib.sha256(), [0, 0]
    def send():
        while count[0] < 30 * MB or not told('enough'):
            block = os.urandom(MB)
            s.sendall(block); sent.update(block); count[0] += MB
        s.shutdown(socket.SHUT_WR)
    sender = threading.Thread(target=send); sender.start()
    while more := s.recv(1 << 16): received.update(more); count[1] += len(more)
    sender.join()
    say(who, count[0], sent.hexdigest(), count[1], received.hexdigest())
def end_of(s, who):
    try: say(who, 'saw the end' if s.recv(1) == b'' else 'saw a byte')
    except ConnectionResetError: say(who, 'was reset')
def echo(s):
    block = os.urandom(MB)
    sender = threading.Thread(target=s.sendall, args=(block,)); sender.start()
    assert exact(s, MB) == block; sender.join()
def serve(s):
    what = exact(s, 8).decode().strip()
    s.sendall(b'yes')
    if what == 'exchange': exchange(s, 'server')
    elif what == 'echoes':
        while more := s.recv(1 << 16): s.sendall(more)
        say('server saw the end')
    elif what == 'half':
        count = 0
        while more := s.recv(1 << 16): count += len(more)
        say('server saw half an end after', count); s.sendall(b'after')
    elif what == 'resets': exact(s, 3); s.setsockopt(*RESETS)
    elif what == 'reset': end_of(s, 'server')
    s.close()
if what == 'serve':
    l = socket.create_server(('::', 7001), family=socket.AF_INET6, backlog=64, dualstack_ipv6=True); say('ready')
    while True: threading.Thread(target=serve, args=(l.accept()[0],)).start()
s = socket.create_connection((proxy, 7000), 60); s.settimeout(None)
s.sendall(what.replace('hurry', 'exchange').ljust(8).encode()); assert exact(s, 3) == b'yes'; say('asked')
if what == 'hurry': exchange(s, 'client'); sys.exit()
wait_for('go')
if what == 'exchange': exchange(s, 'client')
elif what == 'echoes':
    echo(s); say('echoed once')
    for word in 'more', 'captured', 'again': wait_for(word); echo(s); say('echoed', word)
    wait_for('end')
elif what == 'half':
    s.sendall(bytes(MB)); s.shutdown(socket.SHUT_WR)
    assert exact(s, 5) == b'after'; end_of(s, 'client')
elif what == 'resets': s.sendall(b'now'); end_of(s, 'client')
elif what == 'reset': s.setsockopt(*RESETS); s.close()
";

/// The proxy's address for clients, and the server's for the proxy. Those of the second veth are `_TOO`.
#[derive(Clone, Copy)]
struct Path {
    proxy: &'static str,
    server: &'static str,
}

const USUAL: Path = Path { proxy: SERVER, server: CLIENT };

/// A server, and the proxy before it.
struct Stage {
    _behind: Option<Behind>,
    lab: Lab,
    service: Service,
    server: Running,
    proxy: Running,
    path: Path,
}

impl Stage {
    /// With the module or without.
    fn new(has_module: bool) -> Self {
        Self::over(USUAL, has_module)
    }
    fn over(path: Path, has_module: bool) -> Self {
        Self::over_so_many(path, has_module, [CLIENT_TOO, CLIENT6_TOO].contains(&path.server))
    }
    /// Over one interface or two.
    fn over_so_many(path: Path, has_module: bool, is_over_two: bool) -> Self {
        require_program("gcc", "gcc");
        let lab = Lab::new();
        lab.add_ipv6();
        let mut words = vec!["--interface", "eth1", "--admit", "all"];
        if is_over_two {
            lab.join_again();
            lab.add_ipv6_too();
            words.extend(["--interface", "eth2"]);
        }
        let behind = [BEHIND, BEHIND6].contains(&path.server).then(|| Behind::new(&lab));
        let service = Service::start(|program| lab.on_server(words.into_iter().fold(program, Program::arg)));
        if has_module {
            let object = object(&service.scratch, "splice", None);
            module(&service, &format!("add splice {}", object.display())).run(60).ok();
        }
        let scratch = &service.scratch;
        let server = peers("serve", &service, path);
        let server = match &behind {
            Some(behind) => behind.on_it(server),
            None => lab.on_client(server),
        };
        let mut server = server.start(scratch.path("server.log"));
        server.wait_for("ready", 30);
        let program = scratch.path("splice-proxy");
        let source =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/preload/examples/splice-proxy.c");
        let compile = Program::line("gcc -O1 -Wall -Wextra -Werror -o").arg(&program);
        compile.arg(source).run(60).ok();
        let line = format!("{} {} {} {}", program.display(), PORTS[0], path.server, PORTS[1]);
        let mut proxy = lab.on_server(service.accelerated(&line)).start(scratch.path("proxy.log"));
        proxy.wait_for("ready", 60);
        Self { _behind: behind, lab, service, server, proxy, path }
    }

    fn client(&self, what: &str, log: &str) -> Running {
        let mut client =
            self.lab.on_client(peers(what, &self.service, self.path)).start(self.service.scratch.path(log));
        client.wait_for("asked", 60);
        client
    }

    /// Gives the peers a word for which they wait.
    fn tell(&self, word: &str) {
        std::fs::write(self.service.scratch.path(word), "").unwrap();
    }

    /// Waits until the proxy has handed over so many pairs of connections.
    fn await_spliced(&mut self, count: usize) {
        let line = format!("spliced: {count}\n");
        let Self { proxy, lab, service, .. } = self;
        let log = service.scratch.path("proxy.log");
        let is_spliced = || {
            let output = proxy.output();
            assert!(proxy.alive() && !output.contains("copied"), "{output}");
            output.contains(&line)
        };
        until_or("the splicing", 60, is_spliced, || {
            let neighbours = lab.on_server(Program::line("ip neigh")).run(10).ok();
            format!("{}\n{neighbours}", std::fs::read_to_string(&log).unwrap_or_default())
        });
    }

    /// Captures, so that the module sends segments on.
    fn capture(&self) -> Running {
        let file = self.service.scratch.path("capture.pcapng");
        let _ = std::fs::remove_file(&file);
        let capture = Program::new(&[bin("towpath")]).arg("capture").arg("--socket").arg(&self.service.socket);
        let capture = capture.arg("-w").arg(&file).start(self.service.scratch.path("capture.log"));
        // The head of the file is written when the service captures.
        until("the capture", 30, || std::fs::metadata(&file).is_ok_and(|file| file.len() > 0));
        capture
    }

    /// Payload bytes from the client and from the server that have been sent on, of all connections that are spliced.
    fn sent_on(&self, by: By) -> [u64; 2] {
        let mut sums = [0; 2];
        for Spliced { from, to, by_module, by_kernel } in spliced(&self.service) {
            let from_server = from == PORTS[1];
            assert!(from_server || to == PORTS[0], "{from} to {to}");
            sums[usize::from(from_server)] += if by == By::Kernel { by_kernel } else { by_module };
        }
        sums
    }
}

/// Who sends segments on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Module,
    Kernel,
}

fn peers(what: &str, service: &Service, path: Path) -> Program {
    Program::line("python3 -u -c").arg(format!("{STEPS}{PEERS}")).arg(what).arg(&service.scratch.0).arg(path.proxy)
}

/// The exchanges of one side: bytes and hashes of both directions, as the other side has them.
fn exchanges(output: &str, who: &str) -> BTreeSet<[String; 4]> {
    let lines = output.lines().filter_map(|line| line.strip_prefix(who));
    lines
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let of = if who == "server" { [2, 3, 0, 1] } else { [0, 1, 2, 3] };
            of.map(|at| words[at].to_owned())
        })
        .collect()
}

/// The peers have exchanged so many streams, and each has what the other has sent.
fn expect_whole(stage: &Stage, clients: &mut [Running]) {
    clients.iter_mut().for_each(|client| client.wait_end(120));
    let sent: BTreeSet<_> = clients.iter().flat_map(|client| exchanges(&client.output(), "client")).collect();
    assert_eq!(sent.len(), clients.len(), "a client has failed");
    until("the server's ends", 60, || exchanges(&stage.server.output(), "server").len() == clients.len());
    assert_eq!(exchanges(&stage.server.output(), "server"), sent);
}

#[test]
fn thirty_megabytes_each_way_pass_the_spliced_connections_unchanged() {
    let mut stage = Stage::new(true);
    let client = stage.client("exchange", "client.log");
    stage.await_spliced(1);
    let before = stage.service.segments();
    stage.tell("enough");
    stage.tell("go");
    expect_whole(&stage, &mut [client]);
    // The other direction's end is the last thing that the proxy sees.
    stage.proxy.wait_for("over: Success", 60);
    // 60 MB would be a thousand segments of the greatest size.
    let carried = stage.service.segments() - before;
    assert!(carried < 100, "the stack has carried {carried} segments itself");
}

#[test]
fn connections_are_spliced_in_the_middle_of_their_streams() {
    let mut stage = Stage::new(true);
    let mut clients: Vec<_> = (0..3).map(|number| stage.client("hurry", &format!("client-{number}.log"))).collect();
    stage.await_spliced(clients.len());
    stage.tell("enough");
    expect_whole(&stage, &mut clients);
}

#[test]
fn spliced_connections_outlive_their_proxy() {
    let mut stage = Stage::new(true);
    let mut client = stage.client("echoes", "client.log");
    stage.await_spliced(1);
    stage.tell("go");
    client.wait_for("echoed once", 60);
    stage.proxy.signal(libc::SIGKILL);
    stage.proxy.wait_end(30);
    ["more", "captured", "again", "end"].iter().for_each(|word| stage.tell(word));
    client.wait_for("echoed again", 60);
    client.wait_end(30);
    stage.server.wait_for("server saw the end", 60);
}

#[test]
fn the_kernel_sends_segments_on_but_while_another_module_or_a_capture_is_to_see_them() {
    const MB: u64 = 1 << 20;
    let mut stage = Stage::new(true);
    let mut client = stage.client("echoes", "client.log");
    stage.await_spliced(1);
    stage.tell("go");
    client.wait_for("echoed once", 60);
    until("the kernel's counts", 60, || stage.sent_on(By::Kernel).iter().all(|bytes| *bytes >= MB));
    // All of an echo pass by the module.
    let echo_by_module = |stage: &Stage, client: &mut Running, word: &str| {
        let before = stage.sent_on(By::Module);
        stage.tell(word);
        client.wait_for(&format!("echoed {word}"), 60);
        let after = stage.sent_on(By::Module);
        assert!(after.iter().zip(before).all(|(after, before)| after - before >= MB), "{before:?}, {after:?}");
    };
    let first = object(&stage.service.scratch, "first", Some("SEC(\"xdp\") int first(void *ctx) { return XDP_PASS; }"));
    module(&stage.service, &format!("add first {} --priority -1", first.display())).run(60).ok();
    echo_by_module(&stage, &mut client, "more");
    module(&stage.service, "rm first").run(60).ok();
    let mut capture = stage.capture();
    echo_by_module(&stage, &mut client, "captured");
    capture.signal(libc::SIGINT);
    capture.wait_end(30);
    let of_kernel = stage.sent_on(By::Kernel);
    stage.tell("again");
    client.wait_for("echoed again", 60);
    until("more of the kernel's counts", 60, || {
        stage.sent_on(By::Kernel).iter().zip(of_kernel).all(|(after, before)| after - before >= MB)
    });
    stage.tell("end");
    client.wait_end(30);
    stage.server.wait_for("server saw the end", 60);
}

/// Streams and their ends pass, by the kernel and, while somebody captures, by the module.
fn passes_by_kernel_and_module(path: Path) {
    const MOST: u64 = 30 << 20;
    let mut stage = Stage::over(path, true);
    stage.tell("enough");
    let mut echoing = stage.client("echoes", "echoes.log");
    let mut clients = vec![stage.client("exchange", "kernel.log")];
    stage.await_spliced(2);
    let before = stage.service.segments();
    stage.tell("go");
    echoing.wait_for("echoed once", 60);
    until("the kernel's counts", 60, || stage.sent_on(By::Kernel).iter().all(|bytes| *bytes > MOST));
    expect_whole(&stage, &mut clients);
    if [BEHIND, BEHIND6].contains(&path.server) {
        let route = Program::line(&format!("ip route get {}", path.proxy));
        let learned = stage.lab.on_client(route).run(10).ok();
        assert!(learned.contains("mtu 1400"), "{learned}");
    }
    let mut capture = stage.capture();
    let of_module = stage.sent_on(By::Module);
    for word in ["more", "captured"] {
        stage.tell(word);
        echoing.wait_for(&format!("echoed {word}"), 60);
    }
    let after = stage.sent_on(By::Module);
    assert!(after.iter().zip(of_module).all(|(after, before)| after - before >= 2 << 20), "{of_module:?}, {after:?}");
    let carried = stage.service.segments() - before;
    assert!(carried < 100, "the stack has carried {carried} segments itself");
    let [back, over, aborted] = counts(&stage.service, "splice", ["tx", "redirect", "aborted"]);
    // The way out is named even if it is the way in.
    assert!((back, aborted) == (0, 0) && over > 0, "{back}, {over}, {aborted}");
    // A client that has learned of a narrow path announces segments as small, and takes none of those that the server may send.
    if ![BEHIND, BEHIND6].contains(&path.server) {
        // It is spliced in the middle of its streams.
        clients.push(stage.client("hurry", "module.log"));
        stage.await_spliced(3);
        expect_whole(&stage, &mut clients);
    }
    capture.signal(libc::SIGINT);
    capture.wait_end(30);
    ["again", "end"].iter().for_each(|word| stage.tell(word));
    echoing.wait_for("echoed again", 60);
    echoing.wait_end(30);
    stage.server.wait_for("server saw the end", 60);
    let pairs = clients.len() + 1;
    until("the ends at the proxy", 60, || stage.proxy.output().matches("over: Success").count() == pairs);
}

#[test]
fn connections_over_ipv6_are_spliced() {
    passes_by_kernel_and_module(Path { proxy: SERVER6, server: CLIENT6 });
}

#[test]
fn connections_over_two_interfaces_are_spliced() {
    passes_by_kernel_and_module(Path { proxy: SERVER, server: CLIENT_TOO });
}

#[test]
fn connections_over_ipv6_and_two_interfaces_are_spliced() {
    passes_by_kernel_and_module(Path { proxy: SERVER6, server: CLIENT6_TOO });
}

#[test]
fn segments_that_come_by_another_interface_go_out_by_the_right_one() {
    let mut stage = Stage::over_so_many(USUAL, true, true);
    // To both peers the route leads over eth1, and they send over eth2.
    let route = format!("ip route add {SERVER}/32 dev eth2 src {CLIENT}");
    stage.lab.on_client(Program::line(&route)).run(10).ok();
    // Whose neighbour is not known is answered by the way that he has come.
    stage.lab.on_server(Program::line(&format!("ping -c 1 -W 5 {CLIENT}"))).run(10).ok();
    stage.tell("enough");
    let mut clients = vec![stage.client("exchange", "kernel.log")];
    stage.await_spliced(1);
    stage.tell("go");
    expect_whole(&stage, &mut clients);
    let mut capture = stage.capture();
    clients.push(stage.client("exchange", "module.log"));
    stage.await_spliced(2);
    expect_whole(&stage, &mut clients);
    capture.signal(libc::SIGINT);
    capture.wait_end(30);
    assert_eq!(counts(&stage.service, "splice", ["tx", "aborted"]), [0, 0]);
    let bytes = ["rx", "tx"].map(|way| {
        let count = Program::line(&format!("cat /sys/class/net/eth2/statistics/{way}_bytes"));
        stage.lab.on_server(count).run(10).ok().trim().parse::<u64>().unwrap()
    });
    assert!(bytes[0] > 4 * (30 << 20) && bytes[1] < 1 << 20, "by eth2 in and out: {bytes:?}");
}

#[test]
fn a_peer_learns_what_the_path_behind_the_proxy_takes() {
    passes_by_kernel_and_module(Path { proxy: SERVER, server: BEHIND });
}

#[test]
fn a_peer_learns_it_over_ipv6_too() {
    passes_by_kernel_and_module(Path { proxy: SERVER6, server: BEHIND6 });
}

#[test]
fn connections_of_two_families_are_not_spliced_and_the_proxy_goes_on() {
    // The proxy listens for both families.
    let mut stage = Stage::over(Path { proxy: SERVER, server: CLIENT6 }, true);
    let client = stage.client("exchange", "client.log");
    stage.proxy.wait_for("copied: 1, Operation not supported", 60);
    stage.tell("enough");
    stage.tell("go");
    expect_whole(&stage, &mut [client]);
}

#[test]
fn half_an_end_arrives_alone_and_then_the_other() {
    let mut stage = Stage::new(true);
    let mut client = stage.client("half", "client.log");
    stage.await_spliced(1);
    stage.tell("go");
    client.wait_for("client saw the end", 60);
    assert!(stage.server.output().contains(&format!("server saw half an end after {}\n", 1 << 20)));
    stage.proxy.wait_for("over: Success", 60);
}

#[test]
fn a_reset_arrives_as_a_reset_from_either_side() {
    let mut stage = Stage::new(true);
    let mut resetting = stage.client("reset", "resetting.log");
    let mut waiting = stage.client("resets", "waiting.log");
    stage.await_spliced(2);
    stage.tell("go");
    stage.server.wait_for("server was reset", 60);
    waiting.wait_for("client was reset", 60);
    resetting.wait_end(30);
    until("both ends at the proxy", 60, || stage.proxy.output().matches("over: Connection reset by peer").count() == 2);
}

#[test]
fn without_the_module_the_proxy_is_told_so_and_passes_all_on_itself() {
    let mut stage = Stage::new(false);
    let client = stage.client("exchange", "client.log");
    stage.proxy.wait_for("copied: 1, Operation not supported", 60);
    stage.tell("enough");
    stage.tell("go");
    expect_whole(&stage, &mut [client]);
    stage.proxy.wait_for("over: Success", 60);
}

#[test]
fn stacks_that_do_not_splice_say_so_and_no_contract_is_violated() {
    let script = "import socket
l = socket.create_server(('127.0.0.1', 0)); pairs = []
for i in range(2):
    c = socket.create_connection(l.getsockname()); pairs.append((c, l.accept()[0]))
(c, one), (other, s) = pairs
c.sendall(b'unread')
for with_ in [other, l, one]:
    try: one.setsockopt(socket.IPPROTO_TCP, 0x5450, with_.fileno()); print('spliced')
    except OSError as error: print(error.strerror)
assert one.recv(6) == b'unread'; other.sendall(b'goes on'); assert s.recv(7) == b'goes on'";
    for service in [Service::embedded(), Service::direct(), Service::kernel()] {
        let answers = service.accelerated("python3 -c").arg(script).run(60).ok();
        assert_eq!(answers, "Operation not supported\nOperation not supported\nInvalid argument\n");
        let status = service.status();
        let groups = status["flow_groups"].as_array().unwrap();
        assert!(groups.iter().all(|group| group["contract_violations"] == 0), "{status}");
    }
}
