//! Two clients of one stack talk over its loopback port.
#![allow(clippy::unwrap_used)]

mod common;

use common::{LOCAL, stack};
use towpath_contract_tests::app::{App, eventually, small};
use towpath_ring::Geometry;
use towpath_ring::command::{NOT_OURS, not_ours};
use towpath_rng::Rng;
use towpath_runtime::Stack;

/// Sends `bytes` random bytes through an echo server and compares the answer.
fn echo(flow_groups: usize, bytes: usize) {
    let stack = stack(flow_groups);
    let (server, client) = (App::new(&stack, small(flow_groups)), App::new(&stack, small(flow_groups)));
    let mut listener = server.listen(LOCAL, 7, 8).unwrap();
    let serve = std::thread::spawn(move || {
        let mut sock = listener.accept();
        let mut buffer = [0; 4096];
        loop {
            match sock.read(&mut buffer).unwrap() {
                0 => break,
                n => sock.write_all(&buffer[..n]).unwrap(),
            }
        }
        sock.close();
        listener.close();
    });
    let mut sock = client.connect(LOCAL, 7).unwrap();
    let (mut sent, mut got) = (vec![0; 1500], vec![0; 1500]);
    let mut noise = Rng::new(flow_groups as u64 + 1);
    for _ in 0..bytes / sent.len() {
        noise.fill(&mut sent);
        sock.write_all(&sent).unwrap();
        sock.read_exact(&mut got).unwrap();
        assert_eq!(sent, got);
    }
    sock.shutdown();
    assert_eq!(sock.read(&mut got), Ok(0));
    sock.close();
    serve.join().unwrap();
    eventually("all slots are free", || client.busy_slots() + server.busy_slots() == 0);
    eventually("no flow group has a flow", || stack.status().flow_groups.iter().all(|c| c.flows == 0));
    drop(stack);
}

#[test]
fn echo_on_one_core() {
    echo(1, 3_000_000);
}

#[test]
fn echo_on_two_cores() {
    echo(2, 3_000_000);
}

#[test]
fn not_ours() {
    let stack = stack(1);
    let client = App::new(&stack, small(1));
    let because = |why: u32| Some(NOT_OURS + why as i32);
    assert_eq!(client.connect(LOCAL, 9).err(), because(not_ours::NO_LISTENER), "no listener: the kernel may have one");
    assert_eq!(client.connect([192, 0, 2, 1].into(), 9).err(), because(not_ours::ELSEWHERE));
    assert_eq!(client.connect([224, 0, 0, 1].into(), 9).err(), because(not_ours::ADDRESS));
    assert_eq!(client.listen([192, 0, 2, 1].into(), 9, 1).err(), because(not_ours::ELSEWHERE), "not our address");
    let listener = client.listen(LOCAL, 9, 1).unwrap();
    assert_eq!(client.listen(LOCAL, 9, 1).err(), Some(-98), "EADDRINUSE");
    assert_eq!(client.connect(LOCAL, 10).err(), because(not_ours::NO_LISTENER), "another port of ours");
    assert_eq!(stack.status().not_ours, [0, 2, 2, 0, 1, 0, 0, 0, 0], "counted by reason");
    listener.close();
    eventually("all slots are free", || client.busy_slots() == 0);
}

#[test]
fn thousand_connections() {
    let stack = stack(2);
    let geometry = Geometry {
        slots: 2048,
        app_slots: 1024,
        tx_bytes: 4096,
        rx_bytes: 16384,
        contexts: 1,
        flow_groups: 2,
        ..Geometry::DEFAULT
    };
    let (server, client) = (App::new(&stack, geometry), App::new(&stack, geometry));
    let mut listener = server.listen(LOCAL, 7, 1024).unwrap();
    let serve = std::thread::spawn(move || {
        let mut socks = Vec::new();
        for _ in 0..1000 {
            socks.push(listener.accept());
        }
        for sock in &mut socks {
            let mut word = [0; 8];
            sock.read_exact(&mut word).unwrap();
            sock.write_all(&word).unwrap();
        }
        for mut sock in socks {
            assert_eq!(sock.read(&mut [0; 8]), Ok(0));
            sock.close();
        }
        listener.close();
    });
    let mut socks: Vec<_> = (0..1000).map(|_| client.connect(LOCAL, 7).unwrap()).collect();
    for (i, sock) in socks.iter_mut().enumerate() {
        sock.write_all(&(i as u64).to_le_bytes()).unwrap();
    }
    let established = || stack.connections().iter().filter(|c| c.state == "ESTAB").count();
    eventually("both ends of all are established", || established() == 2000);
    for (i, sock) in socks.iter_mut().enumerate() {
        let mut word = [0; 8];
        sock.read_exact(&mut word).unwrap();
        assert_eq!(u64::from_le_bytes(word), i as u64);
    }
    let flows: Vec<u64> = stack.status().flow_groups.iter().map(|c| c.flows).collect();
    assert!(flows.iter().all(|f| *f > 500), "both flow groups have their share: {flows:?}");
    for sock in socks {
        sock.close();
    }
    serve.join().unwrap();
    eventually("all slots are free", || client.busy_slots() + server.busy_slots() == 0);
    eventually("no flow group has a flow", || stack.status().flow_groups.iter().all(|c| c.flows == 0));
}
