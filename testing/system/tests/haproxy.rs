//! haproxy under `towpath run --splice`: what it passes on by splice(2) goes on without it, and it goes on counting. Clients and
//! servers are plain Linux programs on the far side of one veth.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use towpath_system_tests::module::{STEPS, Spliced, module, object, spliced};
use towpath_system_tests::namespace::{CLIENT, SERVER};
use towpath_system_tests::program::Running;
use towpath_system_tests::{Lab, Program, Scratch, Service, bin, require_program, until, until_or};

/// Ports of haproxy in TCP mode, of one with short time-outs, and in HTTP mode. The servers' ports are 100 higher.
const PORTS: [u16; 3] = [7000, 7001, 7002];
const MB: u64 = 1 << 20;

/// Servers and clients. Where a step waits for a word of the test, a file of that name in the directory gives it.
const PEERS: &str = r"
import hashlib, http.client, http.server, os, socket, sys, threading, time
what, directory, MB = sys.argv[1], sys.argv[2], 1 << 20
def exchange(s, who, sends=True):
    # Until the test has seen what it waits for.
    sent, received, count = hashlib.sha256(), hashlib.sha256(), [0, 0]
    def send():
        while not told('enough'):
            if not sends: time.sleep(0.01); continue
            block = os.urandom(MB)
            s.sendall(block); sent.update(block); count[0] += MB
        s.shutdown(socket.SHUT_WR)
    sender = threading.Thread(target=send); sender.start()
    while more := s.recv(1 << 16): received.update(more); count[1] += len(more)
    sender.join()
    say(who, count[0], sent.hexdigest(), count[1], received.hexdigest())
def end_of(s, who):
    try:
        while s.recv(1 << 16): pass
        say(who, 'saw the end')
    except ConnectionResetError: say(who, 'was reset')
def drip(s, who):
    # What is worth it, then a little now and then, and then nothing more.
    def send():
        s.sendall(bytes(MB))
        while not told('stop'):
            try: s.sendall(bytes(1000))
            except OSError: return
            time.sleep(0.05)
    threading.Thread(target=send, daemon=True).start()
    exact(s, MB); say(who, 'has what is worth it')
    end_of(s, who)
def push(s, who):
    if who == 'client': s.sendall(bytes(MB))
    else: exact(s, MB)
    end_of(s, who)
def serve(s):
    what = exact(s, 8).decode().strip()
    s.sendall(b'yes')
    if what == 'exchange': exchange(s, 'server')
    elif what == 'download': exchange(s, 'server')
    elif what in ('echo', 'quiet'):
        try:
            while more := s.recv(1 << 16): s.sendall(more)
            say('server saw the end')
        except ConnectionResetError: say('server was reset')
    elif what == 'drip': drip(s, 'server')
    elif what == 'push': push(s, 'server')
    s.close()
