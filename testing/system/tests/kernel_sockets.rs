//! `towpath sockets --kernel`: what the programs of a service have with the host's kernel stands beside what they have with the stack.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use towpath_system_tests::{Finished, Program, Service, bin};

/// A plain server, which no stack serves.
const PLAIN: &str = "import socket, time\nl = socket.socket(); l.bind(('127.0.0.1', 7842)); l.listen(5); print('up', flush=True)\n\
    held = []\nwhile True: held.append(l.accept())";
/// Listens on the stack, and so with the kernel's half; connects to itself and to the plain server, over the kernel.
const PROGRAM: &str = "import socket, sys, time\nport = int(sys.argv[1])\nl = socket.socket(); l.bind(('127.0.0.1', port)); l.listen(5)\n\
    c = socket.create_connection(('127.0.0.1', port)); s, _ = l.accept()\n\
    k = socket.create_connection(('127.0.0.1', 7842)); print('up', flush=True); time.sleep(600)";

fn sockets(service: &Service, under: &[&str], user: Option<u32>, words: &str) -> Finished {
    let program = Program::new(&[bin("towpath")]).arg("sockets").arg("--socket").arg(&service.socket);
    let program = words.split_whitespace().fold(program, Program::arg).under(under);
    match user {
        Some(user) => program.user(user).run(30),
        None => program.run(30),
    }
}

fn rows(finished: Finished) -> Vec<Value> {
    let document: Value = serde_json::from_str(&finished.ok()).unwrap();
    document["sockets"].as_array().unwrap().clone()
}

fn of_kernel(rows: &[Value]) -> Vec<&Value> {
    rows.iter().filter(|row| row["stack"] == "kernel").collect()
}

#[test]
fn the_kernels_sockets_of_the_programs_stand_beside_those_of_the_stack() {
    let service = Service::start(|program| program.arg("--direct").arg("false").arg("--admit").arg("all"));
    let mut plain = Program::line("python3 -c").arg(PLAIN).start(service.scratch.path("plain.log"));
    plain.wait_for("up", 30);
    let start = |port: u16, user: Option<u32>| {
        let program = service.accelerated("python3 -c").arg(PROGRAM).arg(port.to_string());
        let program = match user {
            Some(user) => program.user(user),
            None => program,
        };
        let mut running = program.start(service.scratch.path(&format!("{port}.log")));
        running.wait_for("up", 30);
        running
    };
    let (program, _others) = (start(7841, None), start(7843, Some(65_534)));

    // Only those of the programs are shown, each with its stack.
    let all = rows(sockets(&service, &[], None, "-a --kernel --json"));
    let kernel = of_kernel(&all);
    let mut found: Vec<_> =
        kernel.iter().map(|row| (row["state"].as_str().unwrap(), row["uid"].as_u64().unwrap())).collect();
    found.sort_unstable();
    assert_eq!(found, [("ESTAB", 0), ("ESTAB", 65_534), ("LISTEN", 0), ("LISTEN", 65_534)], "{all:?}");
    assert!(all.iter().any(|row| row["stack"] == "home" && row["state"] == "ESTAB" && row["kernel"].is_null()));
    let own = |row: &&&Value| row["state"] == "ESTAB" && row["pid"].as_i64() == Some(program.pid().into());
    let open = kernel.iter().find(own).expect("the program's connection");
    assert_eq!(open["peer"], "127.0.0.1:7842");
    let of = &open["kernel"];
    let inode = of["inode"].as_u64().unwrap();
    let fd = of["processes"][0]["fd"].as_i64().unwrap();
    let link = std::fs::read_link(format!("/proc/{}/fd/{fd}", program.pid())).unwrap();
    assert_eq!(link.to_str().unwrap(), format!("socket:[{inode}]"));
    assert!(of["cookie"].as_u64() > Some(0) && of["memory"]["received_most"].as_u64() > Some(0), "{of}");
    assert!(open["tcp"]["mss"].as_u64() > Some(0), "{open}");

    // The filters of ss hold for both.
    let peers = rows(sockets(&service, &[], None, "--kernel --json dport = :7842"));
    assert!(peers.len() == 2 && of_kernel(&peers).len() == 2, "{peers:?}");
    let listening = rows(sockets(&service, &[], None, "--kernel --json state listening sport = :7841"));
    assert!(listening.len() == 2 && of_kernel(&listening).len() == 1, "{listening:?}");
    // As ss shows them, each on a line.
    let page = sockets(&service, &[], None, "--kernel -mepO dport = :7842 uid 0").ok();
    let (pid, uid) = (program.pid(), "uid:0 ino:");
    let line = page.lines().nth(1).unwrap();
    assert_eq!(page.lines().count(), 2, "{page}");
    for word in [format!("pid={pid},fd={fd})"), format!("{uid}{inode} sk:"), "skmem:(r".into(), "cwnd:".into()] {
        assert!(line.starts_with("ESTAB") && line.contains(&word), "{word}: {page}");
    }
    // Nobody has asked for them.
    assert!(of_kernel(&rows(sockets(&service, &[], None, "-a --json"))).is_empty());

    // A user sees those of his own processes.
    let his = rows(sockets(&service, &[], Some(65_534), "-a --kernel --json"));
    assert!(his.iter().all(|row| row["uid"] == 65_534) && of_kernel(&his).len() == 2, "{his:?}");
    // Root enters the network namespace of the programs.
    let entered = rows(sockets(&service, &["unshare", "-n"], None, "-a --kernel --json"));
    assert_eq!(of_kernel(&entered).len(), 4, "{entered:?}");
}
