//! What a service logs, and how that changes while it runs.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::linux::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;
use towpath_system_tests::{Finished, Program, Service, bin, until};

fn log_level(service: &Service, line: &str) -> Finished {
    let program = Program::new(&[bin("towpath")]).arg("log-level").arg("--socket").arg(&service.socket);
    line.split_whitespace().fold(program, Program::arg).run(20)
}

/// Changes the policy, which the service logs on the level `info`.
fn change(service: &Service, rule: &str) {
    let program = Program::new(&[bin("towpath")]).arg("policy").arg("--socket").arg(&service.socket).arg("add");
    rule.split_whitespace().fold(program, Program::arg).run(20).ok();
}

#[test]
fn a_running_service_logs_what_its_operator_wants_from_now_on() {
    let service = Service::start(|program| program.arg("--admit").arg("all"));
    assert_eq!(log_level(&service, "").ok(), "info\n");
    change(&service, "deny connect port 1");
    assert_eq!(log_level(&service, "warn").ok(), "warn (started with info)\n");
    change(&service, "deny connect port 2");
    assert_eq!(
        log_level(&service, "warn,towpath_service=debug").ok(),
        "warn,towpath_service=debug (started with info)\n"
    );
    change(&service, "deny connect port 3");
    let shown: Value = serde_json::from_str(&log_level(&service, "--reset --json").ok()).unwrap();
    assert_eq!((&shown["filter"], &shown["start"]), (&"info".into(), &"info".into()));
    log_level(&service, "error");
    let empty = Program::new(&[bin("towpath")]).arg("log-level").arg("").arg("--socket").arg(&service.socket).run(20);
    assert_eq!(empty.ok(), "info\n", "an empty filter is the default");
    let log = service.running.output();
    for (port, there) in [(1, true), (2, false), (3, true)] {
        assert_eq!(log.contains(&format!("policy changed: add \"deny connect port {port}\"")), there, "{log}");
    }
    let wrong = log_level(&service, "verbos");
    assert!(wrong.code == 3 && wrong.err.contains("\"verbos\" selects no lines; write a level"), "{}", wrong.err);
    assert_eq!(log_level(&service, "").ok(), "info\n", "nothing has changed");
    let other = Program::new(&[bin("towpath")]).arg("log-level").arg("off").arg("--socket").arg(&service.socket);
    let other = other.user(65_534).run(20);
    assert!(
        other.code == 3 && other.err.contains("only the service's own user and root may see and set"),
        "{}",
        other.err
    );
}

#[test]
fn lines_for_the_journal_have_their_priority() {
    let mut service = Service::embedded();
    service.running.stop();
    // The next service writes to the same file, and is told that this is the journal.
    let about = fs::metadata(service.scratch.path("service.log")).unwrap();
    let stream = format!("{}:{}", about.st_dev(), about.st_ino());
    service.start_again(|program| program.env("JOURNAL_STREAM", &stream));
    let log = service.running.output();
    assert!(log.lines().all(|line| line.starts_with("<6>")) && log.contains("serving version="), "{log}");
}

/// What a journal has got so far: the fields of each line.
struct Journal {
    socket: UnixDatagram,
    lines: Vec<BTreeMap<String, String>>,
}

impl Journal {
    fn at(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        Self { socket, lines: Vec::new() }
    }
    /// Those whose text has this, and that come from this process.
    fn with(&mut self, text: &str, pid: i32) -> Vec<BTreeMap<String, String>> {
        let mut message = vec![0; 1 << 18];
        while let Ok(length) = self.socket.recv(&mut message) {
            let mut rest = &message[..length];
            let mut line = BTreeMap::new();
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let length = u64::from_le_bytes(rest[end + 1..end + 9].try_into().unwrap()) as usize;
                let value = String::from_utf8_lossy(&rest[end + 9..end + 9 + length]).into_owned();
                line.insert(String::from_utf8_lossy(&rest[..end]).into_owned(), value);
                rest = &rest[end + 10 + length..];
            }
            self.lines.extend((!line.is_empty()).then_some(line));
        }
        let pid = pid.to_string();
        let wanted =
            |line: &&BTreeMap<String, String>| line["MESSAGE"].contains(text) && line.get("SYSLOG_PID") == Some(&pid);
        self.lines.iter().filter(wanted).cloned().collect()
    }
}

/// A mount namespace in which a socket of the test's own is the journal's.
const WITH_JOURNAL: &str = "mount -t tmpfs none /run && mkdir -p /run/systemd/journal && touch /run/systemd/journal/socket \
    && mount --bind \"$0\" /run/systemd/journal/socket && exec \"$@\"";

#[test]
fn the_journal_gets_each_line_with_its_fields_also_of_a_process_that_dies() {
    let mut service = Service::embedded();
    service.running.stop();
    let place = service.scratch.path("journal");
    let mut journal = Journal::at(&place);
    let log = service.scratch.path("journal-stream.log");
    let about = fs::File::create(&log).unwrap().metadata().unwrap();
    let stream = format!("{}:{}", about.st_dev(), about.st_ino());
    let program = Program::new(&[bin("towpath")]).arg("serve").arg("--socket").arg(&service.socket);
    let under = ["unshare", "-m", "sh", "-c", WITH_JOURNAL].map(std::ffi::OsStr::new);
    let program = program.under(&[&under[..], &[place.as_os_str()]].concat()).env("JOURNAL_STREAM", &stream);
    service.running = program.start(&log);
    until("it serves", 300, || !journal.with("serving version=", service.running.worker()).is_empty());
    let first = service.running.worker();
    // A line of the process that serves, with what is known of it.
    change(&service, "deny connect port 1");
    service.accelerated("python3 -c").arg("import socket; socket.socket().connect_ex(('127.0.0.1', 1))").run(30).ok();
    until("the refusal is there", 60, || !journal.with("policy: connect", first).is_empty());
    let line = journal.with("policy: connect", first).remove(0);
    for (name, value) in [("STACK", "fast"), ("UID", "0"), ("PROGRAM", "python3")] {
        let found = line.get(&format!("TOWPATH_{name}"));
        assert!(found.is_some_and(|found| found.starts_with(value)), "{name}: {line:?}");
    }
    assert_eq!((&*line["PRIORITY"], &*line["SYSLOG_IDENTIFIER"]), ("4", "towpathd"));
    assert!(line["TOWPATH_CORE"].parse::<u32>().is_ok() && line.contains_key("TOWPATH_THREAD"), "{line:?}");
    // It dies, and its lines are there; the next one's, too, and the broker's.
    rustix::process::kill_process(rustix::process::Pid::from_raw(first).unwrap(), rustix::process::Signal::KILL)
        .unwrap();
    let broker = service.running.pid();
    until("its end is there", 60, || !journal.with("the process that serves has died", broker).is_empty());
    until("another one serves", 60, || {
        let now = service.running.worker();
        now != first && !journal.with("serving version=", now).is_empty()
    });
    // Nothing is left of the way without fields.
    assert_eq!(fs::read_to_string(&log).unwrap(), "");
    // Without the process that writes to the journal the service serves on.
    let children = fs::read_to_string(format!("/proc/{broker}/task/{broker}/children")).unwrap();
    let is_relay =
        |pid: &&str| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "towpathd-log\n");
    let relay = children.split_whitespace().find(is_relay).expect("the process that writes to the journal");
    let relay = rustix::process::Pid::from_raw(relay.parse().unwrap()).unwrap();
    rustix::process::kill_process(relay, rustix::process::Signal::KILL).unwrap();
    change(&service, "deny connect port 2");
    assert_eq!(service.status()["stack"], "fast");
    service.running.stop();
}
