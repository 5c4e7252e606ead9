//! The modules that count: sizes and gaps of frames, and how long peers take, for all and for one program.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use towpath_system_tests::module::{count, json, module, object};
use towpath_system_tests::namespace::SERVER;
use towpath_system_tests::program::Running;
use towpath_system_tests::{Lab, Program, Service, until};

/// A user other than root.
const OTHER: u32 = 23_451;
/// Questions of a client, one after the other.
const QUESTIONS: usize = 50;

/// A program of a user, which answers on a port.
fn serve(lab: &Lab, service: &Service, user: u32, port: u16) -> Running {
    let script = format!(
        "import socket, threading
def talk(c):
    f = c.makefile('rb')
    while q := f.read(1500): c.sendall(q)
l = socket.create_server(('', {port})); print('ready', flush=True)
while True: threading.Thread(target=talk, args=(l.accept()[0],)).start()"
    );
    let python = format!("setpriv --reuid {user} --regid {user} --clear-groups /usr/bin/python3 -u -c");
    let program = lab.on_server(service.accelerated(&python).arg(script));
    let mut running = program.start(service.scratch.path(&format!("server-{port}.log")));
    running.wait_for("ready", 30);
    running
}

/// Asks so many times, each time with 1,500 bytes: one segment and a short one.
fn ask(lab: &Lab, port: u16) {
    let script = format!(
        "import socket
s = socket.create_connection(('{SERVER}', {port}), 30); f = s.makefile('rb')
for i in range({QUESTIONS}):
    s.sendall(bytes(1500)); assert len(f.read(1500)) == 1500
print('asked')"
    );
    assert_eq!(lab.on_client(Program::line("python3 -c").arg(script)).run(60).ok().trim(), "asked");
}

/// A histogram: how often each place was counted, of all flow groups together.
fn histogram(service: &Service, name: &str, map: &str) -> Vec<u64> {
    let dump = json(service, &format!("maps {name} {map} dump"));
    let places = dump["elements"].as_array().unwrap().iter();
    let sum =
        |numbers: &serde_json::Value| numbers.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).sum();
    places.map(|place| sum(&place["numbers"])).collect()
}

fn sum(of: &[u64]) -> u64 {
    of.iter().sum()
}

#[test]
fn each_frame_is_in_the_histograms_of_sizes_and_gaps_once() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let _server = serve(&lab, &service, 0, 7000);
    let statistics = object(&service.scratch, "statistics", None);
    for hook in ["ingress", "egress"] {
        module(&service, &format!("add {hook} {} --hook {hook}", statistics.display())).run(60).ok();
    }
    ask(&lab, 7000);
    for hook in ["ingress", "egress"] {
        // The last acknowledgements may still be under way.
        let all = || ["sizes", "gaps"].map(|map| histogram(&service, hook, map));
        until("the last frame", 30, || sum(&all()[0]) == count(&service, hook, "runs"));
        let [sizes, gaps] = all();
        let frames = sum(&sizes);
        assert!(frames >= 2 * QUESTIONS as u64 && sum(&sizes[..5]) == 0, "{hook}: {sizes:?}");
        // Frames with 1,024 bytes and more: each question, and each answer, has one at least, and none of them is lost on a veth.
        assert!(sum(&sizes[10..]) >= QUESTIONS as u64, "{hook}: {sizes:?}");
        // One frame is the first. The service has one flow group.
        assert_eq!(sum(&gaps), frames - 1, "{hook}: {gaps:?}");
    }
}

/// The pair of programs that time acknowledgements, for the frames that the selector chooses.
fn add_rtt(service: &Service, name: &str, app: &str) {
    let rtt = object(&service.scratch, "rtt", None);
    let add = |line: String| module(service, &line).arg("--app").arg(app).run(60).ok();
    add(format!("add {name} {} --program rtt_received", rtt.display()));
    module(service, &format!("maps {name} waiting pin --as {name}-waiting")).run(30).ok();
    let more = format!("--program rtt_sent --hook egress --map waiting={name}-waiting");
    add(format!("add {name}-sent {} {more}", rtt.display()));
}

#[test]
fn acknowledgements_are_timed_for_each_program() {
    let lab = Lab::new();
    let service = Service::on_interface(&lab);
    let _servers = [serve(&lab, &service, 0, 7000), serve(&lab, &service, OTHER, 7001)];
    add_rtt(&service, "root", "user 0");
    add_rtt(&service, "other", &format!("user {OTHER}"));
    ask(&lab, 7000);
    let [root, other] = ["root", "other"].map(|name| histogram(&service, name, "rtts"));
    // One segment is timed at a time, so each answer gives one at most but for the last one, which may be waited for.
    let timed = sum(&root);
    assert!((QUESTIONS as u64 / 2..=2 * QUESTIONS as u64).contains(&timed), "{root:?}");
    // From a microsecond up to a minute.
    assert_eq!(sum(&root[10..37]), timed, "{root:?}");
    assert_eq!(sum(&other), 0, "{other:?}");
    ask(&lab, 7001);
    assert!(sum(&histogram(&service, "other", "rtts")) > 0);
    assert_eq!(histogram(&service, "root", "rtts"), root, "it has nothing of the other program's connections");
}
