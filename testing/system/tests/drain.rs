//! `towpath stop --drain`: nothing new is accelerated, and the service ends when its connections have ended, or with the time.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use std::path::Path;
use towpath_system_tests::namespace::SERVER;
use towpath_system_tests::program::Running;
use towpath_system_tests::{Lab, Program, Service, bin, until};

/// The server's port.
const PORT: &str = "7904";

/// Holds a connection open until SIGTERM, and asks on it until then.
const HOLDING: &str = "
import signal, socket, sys, time
c = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60)
over = []
signal.signal(signal.SIGTERM, lambda *_: over.append(1))
while not over:
    c.sendall(b'word\\n')
    assert c.recv(64) == b'word\\n'
    print('answered', flush=True)
    time.sleep(0.05)
c.close()
print('closed', flush=True)
";

/// One connection, one word.
const ASKING: &str = "
import socket, sys
c = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60)
c.sendall(b'one\\n')
print(c.recv(64))
";

struct Host {
    lab: Lab,
    service: Service,
    _server: Running,
}

impl Host {
    fn new() -> Self {
        let lab = Lab::new();
        let service = Service::on_interface(&lab);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("lifecycle/serve.py");
        let line = format!("/usr/bin/python3 -u {} asyncio {PORT}", script.display());
        let mut server = lab.on_server(service.accelerated(&line)).start(service.scratch.path("server"));
        server.wait_for("ready", 60);
        Self { lab, service, _server: server }
    }

    /// A program of another host, or one of this host under the service.
    fn client(&self, far: bool, text: &str) -> Program {
        let program = if far {
            self.lab.on_client(Program::new(&["/usr/bin/python3", "-u", "-c", text]))
        } else {
            self.lab.on_server(self.service.accelerated("/usr/bin/python3 -u -c").arg(text))
        };
        program.arg(SERVER).arg(PORT)
    }

    fn hold(&self, far: bool) -> Running {
        let mut holding =
            self.client(far, HOLDING).start(self.service.scratch.path(if far { "far" } else { "joined" }));
        holding.wait_for("answered", 60);
        holding
    }

    fn stop(&self, words: &[&str]) -> Program {
        let stop = Program::new(&[bin("towpath")]).arg("stop").arg("--socket").arg(&self.service.socket);
        words.iter().fold(stop, |stop, word| stop.arg(word))
    }

    /// What the halves of the listener have accepted: the stack's, the kernel's.
    fn accepted(&self) -> (u64, u64) {
        let sockets = self.service.sockets();
        let listens = |socket: &&Value| socket["state"] == "LISTEN";
        let halves = &sockets["sockets"].as_array().unwrap().iter().find(listens).expect("a listener")["halves"];
        (halves["accelerated"].as_u64().unwrap(), halves["kernel"].as_u64().unwrap())
    }
}

#[test]
fn a_service_that_drains_accelerates_nothing_new_and_ends_with_its_last_connection() {
    let mut host = Host::new();
    let mut held = [host.hold(true), host.hold(false)];
    assert_eq!(host.accepted(), (2, 0));
    let mut stopping = host.stop(&["--drain", "600"]).start(host.service.scratch.path("stop"));
    stopping.wait_for("2 accelerated connections are left, for ", 60);
    for far in [true, false] {
        assert_eq!(host.client(far, ASKING).run(60).ok(), "b'one\\n'\n");
    }
    until("the kernel has accepted them", 60, || host.accepted() == (2, 2));
    // Those that were there before are served on.
    for one in &held {
        let before = one.output().matches("answered").count();
        until("another answer", 60, || one.output().matches("answered").count() > before);
    }
    assert!(stopping.alive());
    held[0].signal(libc::SIGTERM);
    held[0].wait_for("closed", 60);
    stopping.wait_for("1 accelerated connection is left, for ", 60);
    held[1].signal(libc::SIGTERM);
    stopping.wait_end(60);
    assert!(stopping.output().ends_with(" ends; no accelerated connection was left\n"), "{}", stopping.output());
    held[1].wait_for("closed", 60);
    host.service.running.wait_end(60);
    assert_eq!(host.client(true, ASKING).run(60).ok(), "b'one\\n'\n", "the server goes on");
}

#[test]
fn a_drain_ends_with_its_time_and_says_what_was_left() {
    let mut host = Host::new();
    let _held = host.hold(true);
    let said: Value = serde_json::from_str(&host.stop(&["--drain", "1", "--json"]).run(60).ok()).unwrap();
    assert_eq!((&said["connections"], &said["pid"]), (&1.into(), &host.service.running.pid().into()));
    host.service.running.wait_end(60);

    let mut host = Host::new();
    let _held = host.hold(true);
    let waiting = host.stop(&["--drain", "600"]).start(host.service.scratch.path("stop"));
    until("it drains", 60, || host.service.running.output().contains("draining: new sockets are the kernel's"));
    // Another command ends it at once.
    assert!(host.stop(&["--drain", "0"]).run(60).ok().ends_with(" ends; 1 accelerated connection is lost\n"));
    host.service.running.wait_end(60);
    drop(waiting);
}
