//! `towpath events` and `towpath doctor --bundle`: what happened last, also in a worker process that has died.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use std::path::Path;
use towpath_system_tests::{Program, Scratch, Service, bin, require_program, until};

/// Connections that end in order, by a reset of the peer, and before they were established.
const PROGRAM: &str = "import socket, struct
server = socket.create_server(('127.0.0.1', PORT))
def pair():
    client = socket.create_connection(('127.0.0.1', PORT))
    return client, server.accept()[0]
client, accepted = pair()
client.sendall(b'x'); assert accepted.recv(1) == b'x'
accepted.close(); assert client.recv(1) == b''; client.close()
client, accepted = pair()
client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); client.close()
try: accepted.recv(1); raise SystemExit('no reset')
except ConnectionResetError: pass
";

fn towpath(words: &str, socket: &Path) -> Program {
    let program = Program::new(&[bin("towpath")]);
    words.split(' ').fold(program, Program::arg).arg("--socket").arg(socket)
}

fn events(socket: &Path) -> Value {
    serde_json::from_str(&towpath("events --json", socket).run(30).ok()).unwrap()
}

/// Kind, reason and own port of each event.
fn all(threads: &Value) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let threads = threads.as_array().unwrap().iter();
    let events = threads.flat_map(|thread| thread["events"].as_array().unwrap());
    events.map(|event| (text(&event["kind"]), text(&event["reason"]), text(&event["local"]))).collect()
}

fn has(all: &[(String, String, String)], kind: &str, reason: &str, local: &str) -> bool {
    all.iter().any(|(one, why, at)| one == kind && why.contains(reason) && at.contains(local))
}

#[test]
fn ends_of_connections_and_their_reasons_outlive_the_worker_process() {
    require_program("/usr/bin/python3", "python3");
    let mut service = Service::start(|program| program.arg("--direct").arg("false").arg("--admit").arg("all"));
    let program = format!("PORT = 7821\n{PROGRAM}");
    service.accelerated("/usr/bin/python3 -c").arg(&program).run(60).ok();
    let expected = [
        ("client", "", ""),
        ("connect", "", ""),
        ("established", "", ":7821"),
        ("close", "", ""),
        ("end", "both ends have closed", ":7821"),
        ("end", "the peer has reset it", ":7821"),
        ("end", "the application has reset it", ""),
        ("message", "a valid RST came", ""),
    ];
    until("all is recorded", 30, || {
        let all = all(&events(&service.socket)["threads"]);
        expected.iter().all(|(kind, reason, local)| has(&all, kind, reason, local))
    });
    let page = towpath("events -n 1000", &service.socket).run(30).ok();
    assert!(page.contains("accepted, client 0 slot") && page.contains("127.0.0.1:7821 - 127.0.0.1:"), "{page}");
    assert!(events(&service.socket)["before"].as_array().unwrap().is_empty());

    let typo = towpath("events --thread typo", &service.socket).run(30);
    assert!(typo.code == 1 && typo.err.contains("write one of fast-0"), "{typo:?}");

    let other = towpath("events", &service.socket).user(65534).run(30);
    let refused = "only the service's own user and root may see its events";
    assert!(other.code == 3 && other.err.contains(refused), "{other:?}");

    // One that dies leaves them to the next, and the log has the last.
    let worker = service.running.worker();
    Program::line(&format!("kill -KILL {worker}")).run(10).ok();
    until("another serves", 60, || {
        towpath("events --json", &service.socket).run(30).code == 0 && service.running.worker() != worker
    });
    let before = all(&events(&service.socket)["before"]);
    for (kind, reason, local) in expected {
        assert!(has(&before, kind, reason, local), "{kind} {reason} is missing in {before:?}");
    }
    assert!(towpath("events --before", &service.socket).run(30).ok().contains("the peer has reset it"));
    assert!(!towpath("events", &service.socket).run(30).ok().contains("the peer has reset it"));
    service.running.wait_for("s ago: over: the peer has reset it", 20);
}

#[test]
fn a_bundle_has_what_the_service_tells_under_other_addresses_and_names_what_is_missing() {
    require_program("/usr/bin/python3", "python3");
    let service = Service::embedded();
    service.accelerated("/usr/bin/python3 -c").arg(format!("PORT = 7823\n{PROGRAM}")).run(60).ok();
    let scratch = Scratch::new("bundle");
    let file = scratch.path("report.tar.gz");
    // What others could read, and may have open, is replaced.
    Program::line("install -m 666 /dev/null").arg(&file).run(10).ok();
    let bundle = |socket: &Path, more: &str| {
        let line = format!("doctor --bundle {} --json{more}", file.display());
        let manifest = towpath(&line, socket).run(60).ok();
        serde_json::from_str::<Value>(&manifest).unwrap()
    };
    // It logs elsewhere, so this is another's.
    std::fs::OpenOptions::new().write(true).create_new(true).open(service.socket.with_extension("log")).unwrap();
    let manifest = bundle(&service.socket, " --anonymous");
    assert!(!manifest["files"].to_string().contains("service/log.txt"), "{manifest}");
    assert!(manifest["missing"].to_string().contains(".log is not where process"), "{manifest}");
    let files: Vec<&str> = manifest["files"].as_array().unwrap().iter().map(|file| file.as_str().unwrap()).collect();
    for wanted in [
        "doctor.txt",
        "towpath.json",
        "host/cpuinfo.txt",
        "service/status.json",
        "service/sockets.json",
        "service/configuration.json",
        "service/events.txt",
        "service/metrics.txt",
        "service/process_status.txt",
    ] {
        assert!(files.contains(&wanted), "{wanted} is missing: {manifest}");
    }
    let listed = Program::line("tar -tzf").arg(&file).run(30).ok();
    assert!(files.iter().all(|file| listed.contains(file)) && listed.contains("/manifest.json"), "{listed}");
    let configuration =
        Program::line("tar -xzOf").arg(&file).arg("--wildcards").arg("*/configuration.json").run(30).ok();
    assert!(configuration.contains("\"direct\"") && configuration.contains("\"false\""), "{configuration}");
    let mode = Program::line("stat -c %a").arg(&file).run(10).ok();
    assert_eq!(mode.trim(), "600");

    // Without a service there is what the host tells.
    let absent = scratch.path("none.sock");
    let manifest = bundle(&absent, "");
    let missing = manifest["missing"].to_string();
    assert!(
        missing.contains("no Towpath service") && manifest["files"].to_string().contains("doctor.txt"),
        "{manifest}"
    );
}
