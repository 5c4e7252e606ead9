//! The number of workers of a service's stack: set by hand under traffic, and by its own decisions.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use towpath_system_tests::guest::kernel_of;
use towpath_system_tests::program::Running;
use towpath_system_tests::{Program, Scratch, Service, bin, own_network, require_program, until};

/// Echoes on many connections at once until the file `stop` exists. Compares every byte.
const ECHO: &str = r#"
import hashlib, os, random, socket, sys, threading
role, port, stop = sys.argv[1], int(sys.argv[2]), sys.argv[3]
def serve(c):
    while True:
        data = c.recv(65536)
        if not data: return c.close()
        c.sendall(data)
def ask(seed):
    r = random.Random(seed); c = socket.create_connection(('127.0.0.1', port)); rounds = 0
    while rounds < 3 or not os.path.exists(stop):
        data = r.randbytes(r.choice([1, 64, 5000, 300000])); got = hashlib.sha256(); left = len(data)
        t = threading.Thread(target=c.sendall, args=(data,)); t.start()
        while left:
            part = c.recv(min(left, 65536)); assert part, 'the connection has ended'
            got.update(part); left -= len(part)
        t.join(); rounds += 1
        assert got.digest() == hashlib.sha256(data).digest(), 'other bytes'
    c.shutdown(socket.SHUT_WR); assert c.recv(1) == b''; good.append(rounds)
if role == 'server':
    l = socket.create_server(('127.0.0.1', port), backlog=64); print('ready', flush=True)
    while True: threading.Thread(target=serve, args=(l.accept()[0],), daemon=True).start()
good = []
threads = [threading.Thread(target=ask, args=(i,)) for i in range(12)]
for t in threads: t.start()
for t in threads: t.join()
print(len(good), 'unharmed', sum(good), 'rounds', flush=True)
if len(sys.argv) > 4: threading.Event().wait()
"#;

fn echo(service: &Service, role: &str, port: u16, more: &str) -> Running {
    let script = service.scratch.path("echo.py");
    std::fs::write(&script, ECHO).unwrap();
    let program = service.accelerated("/usr/bin/python3").arg(&script).arg(role).arg(port.to_string());
    let program = program.arg(service.scratch.path("stop"));
    let program = if more.is_empty() { program } else { program.arg(more) };
    program.start(service.scratch.path(&format!("{role}.log")))
}

fn set(service: &Service, cores: &str) -> Program {
    let program = Program::new(&[bin("towpath")]).arg("cores").arg("set").arg("--socket").arg(&service.socket);
    program.arg("--json").arg(cores)
}

/// The answer to `towpath cores set`.
fn has(service: &Service, cores: &str) -> Value {
    serde_json::from_str(&set(service, cores).run(30).ok()).unwrap()
}

/// `carried` tells what the stack has carried, and more than `least` of it goes by.
fn harms_nobody(service: &Service, port: u16, least: u64, carried: impl Fn() -> u64) {
    let mut server = echo(service, "server", port, "");
    server.wait_for("ready", 30);
    let before = carried();
    let mut client = echo(service, "client", port, "");
    until("traffic", 60, || carried() > before);
    for round in 0..8 {
        let before = carried();
        for cores in ["4", "1", "3", "2"] {
            let sizing = has(service, cores);
            let (running, most) = (sizing["workers"].as_u64(), sizing["most"].as_u64());
            assert_eq!((running, most), (cores.parse().ok(), Some(4)), "{round}: {sizing}");
            assert!(client.alive(), "{}", client.output());
        }
        until("the traffic goes on", 60, || carried() > before);
    }
    until("the stack has carried enough", 120, || carried() - before > least);
    assert_eq!(service.status()["sizing"]["reason"], "set");
    std::fs::write(service.scratch.path("stop"), "").unwrap();
    client.wait_for("12 unharmed", 120);
    client.wait_end(30);
    let cores = service.status()["flow_groups"].as_array().unwrap().len();
    assert_eq!(cores, 4, "a flow group for each worker that there may be");
}

#[test]
fn cores_set_by_hand_under_traffic_harm_no_connection() {
    let service = Service::start(|program| program.arg("--direct").arg("false").arg("--cores").arg("1-4"));
    harms_nobody(&service, 7901, 1000, || service.segments());
}

#[test]
fn threads_of_the_kernel_stack_set_by_hand_under_traffic_harm_no_connection() {
    let service = Service::start(|program| program.arg("--stack").arg("kernel").arg("--cores").arg("1-4"));
    harms_nobody(&service, 7902, 1_000_000, || service.stage("sent_bytes"));
}

#[test]
fn threads_of_a_remote_kernel_stack_set_by_hand_under_traffic_harm_no_connection() {
    own_network();
    let scratch = Scratch::new("sizing-remote");
    let address = format!("unix:{}", scratch.path("server.sock").display());
    let far = Program::new(&[bin("towpath")]).arg("kernel-stack").arg("--cores").arg("4").arg("--listen").arg(&address);
    let mut far = far.start(scratch.path("server.log"));
    far.wait_for("serving", 20);
    let service = Service::start(|program| program.arg("--stack").arg("remote").arg("--remote").arg(&address));
    assert_eq!(service.status()["sizing"]["configured"], "4", "the workers of the server");
    harms_nobody(&service, 7904, 1_000_000, || service.stage("sent_bytes"));
}

