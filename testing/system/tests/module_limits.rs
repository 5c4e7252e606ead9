//! The firewall module's limits of connections, at both hooks of a service.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use towpath_system_tests::module::{json, module, object};
use towpath_system_tests::namespace::{CLIENT, SERVER};
use towpath_system_tests::program::Running;
use towpath_system_tests::{Lab, Program, Service, until};

/// A server that answers each question, and ends when the client does.
const SERVE: &str = "
import socket, threading
def talk(c):
    try:
        while c.recv(100): c.sendall(b'answer')
    except OSError: pass
    c.close()
l = socket.create_server(('', 7000), backlog=100); print('ready', flush=True)
while True: threading.Thread(target=talk, args=(l.accept()[0],)).start()";

/// It does what stands in a file, line by line, and says how each line went. `open NAME [FROM]`: a connection, and a question on it.
/// `ask NAME`: another one. `close NAME`, `reset NAME`: they end it.
const CLIENT_SCRIPT: &str = "
import os, socket, struct, sys, time
all, done = {}, 0
def ask(name):
    try:
        all[name].sendall(b'question')
        return 'answer' if all[name].recv(100) == b'answer' else 'end'
    except TimeoutError: return 'nothing'
def do(word, name, source=''):
    if word == 'open':
        all[name] = socket.create_connection((sys.argv[2], 7000), 30, (source, 0) if source else None)
        all[name].settimeout(2)
        return ask(name)
    if word == 'ask': return ask(name)
    if word == 'reset': all[name].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    all.pop(name).close()
    return 'closed'
print('ready', flush=True)
while True:
    lines = open(sys.argv[1]).read().splitlines() if os.path.exists(sys.argv[1]) else []
    for line in lines[done:]: print(len(lines), line, do(*line.split()), flush=True)
    done = len(lines)
    time.sleep(0.01)";

/// A client on plain Linux, and what it is to do.
struct Client {
    running: Running,
    lines: Vec<String>,
    file: std::path::PathBuf,
}

impl Client {
    fn new(lab: &Lab, service: &Service) -> Self {
        let file = service.scratch.path("steps");
        let program = lab.on_client(Program::line("python3 -u -c").arg(CLIENT_SCRIPT).arg(&file).arg(SERVER));
        let mut running = program.start(service.scratch.path("client.log"));
        running.wait_for("ready", 30);
        Self { running, lines: Vec::new(), file }
    }

    /// Does this, and says how it went.
    fn does(&mut self, line: &str) -> String {
        self.lines.push(line.into());
        // It reads the file whole, or as it was.
        let next = self.file.with_extension("next");
        std::fs::write(&next, self.lines.join("\n")).unwrap();
        std::fs::rename(&next, &self.file).unwrap();
        let begin = format!("{} {line} ", self.lines.len());
        self.running.wait_for(&begin, 60);
        let said = self.running.output();
        said.lines().find_map(|said| said.strip_prefix(&begin)).unwrap().to_owned()
    }
}

fn serve(lab: &Lab, service: &Service) -> Running {
    let program = lab.on_server(service.accelerated("python3 -u -c").arg(SERVE));
    let mut running = program.start(service.scratch.path("server.log"));
    running.wait_for("ready", 30);
    running
}

fn refused(service: &Service) -> u64 {
    let dropped = json(service, "maps wall dropped dump");
    dropped["elements"][2]["numbers"].as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).sum()
}

/// The firewall at both hooks, which have the same connections.
fn add(service: &Service) {
    let firewall = object(&service.scratch, "firewall", None);
    module(service, &format!("add wall {}", firewall.display())).run(60).ok();
    let mut maps = String::new();
    for map in ["counting", "opening", "connections", "numbers", "hints"] {
        module(service, &format!("maps wall {map} pin")).run(30).ok();
        maps += &format!(" --map {map}={map}");
    }
    let sent: Value = json(service, &format!("add wall-sent {} --hook egress{maps}", firewall.display()));
    assert_eq!(sent["modules"][0]["compiled"], true, "{sent}");
}

