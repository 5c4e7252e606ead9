//! What happens to the interface that a service serves: queues that are made, a carrier that goes, a program that is taken off.
//! Interfaces that cannot be served are refused with cause and remedy.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::namespace::{CLIENT, SERVER};
use towpath_system_tests::program::Running;
use towpath_system_tests::{Lab, Program, Scratch, Service, bin, require_program, until};

/// Echoes all connections.
const ECHO: &str = r#"
import selectors, socket, sys
listener = socket.socket(); listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((sys.argv[1], 7000)); listener.listen(64); print("ready", flush=True)
wait = selectors.DefaultSelector(); wait.register(listener, selectors.EVENT_READ)
while True:
    for key, _ in wait.select():
        if key.fileobj is listener: wait.register(listener.accept()[0], selectors.EVENT_READ); continue
        data = key.fileobj.recv(65536)
        if data: key.fileobj.sendall(data)
        else: wait.unregister(key.fileobj); key.fileobj.close()
"#;

/// Opens connections, and has each echoed whenever a line comes. A connection that gets no answer, or a reset, is named.
const CLIENTS: &str = r#"
import socket, sys
def opened():
    s = socket.create_connection((sys.argv[1], 7000), timeout=60); s.settimeout(60); return s
def works(s):
    try:
        for size in (1, 1000, 30000):
            data = bytes([size % 251]) * size; s.sendall(data); got = b""
            while len(got) < size:
                more = s.recv(65536)
                if not more: return "ended"
                got += more
            if got != data: return "garbled"
        return ""
    except OSError as error: return str(error)
all = [opened() for _ in range(40)]
print("opened", [w for w in map(works, all) if w], flush=True)
for line in sys.stdin:
    all += [opened() for _ in range(40)]
    print("again", [w for w in map(works, all) if w], flush=True)
"#;

fn echo(lab: &Lab, service: &Service) -> Running {
    let server = service.accelerated("python3 -c").arg(ECHO).arg(SERVER);
    let mut server = lab.on_server(server).start(service.scratch.path("echo.log"));
    server.wait_for("ready", 30);
    server
}

/// Sets the queues of both ends. With XDP on the server's side the client's may not have more to send on than that has to
/// receive.
fn set_queues(lab: &Lab, queues: u32) {
    let line = format!("ethtool -L eth1 rx {queues} tx {queues}");
    let ends = [lab.on_server(Program::line(&line)), lab.on_client(Program::line(&line))];
    for end in ends {
        end.run(20).ok();
    }
}

#[test]
fn queues_that_are_made_while_the_interface_is_served_lose_nothing() {
    let lab = Lab::with_queues(4);
    require_program("ethtool", "ethtool");
    set_queues(&lab, 1);
    let mut service = Service::on_interface_by(&lab, "xdp");
    let link = service.status()["interfaces"][0].clone();
    assert_eq!((&link["queues"], &link["sockets"]), (&1.into(), &1.into()), "{link}");
    let _server = echo(&lab, &service);
    lab.drop_kernel_tcp();
    let (fifo, log) = (service.scratch.path("go"), service.scratch.path("clients.log"));
    Program::line("mkfifo").arg(&fifo).run(10).ok();
    let script = format!("exec 3<>{0}; python3 -c \"$1\" {SERVER} < {0}", fifo.display());
    let clients = Program::new(&["sh", "-c", &script, "sh", CLIENTS]);
    let mut clients = lab.on_client(clients).start(log);
    clients.wait_for("opened []", 120);
    set_queues(&lab, 4);
    // A veth runs no program on the new queues before it is put there anew.
    until("the program on the new queues", 60, || service.status()["interfaces"][0]["program"] != link["program"]);
    std::fs::write(&fifo, "go\n").unwrap();
    clients.wait_for("again []", 120);
    let link = service.status()["interfaces"][0].clone();
    assert_eq!((&link["queues"], &link["sockets"]), (&4.into(), &1.into()), "{link}");
    assert!(link["strays"].as_u64().unwrap() > 0, "no frame came on another queue: {link}");
    assert!(link["trouble"].as_str().unwrap().contains("start the service again"), "{link}");
    service.running.wait_for("4 receive queues, and 1 had it", 30);
    let said = service.running.output().matches("4 receive queues").count();
    assert_eq!(said, 1, "{}", service.running.output());
    let doctor = Program::new(&[bin("towpath")]).arg("doctor").arg("--socket").arg(&service.socket);
    let out = doctor.run(30).out;
    assert!(out.contains("4 receive queues"), "{out}");
}

