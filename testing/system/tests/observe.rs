//! Observation tools: sockets and counters during a transfer, a listener without accepts, and drops by reason.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use towpath_system_tests::namespace::{CLIENT, SERVER};
use towpath_system_tests::{Lab, Program, Service, require_program, until};

/// The counter `name` among the drops, of all flow groups and the slow path.
fn drops(service: &Service, name: &str) -> u64 {
    let status = service.status();
    let count =
        |tally: &Value| tally["drops"][name].as_u64().unwrap_or_else(|| panic!("no drop reason {name:?}: {tally}"));
    status["flow_groups"].as_array().expect("flow groups").iter().map(count).sum::<u64>() + count(&status["slow"])
}

fn listed(service: &Service, what: impl Fn(&Value) -> bool) -> Option<Value> {
    service.sockets()["sockets"].as_array().expect("sockets").iter().find(|s| what(s)).cloned()
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no number {name:?} in {value}"))
}

/// Sends without end over one connection. The peer reads all.
const SINK: &str = "import socket\nl=socket.socket();l.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1)\n\
    l.bind(('127.0.0.1',7301));l.listen(7);print('up',flush=True)\nc,_=l.accept()\nwhile c.recv(65536): pass";
const SOURCE: &str = "import socket\nc=socket.create_connection(('127.0.0.1',7301),60)\nprint('up',flush=True)\n\
    while True: c.sendall(b'x'*100000)";

#[test]
fn a_transfer_is_seen_in_sockets_and_status() {
    let service = Service::embedded();
    let mut sink = service.accelerated("python3 -c").arg(SINK).start(service.scratch.path("sink.log"));
    sink.wait_for("up", 20);
    let mut source = service.accelerated("python3 -c").arg(SOURCE).start(service.scratch.path("source.log"));
    source.wait_for("up", 20);

    // The filters of ss, as a shell gives them.
    let shown = |filter: &[&str]| {
        let list =
            Program::new(&[towpath_system_tests::bin("towpath")]).arg("sockets").arg("--socket").arg(&service.socket);
        filter.iter().fold(list, Program::arg).run(30)
    };
    let lines = |filter: &[&str]| shown(filter).ok().lines().filter(|line| line.contains("7301")).count();
    assert_eq!(lines(&["state", "established", "( dport = :7301 )"]), 1);
    assert_eq!(lines(&["state", "listening"]), 1);
    assert_eq!(lines(&["-a", "sport = :7301 or dport = :7301"]), 3);
    let wrong = shown(&["dport", "="]);
    assert!(wrong.code == 2 && wrong.err.contains("dport: a port is missing"), "{}", wrong.err);

    let listener = || listed(&service, |s| s["state"] == "LISTEN").expect("a listener");
    until("the connection is accepted", 20, || number(&listener(), "recv_q") == 0);
    let listener = listener();
    assert_eq!(listener["local"], "127.0.0.1:7301", "{listener}");
    assert_eq!(number(&listener, "send_q"), 7, "{listener}");
    assert_eq!(listener["tcp"], Value::Null, "{listener}");
    assert_eq!(number(&listener, "pid"), sink.pid() as u64, "{listener}");

    let sender = || listed(&service, |s| s["peer"] == "127.0.0.1:7301").expect("the sending end");
    until("a million bytes are acknowledged", 20, || number(&sender()["tcp"], "bytes_acked") > 1_000_000);
    let first = sender();
    assert_eq!(first["state"], "ESTAB", "{first}");
    assert!(first["program"].as_str().expect("program").starts_with("python3"), "{first}");
    assert_eq!(
        (number(&first, "uid"), first["flow_group"].as_u64()),
        (u64::from(rustix::process::geteuid().as_raw()), Some(0))
    );
    let tcp = &first["tcp"];
    assert!(number(tcp, "mss") >= 536 && number(tcp, "cwnd") >= number(tcp, "mss"), "{tcp}");
    assert!((1..10_000_000).contains(&number(tcp, "srtt_us")), "{tcp}");
    assert_eq!((tcp["timestamps"].as_bool(), tcp["wscale"].as_bool()), (Some(true), Some(true)), "{tcp}");
    assert!(number(tcp, "segs_out") > 0 && number(tcp, "segs_in") > 0, "{tcp}");
    for name in ["rttvar_us", "ssthresh", "snd_wnd", "unacked", "retrans", "bytes_received"] {
        number(tcp, name);
    }
    // Some readings find bytes in flight, because the sender always has more.
    until("something is queued", 20, || number(&sender(), "send_q") > 0);
    until("more is acknowledged", 20, || number(&sender()["tcp"], "bytes_acked") > number(tcp, "bytes_acked"));

    let status = service.status();
    let group = &status["flow_groups"][0];
    for stage in ["pre", "protocol", "post", "deliver", "egress"] {
        assert!(number(&group["stages"], stage) > 10, "{stage}: {group}");
    }
    assert_eq!(number(group, "flows"), 2, "{group}");
    assert!(number(group, "busy_us") > 0, "{group}");
    let port = &group["ports"][0];
    assert_eq!(port["name"], "memory");
    assert!(number(port, "rx_frames") > 10 && number(port, "tx_frames") > 10, "{port}");
    assert_eq!(number(&group["drops"], "tcp_checksum") + number(group, "contract_violations"), 0, "{group}");
    assert_eq!(number(&status["slow"], "opened"), 2, "both ends: {}", status["slow"]);
    let clients = status["clients"].as_array().expect("clients");
    assert_eq!(clients.len(), 2, "{status}");
    assert!(clients.iter().any(|c| number(c, "slots") == 2), "listener and connection: {status}");

    // The human form has the same words.
    let human = |command: &str| {
        let program = Program::new(&[towpath_system_tests::bin("towpath")]).arg(command).arg("--socket");
        program.arg(&service.socket).run(20).ok()
    };
    assert!(human("sockets").contains("cwnd:"), "{}", human("sockets"));
    assert!(human("status").contains("egress"), "{}", human("status"));
}

