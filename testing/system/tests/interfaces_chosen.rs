//! Interfaces that a pattern chooses, or the default routes: those that are there, and those that come and go.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::namespace::{CLIENT, CLIENT_TOO, SERVER, SERVER_TOO};
use towpath_system_tests::{Lab, Program, Service, bin, until};

fn ip(words: &str) {
    Program::line(&format!("ip {words}")).run(60).ok();
}

/// A service on what these words choose.
fn chosen(lab: &Lab, words: &[&str]) -> Service {
    Service::start(|program| {
        let words = words.iter().flat_map(|word| ["--interface", word]).chain(["--admit", "all"]);
        lab.on_server(words.fold(program, Program::arg))
    })
}

/// The interfaces in the status: the name of each, and whether it has a trouble.
fn interfaces(service: &Service) -> Vec<(String, String)> {
    let status = service.status();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    status["interfaces"].as_array().unwrap().iter().map(|one| (text(&one["name"]), text(&one["trouble"]))).collect()
}

fn names(service: &Service) -> Vec<String> {
    interfaces(service).into_iter().map(|(name, _)| name).collect()
}

/// This address answers a client.
fn answers(lab: &Lab, at: &str, from: &str) {
    let code = format!(
        "import socket\ns=socket.create_connection(('{at}',7711),timeout=60);s.sendall(b'hello\\n')\n\
         print(s.makefile().readline().strip())"
    );
    let said = lab.on_client(Program::new(&["python3", "-c", &code])).run(120).ok();
    assert_eq!(said.trim(), format!("{from} hello"));
}

fn echo(lab: &Lab, service: &Service) -> towpath_system_tests::program::Running {
    let code = "import socket,threading\nl=socket.create_server(('',7711));print('ready',flush=True)\n\
                def serve(c,a):\n for line in c.makefile('rb'): c.sendall(a[0].encode()+b' '+line)\n\
                while 1: threading.Thread(target=serve,args=l.accept(),daemon=True).start()";
    let program = lab.on_server(service.accelerated("python3 -c").arg(code));
    let mut running = program.start(service.scratch.path("echo"));
    running.wait_for("ready", 60);
    running
}

/// The stack answers there. An interface is in the status a moment before its SYNs are the stack's: until then the kernel has them.
fn carries(lab: &Lab, service: &Service, at: &str, from: &str) {
    let opened = || service.status()["slow"]["opened"].as_u64().unwrap();
    until("the stack has a connection", 60, || {
        let before = opened();
        answers(lab, at, from);
        opened() == before + 1
    });
}

#[test]
fn a_pattern_serves_what_matches_and_what_appears_later_until_it_goes() {
    let lab = Lab::new();
    let service = chosen(&lab, &["et[gh]*"]);
    assert_eq!(names(&service), ["eth1"], "lo and others do not match");
    let _echo = echo(&lab, &service);
    carries(&lab, &service, SERVER, CLIENT);
    lab.join_again();
    until("the second one is served", 60, || names(&service) == ["eth1", "eth2"]);
    carries(&lab, &service, SERVER_TOO, CLIENT_TOO);
    ip(&format!("-n {} link del eth1", lab.server));
    until("the first one has gone", 60, || names(&service) == ["eth2"]);
    carries(&lab, &service, SERVER_TOO, CLIENT_TOO);
    lab.join(1);
    until("it is served again", 60, || names(&service) == ["eth1", "eth2"]);
    carries(&lab, &service, SERVER, CLIENT);
}

#[test]
fn a_pattern_that_matches_nothing_waits_and_says_so() {
    let lab = Lab::new();
    let service = chosen(&lab, &["wan*", "default-route"]);
    let waiting = interfaces(&service);
    assert_eq!(names(&service), ["wan*", "default-route"], "one entry for each");
    assert!(waiting.iter().all(|(_, trouble)| trouble.contains("no interface that is up matches")), "{waiting:?}");
    let doctor = Program::new(&[bin("towpath")]).arg("doctor").arg("--socket").arg(&service.socket).run(120).out;
    assert!(doctor.contains("no interface that is up matches wan*"), "{doctor}");
    ip(&format!("-n {} route add default via {CLIENT} dev eth1", lab.server));
    until("the default route's is served", 60, || names(&service) == ["wan*", "eth1"]);
    let _echo = echo(&lab, &service);
    carries(&lab, &service, SERVER, CLIENT);
}

/// Its packets are the bridge's: to serve both would be to see them twice.
#[test]
fn a_port_of_a_bridge_is_not_chosen() {
    let lab = Lab::new();
    lab.join_again();
    ip(&format!("-n {} link add br0 type bridge", lab.server));
    ip(&format!("-n {} link set eth2 master br0", lab.server));
    let service = chosen(&lab, &["eth*"]);
    assert_eq!(names(&service), ["eth1"]);
}