#[test]
fn the_state_of_the_interface_is_shown_and_its_troubles_are_said_once() {
    let lab = Lab::new();
    let mut service = Service::on_interface(&lab);
    let link = service.status()["interfaces"][0].clone();
    for (key, value) in [("up", true), ("carrier", true), ("steering", true)] {
        assert_eq!(link[key], value, "{link}");
    }
    assert_eq!(link["mode"], "packet", "{link}");
    assert!(link["trouble"].is_null() && link["program"].as_u64().is_some(), "{link}");
    let page = || Program::new(&[bin("towpath")]).arg("status").arg("--socket").arg(&service.socket).run(20).ok();
    assert!(page().contains("eth1: up, packet (program "), "{}", page());
    let ip = |namespace: &str, line: &str| Program::line(&format!("ip -n {namespace} {line}")).run(10).ok();
    let shows = |key: &str, value: bool| until(key, 30, || service.status()["interfaces"][0][key] == value);
    ip(&lab.client, "link set eth1 down");
    shows("carrier", false);
    assert!(page().contains("up without carrier"), "{}", page());
    ip(&lab.server, "link set eth1 down");
    shows("up", false);
    let doctor = Program::new(&[bin("towpath")]).arg("doctor").arg("--json").arg("--socket").arg(&service.socket);
    let found: serde_json::Value = serde_json::from_str(&doctor.run(30).out).expect("doctor");
    let check = found["host"].as_array().expect("checks").iter().find(|check| check["check"] == "interface");
    let check = check.unwrap_or_else(|| panic!("no check of the interface: {found}"));
    assert!(check["state"] == "fail" && check["remedy"] == "`ip link set eth1 up`", "{check}");
    ip(&lab.server, "link set eth1 up");
    ip(&lab.client, "link set eth1 up");
    shows("carrier", true);
    service.running.wait_for("all is well with the interface again", 30);
    ip(&lab.server, "link delete eth1");
    until("its end", 30, || {
        service.status()["interfaces"][0]["trouble"].as_str().is_some_and(|why| why.contains("has gone"))
    });
    service.running.wait_for("eth1 has gone", 30);
    for trouble in ["eth1 has no carrier", "eth1 is down", "eth1 has gone"] {
        // The other end of a veth pulls the carrier once more while it is deleted.
        assert!((1..=2).contains(&service.running.output().matches(trouble).count()), "{}", service.running.output());
    }
}

