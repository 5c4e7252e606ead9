//! What a roll-out needs: the generation and the hash of policy and configuration, and changes that say what they would do.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use std::fs;
use towpath_system_tests::{Finished, Program, Service, bin, until};

const RULES: &str = "# mail\ndeny connect port 25\nlimit program nginx connections 5\n";

/// Runs `towpath LINE` with this service.
fn towpath(service: &Service, line: &str) -> Finished {
    let program = line.split_whitespace().fold(Program::new(&[bin("towpath")]), Program::arg);
    program.env("TOWPATH_SOCKET", &service.socket).run(20)
}

fn json(service: &Service, line: &str) -> Value {
    serde_json::from_str(&towpath(service, &format!("{line} --json")).ok()).unwrap()
}

#[test]
fn rules_are_compared_and_replaced_if_nobody_has_changed_them() {
    let service = Service::embedded();
    let file = service.scratch.path("rules");
    fs::write(&file, RULES).unwrap();
    let policy = |line: &str| towpath(&service, &format!("policy {line}"));
    let before = json(&service, "policy list");
    let first = before["generation"].as_u64().unwrap();
    let path = file.display();
    let dry = policy(&format!("replace {path} --dry-run --if-generation {first}")).ok();
    assert!(dry.contains("+   1  deny connect port 25\n") && dry.contains("no socket of now"), "{dry}");
    assert_eq!(json(&service, "policy list"), before, "a dry run changes nothing");
    let difference = json(&service, &format!("policy diff {path}"));
    assert_eq!((&difference["same"], difference["added"].as_array().unwrap().len()), (&false.into(), 2));

    let done = policy(&format!("replace {path} --if-generation {first}")).ok();
    assert!(done.starts_with(&format!("replaced: 2 rules, generation {}, hash ", first + 1)), "{done}");
    let after = json(&service, "policy list");
    assert_eq!(after["hash"], difference["new_hash"]);
    let again = policy(&format!("replace {path}")).ok();
    assert!(again.starts_with(&format!("nothing changed: 2 rules, generation {}, ", first + 1)), "{again}");
    assert_eq!(json(&service, "policy list"), after);

    // Somebody else changes them, so that a second wave would overwrite what it has not seen.
    policy("add deny connect port 26").ok();
    fs::write(&file, format!("{RULES}deny connect port 27\n")).unwrap();
    for more in ["", " --dry-run"] {
        let refused = policy(&format!("replace {path} --if-generation {}{more}", first + 1));
        let why = format!("towpath: the policy has generation {}, not {}: ", first + 2, first + 1);
        assert!(refused.code == 3 && refused.err.starts_with(&why), "{}", refused.err);
    }
    assert_eq!(json(&service, "policy list")["generation"], first + 2);
    // A list is a file that gives the same list.
    let rules = policy("list --rules").ok();
    assert_eq!(rules, "deny connect port 25\nlimit program nginx connections 5\ndeny connect port 26\ndefault allow\n");
    fs::write(&file, rules).unwrap();
    assert_eq!(json(&service, &format!("policy diff {path}"))["same"], true);
    let sum = Program::line("sha256sum").arg(&file).run(20).ok();
    assert_eq!(sum.split_whitespace().next(), json(&service, "policy list")["hash"].as_str());
}

