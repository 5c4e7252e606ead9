//! What a service logs, and how that changes while it runs.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use std::fs;
use std::os::linux::fs::MetadataExt;
use towpath_system_tests::{Finished, Program, Service, bin};

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