#[test]
fn an_interface_that_is_made_again_is_served_without_a_restart() {
    let lab = Lab::with_queues(2);
    let service = Service::on_interface(&lab);
    let _server = echo(&lab, &service);
    lab.drop_kernel_tcp();
    let (fifo, log) = (service.scratch.path("go"), service.scratch.path("clients.log"));
    Program::line("mkfifo").arg(&fifo).run(10).ok();
    let script = format!("exec 3<>{0}; python3 -c \"$1\" {SERVER} < {0}", fifo.display());
    let clients = Program::new(&["sh", "-c", &script, "sh", CLIENTS]);
    let mut clients = lab.on_client(clients).start(log);
    clients.wait_for("opened []", 120);
    let trouble = || service.status()["interfaces"][0]["trouble"].clone();
    let ip = |line: &str| Program::line(&format!("ip -n {} {line}", lab.server)).run(10).ok();
    for round in 1..=3 {
        if round < 3 {
            ip("link delete eth1");
            until("its end", 30, || trouble().as_str().is_some_and(|why| why.contains("has gone")));
            lab.join(2);
        } else {
            // Another name is no other interface.
            let _ = ["link set eth1 down", "link set eth1 name eth7", "link set eth7 up"].map(ip);
        }
        until("the interface again", 30, || trouble().is_null());
        // The connections that there were go on, and new ones come. The kernel has no part in it.
        std::fs::write(&fifo, "go\n").unwrap();
        until("all connections", 120, || clients.output().matches("again []").count() == round || !clients.alive());
        assert!(clients.alive(), "{}", clients.output());
    }
    // A process that serves may begin while there is no interface.
    ip("link delete eth7");
    let worker = service.running.worker();
    // SAFETY: `kill` takes numbers and no memory. The process is the service's, whose broker waits for it.
    unsafe { libc::kill(worker, libc::SIGKILL) };
    let status = || Program::new(&[bin("towpath")]).arg("status").arg("--socket").arg(&service.socket).run(20);
    until("another worker serves", 60, || service.running.worker() != worker && status().code == 0);
    assert!(trouble().as_str().is_some_and(|why| why.contains("has gone")), "{}", trouble());
    lab.join(2);
    until("the interface for that one", 30, || trouble().is_null());
    let log = service.running.output();
    assert!(!log.contains("ERROR towpath_towpathd"), "{log}");
    // Connections from here go over it, too.
    lab.on_server(Program::line("nft flush ruleset")).run(10).ok();
    let far =
        "import socket; l = socket.create_server(('', 7001)); print('ready', flush=True); l.accept()[0].send(b'x')";
    let mut far = lab.on_client(Program::line("python3 -c").arg(far)).start(service.scratch.path("far.log"));
    far.wait_for("ready", 30);
    let near = format!("import socket; assert socket.create_connection(('{CLIENT}', 7001), 30).recv(1) == b'x'");
    let before = service.segments();
    lab.on_server(service.accelerated("python3 -c").arg(near)).run(60).ok();
    assert!(service.segments() > before, "the kernel has carried it");
}

#[test]
fn interfaces_that_cannot_be_served_are_refused_with_cause_and_remedy() {
    let (lab, scratch) = (Lab::new(), Scratch::new("refused"));
    let ip = |line: &str| Program::line(&format!("ip -n {} {line}", lab.server)).run(10).ok();
    ip("tuntap add dev tun7 mode tun");
    ip("link set tun7 up");
    ip("link add br7 type bridge");
    ip("link set br7 up");
    let cases = [
        ("lo", "loopback device", "without --interface"),
        ("tun7", "no Ethernet header", "tap device"),
        ("br7", "is a bridge", "no port of a bridge"),
    ];
    for (interface, cause, remedy) in cases {
        let serve = Program::new(&[bin("towpath")]).arg("serve").arg("--interface").arg(interface).arg("--socket");
        let ended = lab.on_server(serve.arg(scratch.path("a.sock"))).run(20);
        assert_eq!(ended.code, 1, "{interface}: {}", ended.err);
        assert!(ended.err.contains(cause) && ended.err.contains(remedy), "{interface}: {}", ended.err);
    }
}

/// A wire between a tap of this namespace and one of the other.
const WIRE: &str = r#"
import fcntl, os, select, struct, sys
CLONE_NEWNET = 0x40000000
def tap():
    fd = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(fd, 0x400454ca, struct.pack("16sH22x", b"tap7", 0x0002 | 0x1000)); return fd
near = tap()
import ctypes
other = os.open("/run/netns/" + sys.argv[1], os.O_RDONLY)
assert ctypes.CDLL(None, use_errno=True).setns(other, CLONE_NEWNET) == 0
far = tap()
print("ready", flush=True)
while True:
    for fd in select.select([near, far], [], [])[0]:
        try: os.write(far if fd == near else near, os.read(fd, 70000))
        except OSError: pass
"#;

