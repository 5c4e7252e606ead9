//! Every JSON document of the command line has the number of its schema, whatever the command is and however it ends.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use towpath_system_tests::{Program, Scratch, Service, bin};

/// What a command is given here. It need not succeed: a failure is a document, too. `SOCKET`, `FILE` and `NEW` stand for paths.
const COMMANDS: &[(&str, &str)] = &[
    ("sockets", "sockets -a --socket SOCKET"),
    ("status", "status --socket SOCKET"),
    ("capture", "capture -w NEW --duration 10ms --socket SOCKET"),
    ("module", "module --socket SOCKET list"),
    ("module-add", "module --socket SOCKET add x /dev/null"),
    ("module-list", "module --socket SOCKET list"),
    ("module-stats", "module --socket SOCKET stats"),
    ("module-maps", "module --socket SOCKET maps x"),
    ("module-maps-dump", "module --socket SOCKET maps x y dump"),
    ("module-maps-set", "module --socket SOCKET maps x y set 00 00"),
    ("module-maps-delete", "module --socket SOCKET maps x y delete 00"),
    ("module-maps-pin", "module --socket SOCKET maps x y pin"),
    ("module-pins", "module --socket SOCKET pins"),
    ("module-unpin", "module --socket SOCKET unpin x"),
    ("module-trace", "module --socket SOCKET trace x"),
    ("module-rm", "module --socket SOCKET rm x"),
    ("policy", "policy --socket SOCKET list"),
    ("policy-list", "policy --socket SOCKET list --rules"),
    ("policy-add", "policy --socket SOCKET add deny connect port 25"),
    ("policy-insert", "policy --socket SOCKET insert 1 deny connect port 26"),
    ("policy-delete", "policy --socket SOCKET delete 1"),
    ("policy-default", "policy --socket SOCKET default allow"),
    ("policy-replace", "policy --socket SOCKET replace FILE"),
    ("policy-diff", "policy --socket SOCKET diff FILE"),
    ("policy-flush", "policy --socket SOCKET flush"),
    ("policy-test", "policy --socket SOCKET test connect to 10.0.0.1 port 25"),
    ("move", "move --to host --socket SOCKET"),
    ("check-config", "check-config FILE"),
    ("reload", "reload --socket SOCKET"),
    ("log-level", "log-level debug --socket SOCKET"),
    ("reset", "reset --port 25 --socket SOCKET"),
    ("events", "events --socket SOCKET"),
    ("doctor", "doctor"),
    ("doctor", "doctor --bundle NEW --socket SOCKET"),
    ("doctor", "doctor --bundle /dev/null --socket SOCKET"),
    ("unit", "unit list"),
    ("unit-enable", "unit enable no-such-unit.service"),
    ("unit-disable", "unit disable no-such-unit.service"),
    ("unit-list", "unit list"),
    ("cores", "cores --interface no-such-if"),
    ("cores-plan", "cores plan --interface no-such-if"),
    ("cores-observe", "cores observe --interface no-such-if"),
    ("cores-advise", "cores advise --interface no-such-if"),
    ("cores-enforce", "cores enforce --interface no-such-if"),
    ("cores-status", "cores status"),
    ("cores-explain", "cores explain"),
    ("cores-replay", "cores replay FILE"),
    ("cores-restore", "cores restore"),
    ("cores-set", "cores set 1 --socket SOCKET"),
    ("version", "version"),
    ("stop", "stop --socket SOCKET"),
];
/// Those that must succeed here: an error alone would show little.
const SUCCEED: [&str; 16] = [
    "events",
    "log-level",
    "sockets",
    "status",
    "capture",
    "module-list",
    "module-pins",
    "policy-list",
    "policy-replace",
    "policy-diff",
    "policy-test",
    "reset",
    "cores-set",
    "cores-plan",
    "version",
    "stop",
];

/// The commands that have `--json`, by the names of their manual pages.
fn with_json(scratch: &Scratch) -> BTreeSet<String> {
    let pages = scratch.path("man");
    Program::new(&[bin("towpath")]).arg("man").arg("--to").arg(&pages).run(20).ok();
    let names = fs::read_dir(pages).unwrap().filter_map(|page| {
        let page = page.unwrap();
        let has = fs::read_to_string(page.path()).unwrap().contains("\\-\\-json\\fR");
        has.then(|| page.file_name().to_string_lossy().trim_start_matches("towpath-").trim_end_matches(".1").to_owned())
    });
    names.collect()
}

#[test]
fn every_json_document_has_the_number_of_its_schema() {
    let service = Service::embedded();
    let (file, new) = (service.scratch.path("rules"), service.scratch.path("new"));
    fs::write(&file, "deny connect port 25\n").unwrap();
    let known: BTreeSet<String> = COMMANDS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(with_json(&service.scratch), known, "the commands with --json, and those that are tried here");
    for (name, line) in COMMANDS {
        let mut program = Program::new(&[bin("towpath")]);
        for word in line.split(' ') {
            program = match word {
                "SOCKET" => program.arg(&service.socket),
                "FILE" => program.arg(&file),
                "NEW" => program.arg(&new),
                word => program.arg(word),
            };
        }
        program = program.arg("--json");
        // What `enforce` has left on this machine is not for a test to put back.
        if line.ends_with("restore") {
            program = program.user(65_534);
        }
        let ended = program.run(30);
        let documents: Vec<Value> =
            ended.out.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
        assert!(!documents.is_empty(), "{name}: {}{}", ended.out, ended.err);
        assert!(documents.iter().all(|document| document["schema"] == 1), "{name}: {}", ended.out);
        if SUCCEED.contains(name) {
            assert!(ended.code == 0 && documents[0].get("error").is_none(), "{name}: {}{}", ended.out, ended.err);
        }
    }
}