#[test]
fn sockets_that_new_rules_would_refuse_are_named_before() {
    let service = Service::direct();
    let code = "import socket, time
l = socket.socket(); l.bind(('127.0.0.1', 7825)); l.listen(5)
c = socket.create_connection(('127.0.0.1', 7825)); s = l.accept()[0]
print('joined', flush=True); time.sleep(600)";
    let mut program = service.accelerated("python3 -c").arg(code).start(service.scratch.path("log"));
    program.wait_for("joined", 30);
    let file = service.scratch.path("rules");
    let would = |rules: &str| -> Vec<(Value, Value)> {
        fs::write(&file, rules).unwrap();
        let difference = json(&service, &format!("policy diff {}", file.display()));
        let sockets = difference["sockets"].as_array().unwrap();
        sockets.iter().map(|one| (one["state"].clone(), one["after"].clone())).collect()
    };
    let one = |state: &str, after: &str| vec![(Value::from(state), Value::from(after))];
    assert_eq!(would("deny connect port 7825\n"), one("ESTAB", "deny with EPERM"));
    assert_eq!(would("deny accept port 7825\n"), one("ESTAB", "deny with drop"));
    assert_eq!(would("kernel listen port 7825\n"), one("LISTEN", "kernel"));
    assert_eq!(would("deny connect port 25\n"), []);
    let all = would("default deny\n");
    assert_eq!(all.len(), 3, "{all:?}");
    fs::write(&file, "deny accept from 127.0.0.1 port 7825\n").unwrap();
    let page = towpath(&service, &format!("policy diff {}", file.display())).ok();
    assert!(page.contains("1 socket of now would be decided otherwise:\n"), "{page}");
    assert!(page.contains("ESTAB 127.0.0.1:7825 127.0.0.1:"), "{page}");
    assert!(page.contains("allow, then deny with drop by rule 1\n"), "{page}");
    program.stop();
}

#[test]
fn status_and_metrics_tell_which_files_are_in_force() {
    let scratch = towpath_system_tests::Scratch::new("fleet");
    let file = scratch.path("towpathd.toml");
    fs::write(&file, "policy = [\"deny connect port 25\"]\n").unwrap();
    let service = Service::start(|program| program.arg("--config").arg(&file));
    let sum = || {
        let sum = Program::line("sha256sum").arg(&file).run(20).ok();
        sum.split_whitespace().next().unwrap().to_owned()
    };
    let first = service.status();
    let (configuration, policy) = (&first["configuration"], &first["policy"]);
    assert_eq!((configuration["hash"].as_str(), policy["rules"].as_u64()), (Some(sum().as_str()), Some(1)));
    let page = towpath(&service, "metrics").ok();
    for line in [
        format!("towpath_configuration_info{{stack=\"home\",hash=\"{}\"}} 1.0\n", sum()),
        format!("towpath_policy_info{{stack=\"home\",hash={}}} 1.0\n", policy["hash"]),
        "towpath_configuration_restart_keys{stack=\"home\"} 0.0\n".to_owned(),
    ] {
        assert!(page.contains(&line), "{line} is not in {page}");
    }
    // A comment makes another file, and the same policy.
    fs::write(&file, "# the second\npolicy = [\"deny connect port 25\"]\nspin = \"1ms\"\n").unwrap();
    towpath(&service, "reload").ok();
    let second = service.status();
    let grown = configuration["generation"].as_u64().unwrap() + 1;
    assert_eq!(second["configuration"]["generation"], grown);
    assert_eq!(second["configuration"]["restart"], serde_json::json!(["spin"]));
    assert_eq!(
        (&second["configuration"]["hash"], &second["policy"]["generation"]),
        (&sum().into(), &policy["generation"])
    );
    let human = towpath(&service, "status").ok();
    let line = format!("towpathd.toml: generation {grown}, hash {}; a restart changes spin\n", &sum()[..12]);
    assert!(human.contains(&line), "{human}");
    // A worker that follows one that died knows what the broker has read.
    let worker = service.running.worker();
    assert!(Program::line(&format!("kill -9 {worker}")).run(20).code == 0);
    until("another worker serves", 60, || service.running.worker() != worker && towpath(&service, "status").code == 0);
    let third = service.status();
    assert_eq!(third["configuration"]["hash"], second["configuration"]["hash"]);
    assert_eq!(third["configuration"]["restart"], second["configuration"]["restart"]);
    assert_eq!(third["policy"]["hash"], policy["hash"]);
    assert!(third["policy"]["generation"].as_u64() >= policy["generation"].as_u64());
}