#[test]
fn a_tap_device_is_served() {
    require_program("ip", "iproute2");
    let (lab, scratch) = (Lab::new(), Scratch::new("tap"));
    let wire = Program::line("python3 -c").arg(WIRE).arg(&lab.client);
    let mut wire = lab.on_server(wire).start(scratch.path("wire.log"));
    wire.wait_for("ready", 20);
    for (namespace, number) in [(&lab.server, 1), (&lab.client, 2)] {
        for line in [format!("addr add 10.79.7.{number}/24 dev tap7"), "link set tap7 up".into()] {
            Program::line(&format!("ip -n {namespace} {line}")).run(10).ok();
        }
    }
    let service =
        Service::start(|program| lab.on_server(program.arg("--interface").arg("tap7").arg("--admit").arg("all")));
    let server = service.accelerated("python3 -c").arg(ECHO).arg("10.79.7.1");
    let mut server = lab.on_server(server).start(service.scratch.path("echo.log"));
    server.wait_for("ready", 30);
    let clients = Program::line("python3 -c").arg(CLIENTS).arg("10.79.7.1").under(&["timeout", "120"]);
    let out = lab.on_client(clients).run(120).ok();
    assert_eq!(out.trim(), "opened []");
    assert!(service.segments() > 100, "the stack has not carried it");
}

/// Detaches the program of this number, as an operator may (`bpftool link detach`). Interfaces of other namespaces may have the
/// index of ours, so that does not tell its link.
const DETACH: &str = r#"
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def bpf(command, attributes):
    buffer = ctypes.create_string_buffer(attributes, 128)
    return libc.syscall(321, command, buffer, 128), buffer
wanted, number, detached = int(sys.argv[1]), 0, 0
while True:
    # BPF_LINK_GET_NEXT_ID, BPF_LINK_GET_FD_BY_ID, BPF_OBJ_GET_INFO_BY_FD, BPF_LINK_DETACH
    failed, buffer = bpf(31, struct.pack("II", number, 0))
    if failed: break
    number = struct.unpack_from("I", buffer.raw, 4)[0]
    fd, _ = bpf(30, struct.pack("I", number))
    if fd < 0: continue
    info = ctypes.create_string_buffer(128)
    bpf(15, struct.pack("IIQ", fd, 128, ctypes.addressof(info)))
    # struct bpf_link_info: type (BPF_LINK_TYPE_XDP, BPF_LINK_TYPE_TCX), id, program.
    kind, _, program = struct.unpack_from("III", info.raw)
    if kind in (6, 11) and program == wanted:
        detached += bpf(34, struct.pack("I", fd))[0] == 0
    os.close(fd)
print("detached", detached)
"#;

#[test]
fn a_program_that_is_taken_off_is_attached_again() {
    what_is_taken_off_is_attached_again("xdp");
}

#[test]
fn a_program_of_packet_sockets_that_is_taken_off_is_attached_again() {
    what_is_taken_off_is_attached_again("packet");
}

fn what_is_taken_off_is_attached_again(port: &str) {
    let lab = Lab::with_queues(2);
    let service = Service::on_interface_by(&lab, port);
    let _server = echo(&lab, &service);
    lab.drop_kernel_tcp();
    let (fifo, log) = (service.scratch.path("go"), service.scratch.path("clients.log"));
    Program::line("mkfifo").arg(&fifo).run(10).ok();
    let script = format!("exec 3<>{0}; python3 -c \"$1\" {SERVER} < {0}", fifo.display());
    let clients = Program::new(&["sh", "-c", &script, "sh", CLIENTS]);
    let mut clients = lab.on_client(clients).start(log);
    clients.wait_for("opened []", 120);
    for round in 1..=2 {
        let program = service.status()["interfaces"][0]["program"].as_u64().expect("the program's number");
        let out = Program::line("python3 -c").arg(DETACH).arg(program.to_string()).run(30).ok();
        assert_eq!(out.trim(), "detached 1");
        let link = || service.status()["interfaces"][0].clone();
        until("the program again", 30, || {
            let link = link();
            link["steering"] == true && link["trouble"].is_null() && link["sockets"] == link["queues"]
        });
        let said = || service.running.output().matches("it is attached again").count();
        until("the program again", 30, || said() >= round);
        std::fs::write(&fifo, "go\n").unwrap();
        until("all connections", 120, || clients.output().matches("again []").count() == round || !clients.alive());
        assert!(clients.alive(), "{}", clients.output());
    }
    let log = service.running.output();
    assert!(!log.contains("ERROR towpath_towpathd"), "{log}");
}