class Pages(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def log_message(self, *words): pass
    def do_POST(self):
        body = self.rfile.read(int(self.headers['content-length']))
        self.send_response(200); self.send_header('content-length', str(len(body))); self.end_headers(); self.wfile.write(body)
if what == 'serve':
    threading.Thread(target=http.server.ThreadingHTTPServer(('', 7102), Pages).serve_forever, daemon=True).start()
    def listen(port):
        l = socket.create_server(('', port), backlog=64)
        while True: threading.Thread(target=serve, args=(l.accept()[0],)).start()
    threading.Thread(target=listen, args=(7100,)).start(); threading.Thread(target=listen, args=(7101,)).start(); say('ready')
    threading.Event().wait()
if what == 'http':
    c = http.client.HTTPConnection('10.77.0.1', 7002, 60)
    for turn in range(6):
        body = os.urandom(8 * MB)
        c.request('POST', '/', body); assert c.getresponse().read() == body; say('client has page', turn)
    wait_for('enough'); sys.exit()
s = socket.create_connection(('10.77.0.1', 7001 if what == 'drip' else 7000), 60); s.settimeout(None)
s.sendall(what.ljust(8).encode()); assert exact(s, 3) == b'yes'; say('asked')
if what == 'exchange': exchange(s, 'client')
elif what == 'download': exchange(s, 'client', False)
elif what in ('echo', 'quiet'):
    def echo():
        block = os.urandom(MB)
        sender = threading.Thread(target=s.sendall, args=(block,)); sender.start()
        assert exact(s, MB) == block; sender.join()
    while not told('enough'): echo()
    say('echoed')
    if what == 'echo': wait_for('more'); echo(); say('echoed more')
    end_of(s, 'client')
elif what == 'drip': drip(s, 'client')
elif what == 'push': push(s, 'client')
";

const CONFIG: &str = "
global
    nbthread 2
    stats socket DIR/haproxy.sock mode 666 level admin
    log stdout format raw local0
defaults
    mode tcp
    option splice-request
    option splice-response
    option contstats
    timeout connect 60s
    timeout client 10m
    timeout server 10m
    log global
listen whole
    bind SERVER:7000
    option tcplog
    server s CLIENT:7100
listen short
    bind SERVER:7001
    option tcplog
    timeout client 12s
    timeout server 12s
    server s CLIENT:7101
listen pages
    bind SERVER:7002
    mode http
    option httplog
    server s CLIENT:7102
";

/// A proxy that has a thread for each direction. It waits for room by an epoll instance of its own. Or it says how many
/// seconds of CPU it takes in three after a MB in one direction. The other one is in no epoll instance then.
const THREADS: &str = r"
import os, select, socket, sys, threading, time
moved = [0]
def say(*words): print(' '.join(map(str, words)) + '\n', end='', flush=True)
def one_way(source, target):
    (unread, pipe), bytes = os.pipe(), select.epoll()
    room = select.poll() if sys.argv[2] == 'one' else select.epoll()
    bytes.register(source, select.EPOLLIN); room.register(target, select.EPOLLOUT)
    sum, copied = 0, False
    while True:
        bytes.poll()
        # One of two descriptors is closed.
        if not copied and os.path.exists(sys.argv[3]): os.close(os.dup(source.fileno())); copied = True; say('copied')
        try: count = os.splice(source.fileno(), pipe, 1 << 30, flags=os.SPLICE_F_NONBLOCK)
        except BlockingIOError: continue
        if count == 0: break
        moved[0] += count; sum += count
        while count:
            room.poll()
            try: count -= os.splice(unread, target.fileno(), count, flags=os.SPLICE_F_NONBLOCK)
            except BlockingIOError: pass
    say('moved', sum)
    try: target.shutdown(socket.SHUT_WR)
    except OSError: pass
l = socket.create_server(('', 7000), backlog=64)
say('ready')
while True:
    client = l.accept()[0]; server = socket.create_connection((sys.argv[1], 7100))
    if sys.argv[2] == 'one': server.sendall(client.recv(8)); client.sendall(server.recv(3))
    for s in client, server: s.setblocking(False)
    ways = ((client, server), (server, client))[:1 if sys.argv[2] == 'one' else 2]
    for way in ways: threading.Thread(target=one_way, args=way, daemon=True).start()
    if len(ways) == 2: continue
    while moved[0] < 1 << 20: time.sleep(0.01)
    before = time.process_time(); time.sleep(3); say('used', time.process_time() - before)
";

/// Servers, and a proxy before them, mostly haproxy.
struct Stage {
    lab: Lab,
    service: Service,
    server: Running,
    proxy: Running,
}

impl Stage {
    /// `splice`: the ports that the operator names.
    fn new(splice: Option<&str>) -> Self {
        require_program("haproxy", "haproxy");
        let stage = Self::before(splice, |scratch| {
            let config = scratch.path("haproxy.cfg");
            let text = CONFIG.replace("DIR", &scratch.0.display().to_string());
            std::fs::write(&config, text.replace("SERVER", SERVER).replace("CLIENT", CLIENT)).unwrap();
            ["/usr/sbin/haproxy", "-db", "-f"]
                .map(String::from)
                .into_iter()
                .chain([config.display().to_string()])
                .collect()
        });
        until("haproxy", 60, || stage.service.scratch.path("haproxy.sock").exists());
        stage
    }

    /// With the proxy that has threads, for `both` directions or `one`.
    fn with_threads(directions: &str) -> Self {
        let words = ["python3", "-u", "-c", THREADS, CLIENT, directions].map(String::from);
        let copy = |scratch: &Scratch| scratch.path("copy").display().to_string();
        let mut stage = Self::before(Some("7000"), |scratch| words.into_iter().chain([copy(scratch)]).collect());
        stage.proxy.wait_for("ready", 60);
        stage
    }

    /// With the proxy that `words` runs.
    fn before(splice: Option<&str>, words: impl FnOnce(&Scratch) -> Vec<String>) -> Self {
        let lab = Lab::new();
        let service = Service::on_interface(&lab);
        let object = object(&service.scratch, "splice", None);
        module(&service, &format!("add splice {}", object.display())).run(60).ok();
        let scratch = &service.scratch;
        let mut server = lab.on_client(peers("serve", &service)).start(scratch.path("server.log"));
        server.wait_for("ready", 30);
        let run = Program::new(&[bin("towpath")]).arg("run").arg("--require").arg("--socket").arg(&service.socket);
        let run = splice.into_iter().fold(run, |run, ports| run.arg("--splice").arg(ports));
        let run = words(scratch).into_iter().fold(run.arg("--"), Program::arg);
        let proxy = lab.on_server(run).start(scratch.path("proxy.log"));
        Self { lab, service, server, proxy }
    }

    fn client(&self, what: &str, log: &str) -> Running {
        let mut client = self.lab.on_client(peers(what, &self.service)).start(self.service.scratch.path(log));
        if what != "http" {
            client.wait_for("asked", 60);
        }
        client
    }

    /// Gives the peers a word for which they wait.
    fn tell(&self, word: &str) {
        std::fs::write(self.service.scratch.path(word), "").unwrap();
    }

    /// Payload bytes that have gone on past haproxy, by the port to which they were sent.
    fn sent_on(&self) -> BTreeMap<u16, u64> {
        let mut sums = BTreeMap::new();
        for Spliced { from, to, by_module, by_kernel } in spliced(&self.service) {
            let port = if PORTS.contains(&to) { to } else { from - 100 };
            *sums.entry(port).or_default() += by_module + by_kernel;
        }
        sums
    }

    /// How many pairs are handed over.
    fn pairs(&self) -> usize {
        spliced(&self.service).len() / 2
    }

    fn await_spliced(&self, port: u16, bytes: u64) {
        until("the hand-over", 120, || self.sent_on().get(&port).is_some_and(|sum| *sum >= bytes));
    }

    fn ask(&self, line: &str) -> String {
        let script = "import socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.sendall(sys.argv[2].encode() + b'\\n'); print(s.makefile().read())";
        let program = Program::line("python3 -c").arg(script).arg(self.service.scratch.path("haproxy.sock")).arg(line);
        program.run(60).ok()
    }
}

fn peers(what: &str, service: &Service) -> Program {
    Program::line("python3 -u -c").arg(format!("{STEPS}{PEERS}")).arg(what).arg(&service.scratch.0)
}

/// What one side of exchanges says: bytes and hashes of both directions, as the other side has them.
fn exchanged(output: &str, who: &str) -> BTreeSet<[String; 4]> {
    let of = if who == "server" { [2, 3, 0, 1] } else { [0, 1, 2, 3] };
    let numbers = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        of.map(|at| words[at].to_owned())
    };
    output.lines().filter_map(|line| line.strip_prefix(who)).map(numbers).collect()
}

