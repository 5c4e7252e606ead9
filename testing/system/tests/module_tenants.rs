//! Whoever is charged for modules: what their modules take is one account.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use std::path::Path;
use towpath_system_tests::module::{count, json, module, object};
use towpath_system_tests::namespace::SERVER;
use towpath_system_tests::program::Running;
use towpath_system_tests::{Lab, Program, Service, until};

/// A module that lets all pass, and takes some 100 µs for a frame of more than 200 bytes.
const GREEDY: &str = "
SEC(\"xdp\") int greedy(struct xdp_md *ctx)
{
    if (ctx->data_end - ctx->data < 200) return XDP_PASS;
    __u64 sum = 0;
    for (int i = 0; i < 120000; i++) { sum += sum * 31 + i; asm volatile(\"\" : \"+r\"(sum)); }
    return sum == 1 ? XDP_DROP : XDP_PASS;
}";

/// A server that says what it has received.
fn serve(lab: &Lab, service: &Service) -> Running {
    let script = "
import socket, hashlib
l = socket.create_server(('', 7002)); print('ready', flush=True)
while True:
    c, _ = l.accept(); h = hashlib.sha256()
    while b := c.recv(1 << 16): h.update(b)
    c.sendall(h.hexdigest().encode()); c.close()";
    let program = lab.on_server(service.accelerated("python3 -u -c").arg(script));
    let mut running = program.start(service.scratch.path("server.log"));
    running.wait_for("ready", 30);
    running
}

/// A client sends so many bytes, and all of them arrive.
fn send(lab: &Lab, bytes: usize) {
    let script = format!(
        "import socket, hashlib
data = bytes(i * i % 251 for i in range({bytes}))
s = socket.create_connection(('{SERVER}', 7002), 30); s.sendall(data); s.shutdown(socket.SHUT_WR)
assert s.recv(100).decode() == hashlib.sha256(data).hexdigest(); print('whole')"
    );
    assert_eq!(lab.on_client(Program::line("python3 -c").arg(script)).run(120).ok().trim(), "whole");
}

fn add(service: &Service, name: &str, object: &Path, more: &str) -> Value {
    json(service, &format!("add {name} {} {more}", object.display()))["modules"][0].clone()
}

/// Name, tenant, budget, and whether it is detached, of each.
fn listed(service: &Service) -> Vec<String> {
    let list = json(service, "list");
    let of = |one: &Value| ["name", "tenant", "budget", "detached"].map(|key| one[key].to_string()).join(" ");
    list["modules"].as_array().unwrap().iter().map(|one| of(one).replace('"', "")).collect()
}

#[test]
fn a_tenant_that_takes_more_than_its_budget_is_detached_with_a_message_and_traffic_goes_on() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let _server = serve(&lab, &service);
    let [greedy, sizes] =
        [("greedy", Some(GREEDY)), ("statistics", None)].map(|(name, text)| object(&service.scratch, name, text));
    add(&service, "sizes", &sizes, "--budget 90");
    let added = add(&service, "greedy", &greedy, "--tenant carol --budget 1");
    assert_eq!((&added["tenant"], &added["budget"], &added["detached"]), (&"carol".into(), &1.into(), &false.into()));
    add(&service, "more", &sizes, "--tenant carol --hook egress");
    send(&lab, 100);
    // 10 MB are many times what the budget has room for.
    send(&lab, 10_000_000);
    assert_eq!(listed(&service), ["sizes sizes 90 false", "greedy carol 1 true", "more carol 1 true"]);
    let text = module(&service, "list").run(30).ok();
    assert!(text.lines().any(|line| line.contains(" carol ") && line.contains("1 %  detached")), "{text}");
    let log = service.running.output();
    assert_eq!(log.matches("have taken more than 1 % of").count(), 1, "{log}");
    let runs = count(&service, "greedy", "runs");
    assert_eq!(runs, count(&service, "greedy", "pass"));
    let others = count(&service, "sizes", "runs");
    send(&lab, 100);
    assert!(count(&service, "greedy", "runs") == runs && count(&service, "sizes", "runs") > others);
    // Another change does not bring it back; whoever adds it again does.
    module(&service, "rm sizes").run(30).ok();
    let again = module(&service, &format!("add again {} --tenant carol", sizes.display())).run(60);
    assert!(again.code != 0 && again.err.contains("tenant carol are detached"), "{}", again.err);
    for name in ["greedy", "more"] {
        module(&service, &format!("rm {name}")).run(30).ok();
    }
    add(&service, "greedy", &greedy, "--tenant carol");
    assert_eq!(listed(&service), ["greedy carol 100 false"]);
}

#[test]
fn modules_of_a_tenant_have_one_budget_and_keep_it_when_the_worker_has_died() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let null = object(&service.scratch, "null", Some("SEC(\"xdp\") int f(struct xdp_md *c) { return XDP_PASS; }"));
    add(&service, "one", &null, "--tenant carol --budget 20");
    // It runs first, and is the first that the next worker process adds.
    add(&service, "two", &null, "--tenant carol --priority -1");
    add(&service, "own", &null, "--budget 7");
    add(&service, "carol", &null, "--tenant carol");
    let expected = ["two carol 20 false", "one carol 20 false", "own own 7 false", "carol carol 20 false"];
    assert_eq!(listed(&service), expected);
    let refuse = || {
        for (more, why) in [
            ("--tenant carol --budget 30", "have a budget of 20 % together, and not 30 %"),
            ("--tenant a/b", "\"a/b\" is no name of a tenant"),
            // An account that was opened for one module is no other's, and the other way round.
            ("--tenant own", "module own was added without --tenant, and pays for itself alone"),
            ("--tenant own --budget 7", "module own was added without --tenant, and pays for itself alone"),
        ] {
            let refused = module(&service, &format!("add x {} {more}", null.display())).run(60);
            assert!(refused.code != 0 && refused.err.contains(why), "{more}: {}", refused.err);
        }
        module(&service, "rm carol").run(30).ok();
        let refused = module(&service, &format!("add carol {}", null.display())).run(60);
        assert!(refused.code != 0 && refused.err.contains("there is a tenant carol"), "{}", refused.err);
        add(&service, "carol", &null, "--tenant carol");
    };
    refuse();
    let dead = service.running.worker();
    // SAFETY: the call takes integers. It is a child of the service that this test has started.
    assert_eq!(unsafe { libc::kill(dead, libc::SIGKILL) }, 0);
    let answers = || module(&service, "list").run(30).code == 0;
    until("another worker", 30, || service.running.worker() != dead && answers());
    assert_eq!(listed(&service), expected);
    refuse();
}