#[test]
fn an_interface_that_moves_away_and_back_is_served_again() {
    let lab = Lab::with_queues(2);
    let service = Service::on_interface(&lab);
    let _server = echo(&lab, &service);
    lab.drop_kernel_tcp();
    let clients = || lab.on_client(Program::line("python3 -c").arg(CLIENTS).arg(SERVER).under(&["timeout", "120"]));
    let ip = |line: &str| Program::line(&format!("ip {line}")).run(10).ok();
    for round in 1..=2 {
        assert_eq!(clients().run(120).ok().trim(), "opened []");
        let away = format!("tpa-{}", std::process::id());
        ip(&format!("netns add {away}"));
        ip(&format!("-n {} link set eth1 netns {away}", lab.server));
        until("its end", 30, || service.running.output().matches("eth1 has gone").count() == round);
        ip(&format!("-n {away} link set eth1 netns {}", lab.server));
        ip(&format!("netns del {away}"));
        ip(&format!("-n {} addr add {SERVER}/24 dev eth1", lab.server));
        ip(&format!("-n {} link set eth1 up", lab.server));
        let again = || service.running.output().matches("serving the interface interface=").count();
        until("the interface again", 30, || again() == round);
    }
    assert_eq!(clients().run(120).ok().trim(), "opened []");
    let log = service.running.output();
    assert!(!log.contains("ERROR towpath_towpathd"), "{log}");
}

/// A worker that begins finds it under the name that it has then, and with all its queues.
#[test]
fn an_interface_with_a_new_name_is_shown_by_it_and_served_as_before() {
    let lab = Lab::with_queues(3);
    let service = Service::on_interface(&lab);
    let ip = |line: &str| Program::line(&format!("ip -n {} {line}", lab.server)).run(10).ok();
    let shown = || {
        let status = service.status();
        let link = &status["interfaces"][0];
        let port = status["flow_groups"][0]["ports"][1]["name"].clone();
        [link["name"].clone(), link["queues"].clone(), link["sockets"].clone(), link["trouble"].clone(), port]
    };
    let under = |name: &str| [name.into(), 3.into(), 3.into(), serde_json::Value::Null, name.into()];
    assert_eq!(shown(), under("eth1"));
    let _ = ["link set eth1 down", "link set eth1 name eth7"].map(ip);
    until("the trouble by its name", 30, || shown()[3].as_str().is_some_and(|why| why.contains("ip link set eth7 up")));
    ip("link set eth7 up");
    until("the new name", 30, || shown() == under("eth7"));
    let worker = service.running.worker();
    // SAFETY: `kill` takes numbers and no memory. The process is the service's, whose broker waits for it.
    unsafe { libc::kill(worker, libc::SIGKILL) };
    let status = || Program::new(&[bin("towpath")]).arg("status").arg("--socket").arg(&service.socket).run(20);
    until("another worker serves", 60, || service.running.worker() != worker && status().code == 0);
    assert_eq!(shown(), under("eth7"));
    let log = service.running.output();
    assert!(
        log.contains("serving an interface interface=\"eth7\"") && !log.contains("ERROR towpath_towpathd"),
        "{log}"
    );
    let _server = echo(&lab, &service);
    lab.drop_kernel_tcp();
    let clients = Program::line("python3 -c").arg(CLIENTS).arg(SERVER).under(&["timeout", "120"]);
    assert_eq!(lab.on_client(clients).run(120).ok().trim(), "opened []");
}
