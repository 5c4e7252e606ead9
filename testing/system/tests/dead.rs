//! `towpath sockets`: how connections have ended, again and again, and all stacks in one list.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use std::collections::BTreeMap;
use towpath_system_tests::{Finished, Program, Service, bin, until};

/// Ends four connections to ports of their own: by the client, by the server, by a reset, and one that the operator is to end.
const PROGRAM: &str = r#"
import socket, struct, time
def pair(port):
    l = socket.socket(); l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); l.bind(("127.0.0.1", port)); l.listen(5)
    c = socket.create_connection(("127.0.0.1", port)); s = l.accept()[0]; l.close()
    return c, s
def both(first, second):
    first.close(); assert second.recv(1) == b""; second.close()
c, s = pair(7831); both(c, s)
c, s = pair(7832); both(s, c)
c, s = pair(7833); c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)); c.close()
try: s.recv(1)
except ConnectionResetError: pass
s.close()
c, s = pair(7834); print("ready", flush=True)
try: s.recv(1)
except ConnectionAbortedError: pass
except ConnectionResetError: pass
s.close(); c.close(); print("over", flush=True); time.sleep(600)
"#;

fn sockets(service: &Service, line: &str) -> Finished {
    let program = Program::new(&[bin("towpath")]).arg("sockets").arg("--socket").arg(&service.socket);
    line.split_whitespace().fold(program, Program::arg).run(20)
}

/// How the ends of each port's connection have ended: that of the client, and that of the server.
fn ends(service: &Service) -> BTreeMap<u64, (String, String)> {
    let list: Value = serde_json::from_str(&sockets(service, "--dead --json").ok()).unwrap();
    let mut ends = BTreeMap::<u64, (String, String)>::new();
    for one in list["sockets"].as_array().unwrap() {
        let port = |key: &str| one[key].as_str().unwrap().rsplit(':').next().unwrap().parse::<u64>().unwrap();
        assert_eq!((&one["stack"], &one["uid"]), (&"home".into(), &rustix::process::geteuid().as_raw().into()));
        assert!(one["program"].as_str().unwrap().starts_with("python3"), "{one}");
        let word = one["ended"].as_str().unwrap().to_owned();
        let server = (7831..=7834).contains(&port("local"));
        let entry = ends.entry(if server { port("local") } else { port("peer") }).or_default();
        *(if server { &mut entry.1 } else { &mut entry.0 }) = word;
    }
    ends
}

#[test]
fn how_connections_have_ended_is_known_on_every_path() {
    for service in [Service::embedded(), Service::direct()] {
        let mut program = service.accelerated("python3 -c").arg(PROGRAM).start(service.scratch.path("log"));
        program.wait_for("ready", 30);
        let reset = Program::new(&[bin("towpath")]).arg("reset").arg("--port").arg("7834");
        reset.arg("--socket").arg(&service.socket).run(20).ok();
        program.wait_for("over", 30);
        let of = |client: &str, server: &str| (client.to_owned(), server.to_owned());
        let expected = BTreeMap::from([
            (7831, of("closed", "peer-closed")),
            (7832, of("peer-closed", "closed")),
            (7833, of("aborted", "peer-reset")),
            (7834, of("cut", "cut")),
        ]);
        // The last segments may still be on their way.
        until("all have ended", 60, || ends(&service) == expected || ends(&service).len() > 4);
        assert_eq!(ends(&service), expected);
        let page = sockets(&service, "--dead sport = :7833").ok();
        assert!(
            page.contains("peer-reset") && page.contains("the peer reset it") && page.lines().count() == 3,
            "{page}"
        );
        // The flight recorder has both ends of each, and tracers the same: of a direct connection, too.
        let events = Program::new(&[bin("towpath")]).arg("events").arg("--json").arg("--socket").arg(&service.socket);
        let events: Value = serde_json::from_str(&events.run(20).ok()).unwrap();
        let all = events["threads"].as_array().unwrap().iter().flat_map(|thread| thread["events"].as_array().unwrap());
        assert_eq!(all.filter(|event| event["kind"] == "end").count(), 8, "{events}");
        // They are known after the program, too.
        program.stop();
        assert_eq!(ends(&service).get(&7833), expected.get(&7833));
    }
}

#[test]
fn a_stack_of_a_kernel_does_not_know_how_its_connections_end() {
    let service = Service::kernel();
    let refused = sockets(&service, "--dead");
    assert!(refused.code == 3 && refused.err.contains("its connections are a kernel's"), "{}", refused.err);
}

#[test]
fn a_list_comes_again_each_second_until_so_many() {
    let service = Service::embedded();
    let lists = sockets(&service, "-a --watch --times 3 --json").ok();
    let lists: Vec<Value> = lists.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lists.len() == 3 && lists.iter().all(|list| list["schema"] == 1), "{lists:?}");
    let page = sockets(&service, "-a --watch --times 2").ok();
    assert_eq!(page.matches("Local Address:Port").count(), 2, "{page}");
}

#[test]
fn all_stacks_of_a_service_are_in_one_list() {
    let scratch = towpath_system_tests::Scratch::new("stacks");
    let file = scratch.path("towpath.toml");
    std::fs::write(&file, "[stacks.blue]\nstack = \"kernel\"\n").unwrap();
    // A user's own service, which is found without being named.
    let runtime = scratch.path("run");
    std::fs::create_dir(&runtime).unwrap();
    std::fs::set_permissions(&runtime, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::create_dir(runtime.join("towpath")).unwrap();
    std::fs::set_permissions(runtime.join("towpath"), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let socket = runtime.join("towpath/towpath.sock");
    let mut service = Service::embedded();
    service.running.stop();
    service.socket.clone_from(&socket);
    service.start_again(|program| program.arg("--config").arg(&file).arg("--direct").arg("false"));
    let server = |port: u16, stack: &str| {
        let code = format!(
            "import socket, time\nl = socket.socket(); l.bind(('127.0.0.1', {port})); l.listen(5); print('listening', flush=True); time.sleep(600)"
        );
        let program = Program::new(&[bin("towpath")]).arg("run").arg("--require").arg("--socket").arg(&socket);
        let program = if stack == "blue" {
            Program::new(&[bin("towpath")]).arg("run").arg("--stack").arg("blue").env("TOWPATH_SOCKET", &socket)
        } else {
            program
        };
        let program = program.arg("--").arg("python3").arg("-c").arg(code);
        let mut running = program.start(scratch.path(&format!("log-{port}")));
        running.wait_for("listening", 60);
        running
    };
    let _servers = [server(7835, "home"), server(7836, "blue")];
    let list = || {
        let list = Program::new(&[bin("towpath")]).arg("sockets").arg("-l").arg("--json");
        let list: Value = serde_json::from_str(&list.env("XDG_RUNTIME_DIR", &runtime).run(20).ok()).unwrap();
        let of = |one: &Value| (one["stack"].as_str().unwrap().to_owned(), one["local"].as_str().unwrap().to_owned());
        list["sockets"].as_array().unwrap().iter().map(of).collect::<Vec<_>>()
    };
    until("both are listed", 60, || {
        let all = list();
        ["7835", "7836"].iter().all(|port| all.iter().any(|(_, local)| local.ends_with(port)))
    });
    let stack = |port: &str| list().into_iter().find(|(_, local)| local.ends_with(port)).map(|(stack, _)| stack);
    assert_eq!(stack(":7836").as_deref(), Some("blue"));
    // The machine may have a service of its own, which is `home` then.
    assert!(matches!(stack(":7835").as_deref(), Some("home" | "own")), "{:?}", list());
}
