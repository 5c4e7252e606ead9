//! What the broker holds of an interface stays when the process that serves dies, and goes with the service.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::PathBuf;
use towpath_system_tests::namespace::SERVER;
use towpath_system_tests::{Lab, Program, Service, bin, until};

/// Echoes the first bytes of each connection, and ends it.
const ECHO: &str = r#"
import selectors, socket, sys
listener = socket.socket(); listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((sys.argv[1], 7000)); listener.listen(512); print("ready", flush=True)
wait = selectors.DefaultSelector(); wait.register(listener, selectors.EVENT_READ)
while True:
    for key, _ in wait.select():
        try:
            if key.fileobj is listener: wait.register(listener.accept()[0], selectors.EVENT_READ); continue
            data = key.fileobj.recv(4096)
            if data: key.fileobj.sendall(data); continue
        except OSError: pass
        wait.unregister(key.fileobj); key.fileobj.close()
"#;

/// Connects again and again until a file is there. Nobody may refuse or reset it. It says how often it was answered.
const CONNECTS: &str = r#"
import os, socket, sys
answered, refused = 0, 0
while True:
    last = os.path.exists(sys.argv[2])
    try:
        s = socket.create_connection((sys.argv[1], 7000), timeout=30); s.settimeout(30)
        s.sendall(b"x"); assert s.recv(1) == b"x"; answered += 1
    except ConnectionRefusedError: refused += 1
    except OSError: pass
    if answered == 1: print("begun", flush=True)
    if last: break
print("answered", answered > 1, "refused", refused, flush=True)
"#;

/// The links of programs to interfaces that a process holds, and the frame memory of its queues.
fn held(process: i32) -> (BTreeSet<String>, BTreeSet<String>) {
    let all = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
    let (mut links, mut memories) = (BTreeSet::new(), BTreeSet::new());
    for descriptor in all {
        let name = std::fs::read_link(descriptor.path()).unwrap_or_default();
        let number = descriptor.file_name();
        let path: PathBuf = ["/proc", &process.to_string(), "fdinfo", number.to_str().unwrap()].iter().collect();
        let text = std::fs::read_to_string(path).unwrap_or_default();
        if ["xdp", "tcx"].iter().any(|kind| text.contains(&format!("link_type:\t{kind}"))) {
            links.extend(text.lines().find(|line| line.starts_with("link_id")).map(str::to_owned));
        }
        if name.as_os_str().as_encoded_bytes().starts_with(b"/memfd:towpath-frames") {
            memories.extend(text.lines().find(|line| line.starts_with("ino")).map(str::to_owned));
        }
    }
    (links, memories)
}

#[test]
fn a_worker_that_dies_leaves_link_and_sockets_to_the_next_and_nobody_is_refused() {
    what_a_worker_leaves_is_the_nexts("xdp");
}

#[test]
fn a_worker_that_dies_leaves_packet_sockets_to_the_next_and_nobody_is_refused() {
    what_a_worker_leaves_is_the_nexts("packet");
}

fn what_a_worker_leaves_is_the_nexts(port: &str) {
    let lab = Lab::new();
    let service = Service::on_interface_by(&lab, port);
    assert_eq!(service.status()["interfaces"][0]["steering"], true);
    let (broker, first) = (service.running.pid(), service.running.worker());
    let before = held(broker);
    assert_eq!((before.0.len(), before.1.len()), (1, 1), "{before:?}");
    assert!(held(first).0.is_empty(), "the worker has the link");
    let server = lab.on_server(service.accelerated("python3 -c").arg(ECHO).arg(SERVER));
    let mut server = server.start(service.scratch.path("echo.log"));
    server.wait_for("ready", 30);
    let stop = service.scratch.path("stop");
    let clients = lab.on_client(Program::line("python3 -c").arg(CONNECTS).arg(SERVER).arg(&stop));
    let mut clients = clients.start(service.scratch.path("clients.log"));
    clients.wait_for("begun", 30);
    let segments = service.segments();
    assert!(segments > 0, "the stack has carried nothing");
    // SAFETY: `kill` takes numbers and no memory. The process is the service's, whose broker waits for it.
    unsafe { libc::kill(first, libc::SIGKILL) };
    let serves = || {
        let status = Program::new(&[bin("towpath")]).arg("status").arg("--socket").arg(&service.socket);
        status.run(20).code == 0
    };
    until("another worker serves", 60, || {
        assert!(lab.is_served(), "the interface was given back");
        assert_eq!(held(broker).0, before.0, "another link");
        service.running.worker() != first && serves()
    });
    assert_eq!(held(broker), before);
    assert!(held(service.running.worker()).0.is_empty(), "the worker has inherited the link");
    // Its interface works: a new program is served by it.
    let link = service.status()["interfaces"][0].clone();
    assert!(link["steering"] == true && link["trouble"].is_null(), "{link}");
    std::fs::write(&stop, "").unwrap();
    clients.wait_end(60);
    assert!(clients.output().contains("answered True refused 0"), "{}", clients.output());
    server.signal(libc::SIGKILL);
    let server = lab.on_server(service.accelerated("python3 -c").arg(ECHO).arg(SERVER));
    let mut server = server.start(service.scratch.path("echo2.log"));
    server.wait_for("ready", 30);
    let once = lab.on_client(Program::line("python3 -c").arg(CONNECTS).arg(SERVER).arg(&stop));
    let out = once.run(60).ok();
    assert!(out.contains("refused 0"), "{out}");
    assert!(service.segments() > 0, "the sockets of the dead worker carry nothing for the next one");
    // Whoever is killed, nothing stays.
    service.running.signal(libc::SIGKILL);
    until("nothing is left on the interface", 30, || !lab.is_served());
}
