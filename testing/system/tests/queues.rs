//! An interface with several receive queues, and a core for each.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use serde_json::Value;
use towpath_system_tests::namespace::{CLIENT, SERVER};
use towpath_system_tests::{Lab, Program, Scratch, Service};

const CONNECTIONS: u64 = 40;
const ROUNDS: u64 = 50;
/// Echoes line by line, or asks on all connections in turn, again and again.
const LINES: &str = r#"
import selectors, socket, sys
role, address, connections, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if role == 'server':
    l = socket.create_server((address, 7920), backlog=128); print('ready', flush=True)
    s = selectors.DefaultSelector(); s.register(l, selectors.EVENT_READ)
    while True:
        for key, _ in s.select():
            if key.fileobj is l: s.register(l.accept()[0], selectors.EVENT_READ); continue
            data = key.fileobj.recv(4096)
            if data: key.fileobj.sendall(data)
            else: s.unregister(key.fileobj); key.fileobj.close()
all = [socket.create_connection((address, 7920), 30) for _ in range(connections)]
for i in range(rounds):
    for c in all: c.sendall(b'round %d' % i)
    for c in all: assert c.recv(100) == b'round %d' % i
print('done', flush=True)
"#;

fn lines(role: &str, address: &str) -> Vec<String> {
    [LINES, role, address, &CONNECTIONS.to_string(), &ROUNDS.to_string()].map(str::to_owned).to_vec()
}

fn with(program: Program, arguments: Vec<String>) -> Program {
    arguments.into_iter().fold(program, |program, argument| program.arg(argument))
}

/// Frames that each flow group's queue of the interface has received.
fn received(status: &Value) -> Vec<u64> {
    let groups = status["flow_groups"].as_array().expect("flow groups");
    groups.iter().map(|group| group["ports"][1]["rx_frames"].as_u64().expect("a queue of the interface")).collect()
}

#[test]
fn a_connection_belongs_to_the_core_of_the_queue_to_which_its_segments_come() {
    let lab = Lab::with_queues(4);
    let scratch = Scratch::new("queues");
    let service =
        Service::start(|program| lab.on_server(program.arg("--interface").arg("eth1").arg("--cores").arg("4")));
    let plain = || Program::new(&["/usr/bin/python3", "-c"]);
    let ours = || service.accelerated("/usr/bin/python3 -c");
    for (server, client, address) in [
        (lab.on_server(ours()), lab.on_client(plain()), SERVER),
        (lab.on_client(plain()), lab.on_server(ours()), CLIENT),
    ] {
        let before = received(&service.status());
        let mut server = with(server, lines("server", address)).start(scratch.path(address));
        server.wait_for("ready", 30);
        assert_eq!(with(client, lines("client", address)).run(60).ok().trim(), "done");
        let status = service.status();
        let came: Vec<u64> = received(&status).iter().zip(&before).map(|(after, before)| after - before).collect();
        assert!(came.iter().sum::<u64>() >= CONNECTIONS * ROUNDS, "{came:?}");
        assert!(came.iter().filter(|count| **count > 0).count() > 1, "the device uses several queues: {came:?}");
        // The first segments of a connection may be faster than its installation. Queues chosen at random would be wrong for three
        // of four segments.
        let relayed = status["slow"]["relayed_segments"].as_u64().expect("a count");
        assert!(relayed < CONNECTIONS * ROUNDS / 8, "{relayed} segments were handed on; {came:?}");
    }
}