/// Sends five frames of each kind of `argv[4:]` to port 6501 of the server. They belong to a connection, by their ports:
/// all others are the kernel's.
const FRAMES: &str = r#"
import socket, struct, sys
mac = lambda text: bytes.fromhex(text.replace(':', ''))
ours, theirs, source, target = mac(open('/sys/class/net/eth1/address').read().strip()), mac(sys.argv[1]), sys.argv[2], sys.argv[3]
def total(data):
    data += b'\0' * (len(data) % 2)
    s = sum(struct.unpack('!%dH' % (len(data) // 2), data))
    while s >> 16: s = (s & 0xffff) + (s >> 16)
    return ~s & 0xffff
connection = socket.create_connection((target, 6501), 60)
sport = connection.getsockname()[1]
def frame(flags=16, offset=5, src=source, ipsum=0, tcpsum=0, cut=0, grow=0):
    tcp = struct.pack('!HHIIBBHHH', sport, 6501, 1, 0, offset << 4, flags, 1000, 0, 0) + b'hello'
    pseudo = socket.inet_aton(src) + socket.inet_aton(target) + struct.pack('!BBH', 0, 6, len(tcp))
    tcp = tcp[:16] + struct.pack('!H', total(pseudo + tcp) ^ tcpsum) + tcp[18:]
    ip = struct.pack('!BBHHHBBH', 0x45, 0, 20 + len(tcp) + grow, 1, 0, 64, 6, 0) + socket.inet_aton(src) + socket.inet_aton(target)
    ip = ip[:10] + struct.pack('!H', total(ip) ^ ipsum) + ip[12:]
    whole = theirs + ours + b'\x08\x00' + ip + tcp
    return whole[:len(whole) - cut]
kinds = {
    'tcp_checksum': frame(tcpsum=0x1234), 'ip_checksum': frame(ipsum=0x1234), 'truncated': frame(grow=100),
    'bad_header': frame(offset=4), 'bad_flags': frame(flags=3), 'kernels': frame(src='255.255.255.255'),
}
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind(('eth1', 0))
for kind in sys.argv[4:]:
    for _ in range(5): s.send(kinds[kind])
"#;

#[test]
fn bad_frames_are_counted_by_reason_and_harm_nothing() {
    require_program("redis-server", "redis-server");
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let line = format!("redis-server --bind {SERVER} --port 6501 --save --appendonly no --protected-mode no");
    let mut server =
        lab.on_server(service.accelerated(&line).dir(&service.scratch.0)).start(service.scratch.path("redis.log"));
    server.wait_for("Ready to accept connections", 20);
    let address = lab.on_server(Program::line("cat /sys/class/net/eth1/address")).run(10).ok();
    let send = |kind| {
        let send = Program::line("python3 -c").arg(FRAMES).arg(address.trim()).arg(CLIENT).arg(SERVER).arg(kind);
        lab.on_client(send).run(20).ok();
    };
    send("kernels");
    for kind in ["tcp_checksum", "ip_checksum", "truncated", "bad_header", "bad_flags"] {
        let before = drops(&service, kind);
        send(kind);
        let mut seen = 0;
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while seen < 5 && std::time::Instant::now() < end {
            seen = drops(&service, kind) - before;
        }
        assert_eq!(seen, 5, "{kind}: {}", service.status());
    }
    assert_eq!(
        lab.on_client(Program::line(&format!("redis-cli -h {SERVER} -p 6501 ping"))).run(20).ok().trim(),
        "PONG"
    );
    until("nothing is left of a connection", 20, || {
        listed(&service, |s| s["state"] == "ESTAB" || s["state"] == "SYN-RECV").is_none()
    });
}

#[test]
fn connects_are_completed_and_queued_although_nobody_accepts() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let server = format!(
        "import socket,time\ns=socket.socket();s.bind(('{SERVER}',6502));s.listen(16);print('up',flush=True)\ntime.sleep(100)"
    );
    let mut server =
        lab.on_server(service.accelerated("python3 -c").arg(server)).start(service.scratch.path("server.log"));
    server.wait_for("up", 20);
    let client = format!(
        "import socket,time\nk=[socket.create_connection(('{SERVER}',6502),60) for _ in range(10)]\n\
         [s.sendall(b'early') for s in k]\nprint('connected',flush=True)\ntime.sleep(100)"
    );
    let mut client = lab.on_client(Program::line("python3 -c").arg(client)).start(service.scratch.path("client.log"));
    client.wait_for("connected", 20);
    let listener = || listed(&service, |s| s["state"] == "LISTEN").expect("a listener");
    // The last acknowledgements of their handshakes may not have arrived yet.
    until("all ten are queued", 20, || number(&listener(), "recv_q") == 10);
    assert_eq!(number(&listener(), "send_q"), 16, "{}", listener());
    // One more than the backlog fits, as on Linux: the eleventh to the seventeenth. Of many more, some must not fit.
    let more = format!(
        "import socket\nk=[]\ntry:\n for n in range(40): k.append(socket.create_connection(('{SERVER}',6502),60 if n<7 else 0.4))\n\
         except OSError: pass\nprint(len(k))"
    );
    let out = lab.on_client(Program::line("python3 -c").arg(more)).run(30).ok();
    let fit: u32 = out.trim().parse().expect("a count");
    // If a peer's last ACK was dropped because the queue was full, the peer believes itself connected, as on Linux.
    assert!((7..40).contains(&fit), "{fit} more connections");
    assert!(number(&listener(), "recv_q") <= 17, "{}", listener());
    // The server's end resets the connections that it never accepted.
    server.signal(libc::SIGKILL);
    until("nothing is left of the connections", 20, || listed(&service, |s| s["state"] != "TIME-WAIT").is_none());
}