/// Each peer has what the other one has sent. Returns the bytes from clients and those from servers.
fn whole(stage: &Stage, clients: &mut [Running]) -> [u64; 2] {
    clients.iter_mut().for_each(|client| client.wait_end(120));
    let sent: BTreeSet<_> = clients.iter().flat_map(|client| exchanged(&client.output(), "client")).collect();
    assert_eq!(sent.len(), clients.len(), "a client has failed");
    until("the servers' ends", 60, || exchanged(&stage.server.output(), "server").len() == clients.len());
    assert_eq!(exchanged(&stage.server.output(), "server"), sent);
    [0, 2].map(|at| sent.iter().map(|numbers| numbers[at].parse::<u64>().unwrap()).sum())
}

/// Waits until haproxy has counted so many bytes in and out.
fn counts(stage: &Stage, expected: [u64; 2]) {
    let found = || {
        let (counted, sessions) = (counted(stage, "whole"), stage.ask("show sess all"));
        format!("expected {expected:?}, found {counted:?}\n{sessions}{}", stage.proxy.output())
    };
    until_or("haproxy's numbers", 60, || counted(stage, "whole") == expected, found);
}

/// The numbers of a listener in `show stat`: bytes in, and bytes out.
fn counted(stage: &Stage, listener: &str) -> [u64; 2] {
    let table = stage.ask("show stat");
    let line = table.lines().find(|line| line.starts_with(&format!("{listener},FRONTEND,"))).expect("the listener");
    let fields: Vec<&str> = line.split(',').collect();
    [8, 9].map(|at| fields[at].parse().expect("a number"))
}