#[test]
fn threads_of_a_guest_set_by_hand_under_traffic_harm_no_connection() {
    let service = Service::uml(|program| program.arg("--cores").arg("4"));
    harms_nobody(&service, 7905, 1_000_000, || service.stage("sent_bytes"));
    let kernel = rustix::process::Pid::from_raw(kernel_of(&service)).unwrap();
    rustix::process::kill_process(kernel, rustix::process::Signal::KILL).unwrap();
    until("the guest serves again", 90, || service.status()["slow"]["stages"]["guest_restarts"] == 1);
    let threads = service.status()["workers"].as_array().unwrap().clone();
    let running =
        threads.iter().filter(|thread| thread["flow_groups"].as_array().is_some_and(|groups| !groups.is_empty()));
    assert_eq!((running.count(), threads.len()), (2, 4), "as was set before: {threads:?}");
}

#[test]
fn a_service_that_decides_takes_cores_away_that_nobody_uses_and_is_quiet_under_no_load() {
    let service = Service::start(|program| program.arg("--direct").arg("false").arg("--cores").arg("1-4"));
    let mut server = echo(&service, "server", 7903, "");
    server.wait_for("ready", 30);
    std::fs::write(service.scratch.path("stop"), "").unwrap();
    let mut client = echo(&service, "client", 7903, "stays");
    client.wait_for("12 unharmed", 60);
    assert_eq!(has(&service, "2")["set"], 2);
    // The number stays as it was set, with nothing to do.
    assert_eq!(service.status()["sizing"]["workers"], 2);
    let before = has(&service, "auto");
    assert_eq!((&before["set"], &before["configured"]), (&Value::Null, &Value::from("1-4")));
    until("the core that nobody uses is parked", 60, || service.status()["sizing"]["workers"] == 1);
    let sizing = service.status()["sizing"].clone();
    assert!(sizing["tick"].as_u64() > Some(0) && sizing["why"].is_string(), "{sizing}");
    // All changes are listed, and are in the log.
    let changes = has(&service, "auto")["changes"].as_array().unwrap().clone();
    let idle = changes.iter().find(|change| change["from"] == 2 && change["to"] == 1).expect("a change to one core");
    assert!(["idle", "starved"].iter().any(|reason| idle["reason"] == *reason), "{idle}");
    assert!(changes.len() <= 12, "{changes:?}");
    assert!(service.running.output().contains("towpath_service::threads: {\"tick\":"), "{}", service.running.output());
}

/// The CPUs on which each thread of the service may run, from `/proc`.
fn allowed(service: &Service) -> Vec<String> {
    // It answers once all threads run.
    service.status();
    let pid = service.running.worker();
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let status = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("status")).ok());
    status.filter_map(|text| Some(text.split_once("Cpus_allowed_list:\t")?.1.lines().next()?.to_owned())).collect()
}

#[test]
fn threads_that_nobody_pins_stay_where_they_are_put() {
    require_program("taskset", "util-linux");
    // The first and the last CPU that this test may use.
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let own = own.split_once("Cpus_allowed_list:\t").unwrap().1.lines().next().unwrap();
    let ends = |c| c == '-' || c == ',';
    let (first, last) = (own.split(ends).next().unwrap(), own.rsplit(ends).next().unwrap());
    assert_ne!(first, last, "two CPUs are needed");
    let service = Service::start(|program| program.arg("--cores").arg("1-2"));
    let pid = service.running.worker().to_string();
    Program::line("taskset -a -c -p").arg(last).arg(&pid).run(20).ok();
    has(&service, "2");
    assert!(allowed(&service).iter().all(|cpus| cpus == last), "{:?}", allowed(&service));
    Program::line("taskset -a -c -p").arg(own).arg(&pid).run(20).ok();
    has(&service, "1");
    assert!(allowed(&service).iter().all(|cpus| cpus == own), "{:?}", allowed(&service));
    drop(service);
    let pinned = Service::start(|program| program.arg("--cores").arg("2").arg("--cpus").arg(format!("{last},{first}")));
    let there = allowed(&pinned);
    assert!([first, last].iter().all(|cpu| there.iter().any(|cpus| cpus == cpu)), "{there:?}");
}

#[test]
fn a_number_in_the_configuration_is_kept_and_what_cannot_be_is_refused() {
    let service = Service::start(|program| program.arg("--cores").arg("2"));
    let sizing = service.status()["sizing"].clone();
    assert_eq!((&sizing["workers"], &sizing["reason"]), (&Value::from(2), &Value::from("configured")));
    for (cores, why) in [("3", "3 is outside 1 to 2"), ("0", "0 is outside 1 to 2"), ("many", "a number of workers")] {
        let refused = set(&service, cores).run(20);
        assert!(refused.code != 0 && refused.err.contains(why), "{cores}: {}", refused.err);
    }
    assert_eq!(has(&service, "1")["workers"], 1);
    assert_eq!(has(&service, "auto")["workers"], 2, "as the configuration says");
    let refused = Program::new(&[bin("towpath")]).arg("serve").arg("--cores").arg("4-1").run(20);
    assert!(refused.code != 0 && refused.err.contains("no range"), "{}", refused.err);
}