fn limit(service: &Service, net: &str, most: u32) {
    module(service, &format!("maps wall limits set {net} {most}")).run(30).ok();
}

#[test]
fn an_address_has_so_many_connections_and_another_when_one_has_ended() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let _server = serve(&lab, &service);
    add(&service);
    let mut client = Client::new(&lab, &service);
    assert_eq!(client.does("open before"), "answer", "nothing is counted yet");
    limit(&service, "0.0.0.0/0", 2);
    module(&service, "maps wall counting set 0 1").run(30).ok();
    assert_eq!(["open a", "open b", "open c"].map(|line| client.does(line)), ["answer", "answer", "nothing"]);
    let first = refused(&service);
    assert!(first > 0);
    assert_eq!(["ask a", "ask b", "ask before"].map(|line| client.does(line)), ["answer"; 3], "others go on");
    // Its system sends what was refused again and again, and has a place when there is one.
    assert_eq!(client.does("close a"), "closed");
    until("the place", 60, || client.does("ask c") == "answer");
    // A reset ends one, too.
    assert_eq!(client.does("open d"), "nothing");
    assert_eq!(client.does("reset b"), "closed");
    until("the place", 60, || client.does("ask d") == "answer");
    // A network's limit goes before that of all.
    limit(&service, &format!("{CLIENT}/32"), 4);
    assert_eq!(["open e", "open f", "open g"].map(|line| client.does(line)), ["answer", "answer", "nothing"]);
    assert!(refused(&service) > first);
    // Of so many nobody counts each.
    limit(&service, &format!("{CLIENT}/32"), 16_385);
    assert_eq!(client.does("open h"), "answer");
    limit(&service, &format!("{CLIENT}/32"), 1);
    module(&service, "maps wall counting set 0 0").run(30).ok();
    assert_eq!(client.does("open i"), "answer", "nothing is counted any more");
    assert!(service.segments() > 0, "the stack has carried nothing");
}

/// SYNs from all over the world, and more of them from the client's own address than connections are counted; and segments of
/// connections that are not there.
const FORGE: &str = "
import random, socket, struct, sys
random.seed(7)
def checksum(data):
    total = sum(struct.unpack('!%dH' % (len(data) // 2), data))
    while total >> 16: total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
to, own = socket.inet_aton(sys.argv[1]), socket.inet_aton(sys.argv[2])
def send(source, port, flags):
    tcp = struct.pack('!HHIIBBHHH', port, 7000, random.getrandbits(32), random.getrandbits(32), 5 << 4, flags, 1000, 0, 0)
    sum = checksum(source + to + struct.pack('!BBH', 0, 6, len(tcp)) + tcp)
    ip = struct.pack('!BBHHHBBH', 0x45, 0, 0, 0, 0, 64, 6, 0) + source + to
    s.sendto(ip + tcp[:16] + struct.pack('!H', sum) + tcp[18:], (sys.argv[1], 0))
for i in range(20000):
    send(struct.pack('!BBH', 10, random.randrange(256), random.randrange(1, 65536)), random.randrange(1024, 65536), 2)
for port in range(20000, 21000):
    for flags in (2, 16, 24): send(own, port, flags)
print('forged')";

#[test]
fn forged_segments_take_no_place_of_anybody() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let _server = serve(&lab, &service);
    add(&service);
    limit(&service, "0.0.0.0/0", 2);
    module(&service, "maps wall counting set 0 1").run(30).ok();
    let mut client = Client::new(&lab, &service);
    assert_eq!(client.does("open a"), "answer");
    let forge = lab.on_client(Program::line("python3 -c").arg(FORGE).arg(SERVER).arg(CLIENT));
    assert_eq!(forge.run(120).ok().trim(), "forged");
    assert_eq!(["open b", "ask a", "open c"].map(|line| client.does(line)), ["answer", "answer", "nothing"]);
    let counted = json(&service, "maps wall connections dump");
    assert_eq!(counted["elements"].as_array().unwrap().len(), 2, "{counted}");
}