#[test]
fn an_exchange_goes_on_past_haproxy_which_counts_each_byte() {
    let stage = Stage::new(Some("7000,7001"));
    let client = stage.client("exchange", "client.log");
    stage.await_spliced(PORTS[0], 40 * MB);
    stage.tell("enough");
    let [up, down] = whole(&stage, &mut [client]);
    // The question has 8 bytes, and the answer 3.
    counts(&stage, [up + 8, down + 3]);
    let log = format!(" {} -- ", down + 3);
    until("the log", 60, || stage.proxy.output().contains(&log));
}

#[test]
fn a_download_goes_on_past_haproxy_although_the_client_says_nothing() {
    let stage = Stage::new(Some("7000"));
    let client = stage.client("download", "client.log");
    stage.await_spliced(PORTS[0], 40 * MB);
    stage.tell("enough");
    let [up, down] = whole(&stage, &mut [client]);
    counts(&stage, [up + 8, down + 3]);
}

#[test]
fn several_of_both_threads_are_handed_over_at_once() {
    let stage = Stage::new(Some("7000"));
    let what = |number| if number % 2 == 0 { "exchange" } else { "download" };
    let mut clients: Vec<_> =
        (0..8).map(|number| stage.client(what(number), &format!("client-{number}.log"))).collect();
    until("all hand-overs", 120, || stage.pairs() == clients.len());
    stage.tell("enough");
    let [up, down] = whole(&stage, &mut clients);
    counts(&stage, [up + 8 * 8, down + 3 * 8]);
}

#[test]
fn nothing_is_lost_between_two_threads_that_serve_one_direction_each() {
    let stage = Stage::with_threads("both");
    let mut clients: Vec<_> = (0..4).map(|number| stage.client("exchange", &format!("client-{number}.log"))).collect();
    until("all hand-overs", 120, || stage.pairs() == clients.len());
    stage.tell("enough");
    whole(&stage, &mut clients);
}

#[test]
fn the_close_of_one_of_two_descriptors_changes_nothing() {
    let stage = Stage::with_threads("both");
    let client = stage.client("exchange", "client.log");
    until("the hand-over", 120, || stage.pairs() == 1);
    stage.tell("copy");
    until("the copies", 60, || stage.proxy.output().matches("copied").count() == 2);
    stage.await_spliced(PORTS[0], stage.sent_on()[&PORTS[0]] + 20 * MB);
    stage.tell("enough");
    let [up, down] = whole(&stage, &mut [client]);
    for sum in [up + 8, down + 3] {
        let line = format!("moved {sum}\n");
        until("the program's sums", 60, || stage.proxy.output().contains(&line));
    }
}

