//! Modules with `--app` where connections begin in another way: after the worker's death, and by SYN cookies.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::module::{PORTS, asks, json, module, object};
use towpath_system_tests::namespace::SERVER;
use towpath_system_tests::program::Running;
use towpath_system_tests::{Lab, Program, Service, require_program, until};

/// A user other than root.
const OTHER: u32 = 23_451;

/// Servers of root on port 7000 and of the other user on 7001. Each has room for two half-open connections.
fn servers(lab: &Lab, service: &Service) -> [Running; 2] {
    [(0, 7000), (OTHER, 7001)].map(|(user, port)| {
        let script = format!(
            "import socket, threading
def talk(c):
    while c.recv(100): c.sendall(b'answer')
l = socket.create_server(('', {port}), backlog=2); print('ready', flush=True)
while True: threading.Thread(target=talk, args=(l.accept()[0],), daemon=True).start()"
        );
        let line = format!("setpriv --reuid {user} --regid {user} --clear-groups /usr/bin/python3 -u -c");
        let program = lab.on_server(service.accelerated(&line).arg(script));
        let mut running = program.start(service.scratch.path(&format!("server-{port}.log")));
        running.wait_for("ready", 30);
        running
    })
}

/// Modules that count: `all` has all frames, and `in` and `out` those of the other user's programs. A firewall drops theirs on
/// both ports, once it is told to.
fn add(service: &Service) {
    let ports = object(&service.scratch, "ports", Some(PORTS));
    let wall = object(&service.scratch, "firewall", None);
    module(service, &format!("add all {} --priority -1", ports.display())).run(60).ok();
    for (name, object, hook) in [("in", &ports, "ingress"), ("out", &ports, "egress"), ("wall", &wall, "ingress")] {
        let add = module(service, &format!("add {name} {} --hook {hook}", object.display()));
        add.arg("--app").arg(format!("user {OTHER}")).run(60).ok();
    }
}

/// Frames of other ports and of port 7001 that a module has had.
fn seen(service: &Service, name: &str) -> [u64; 2] {
    let seen = json(service, &format!("maps {name} seen dump"));
    [0, 1].map(|place| seen["elements"][place]["numbers"][0].as_u64().unwrap())
}

/// Both ports are asked until the stack has carried connections of each. The modules have had those of one of them.
fn chooses(lab: &Lab, service: &Service) {
    until("connections over the stack", 60, || {
        [7000, 7001].iter().for_each(|port| drop(asks(lab, *port)));
        seen(service, "all").iter().all(|frames| *frames > 2)
    });
    let had = ["in", "out"].map(|name| seen(service, name));
    assert!(had.iter().all(|[others, own]| *others == 0 && *own > 0), "{had:?} of {:?}", seen(service, "all"));
    for port in [7000, 7001] {
        module(service, &format!("maps wall blocked_ports set {port} 1")).run(30).ok();
    }
    assert_eq!((asks(lab, 7000), asks(lab, 7001)), ("answer".into(), "nothing".into()));
    for port in [7000, 7001] {
        module(service, &format!("maps wall blocked_ports delete {port}")).run(30).ok();
    }
}

#[test]
fn the_next_workers_modules_choose_the_same_programs_connections() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let _servers = servers(&lab, &service);
    add(&service);
    chooses(&lab, &service);
    for _ in 0..2 {
        let dead = service.running.worker();
        // SAFETY: the call takes integers. It is a child of the service that this test has started.
        assert_eq!(unsafe { libc::kill(dead, libc::SIGKILL) }, 0);
        until("another worker", 30, || service.running.worker() != dead && module(&service, "list").run(30).code == 0);
        // What the modules have counted begins anew.
        chooses(&lab, &service);
    }
}

#[test]
fn a_connection_that_a_syn_cookie_begins_is_its_listeners_from_the_first_segment_on() {
    let lab = Lab::new();
    require_program("nft", "nftables");
    let service = Service::on_interface(&lab);
    let _servers = servers(&lab, &service);
    add(&service);
    chooses(&lab, &service);
    // These get no answer to their SYNs, so their connections stay half open, and each listener is full.
    let rules = "add table inet deaf; add chain inet deaf in { type filter hook input priority 0; };
        add rule inet deaf in tcp sport { 7000, 7001 } tcp dport 20000-20063 drop;";
    lab.on_client(Program::new(&["nft", rules])).run(10).ok();
    let half = format!(
        "import socket, time
all = [socket.socket() for _ in range(32)]
for n, s in enumerate(all):
    s.setblocking(False); s.bind(('', 20000 + n)); s.connect_ex(('{SERVER}', 7000 + n % 2))
print('half open', flush=True); time.sleep(1000)"
    );
    let mut half = lab.on_client(Program::line("python3 -u -c").arg(half)).start(service.scratch.path("half.log"));
    half.wait_for("half open", 30);
    let cookies = |what: &str| service.status()["slow"][format!("syn_cookies_{what}")].as_u64().unwrap();
    until("SYNs that are answered with cookies", 30, || cookies("sent") > 0);
    let before = cookies("accepted");
    chooses(&lab, &service);
    assert!(cookies("accepted") >= before + 2, "{} after {before}", cookies("accepted"));
}