#[test]
fn a_proxy_that_watches_one_direction_alone_does_not_spin() {
    let mut stage = Stage::with_threads("one");
    let _client = stage.client("push", "client.log");
    stage.proxy.wait_for("used", 60);
    let output = stage.proxy.output();
    let used = output.lines().find_map(|line| line.strip_prefix("used ")).and_then(|used| used.parse::<f64>().ok());
    assert!(used.unwrap() < 0.5, "{output}");
}

#[test]
fn haproxys_administrator_ends_both_connections() {
    let mut stage = Stage::new(Some("7000"));
    let mut client = stage.client("echo", "client.log");
    stage.await_spliced(PORTS[0], MB);
    stage.tell("enough");
    stage.tell("more");
    client.wait_for("echoed more", 60);
    let sessions = stage.ask("show sess");
    let session = sessions.lines().find(|line| line.contains("fe=whole")).expect("the session");
    let id = session.split(':').next().unwrap();
    stage.ask(&format!("shutdown session {id}"));
    client.wait_for("client was reset", 60);
    stage.server.wait_for("server was reset", 60);
}

#[test]
fn connections_end_with_haproxy() {
    let mut stage = Stage::new(Some("7000"));
    let mut client = stage.client("quiet", "client.log");
    stage.await_spliced(PORTS[0], MB);
    stage.tell("enough");
    client.wait_for("echoed", 60);
    stage.proxy.signal(libc::SIGKILL);
    client.wait_for("client was reset", 60);
    stage.server.wait_for("server was reset", 60);
}

#[test]
fn haproxys_time_out_begins_anew_while_bytes_pass_and_ends_both_when_none_do() {
    let mut stage = Stage::new(Some("7001"));
    let mut client = stage.client("drip", "client.log");
    client.wait_for("client has what is worth it", 60);
    stage.server.wait_for("server has what is worth it", 60);
    until("the hand-over", 120, || stage.pairs() == 1);
    // A peer sends 20,000 bytes in a second at most. So both need twice the time-out at least.
    let before = stage.sent_on()[&PORTS[1]];
    stage.await_spliced(PORTS[1], before + 1_000_000);
    let log = stage.proxy.output();
    assert!(!log.contains("short short/s"), "{log}");
    stage.tell("stop");
    client.wait_for("client was reset", 120);
    stage.server.wait_for("server was reset", 60);
    until("the log", 60, || {
        let is_over = |line: &str| [" cD ", " sD "].iter().any(|why| line.contains(why));
        stage.proxy.output().lines().any(|line| line.contains("short short/s") && is_over(line))
    });
}

#[test]
fn without_the_operators_word_nothing_is_handed_over() {
    let stage = Stage::new(None);
    expect_nothing_spliced(&stage, "7000 is not named");
    let other = Stage::new(Some("7001"));
    expect_nothing_spliced(&other, "another port is named");
}

fn expect_nothing_spliced(stage: &Stage, why: &str) {
    let mut client = stage.client("echo", "client.log");
    until("40 MB", 60, || counted(stage, "whole")[0] > 40 * MB);
    assert!(stage.sent_on().is_empty(), "{why}");
    stage.tell("enough");
    stage.tell("more");
    client.wait_for("echoed more", 60);
    assert!(stage.sent_on().is_empty(), "{why}");
}

#[test]
fn http_is_not_handed_over_even_if_its_port_is_named() {
    let stage = Stage::new(Some("7000-7002"));
    let mut client = stage.client("http", "client.log");
    client.wait_for("client has page 5", 120);
    assert!(stage.sent_on().is_empty());
    stage.tell("enough");
    client.wait_end(60);
}
