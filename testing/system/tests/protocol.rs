//! A hostile client without the library says every message of the registration protocol, and gives every command, out of
//! order, without rights, and in excess. It loses its own connection at most.
#![allow(clippy::expect_used, clippy::unwrap_used)]

use rustix::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::Duration;
use towpath_ring::command::{Command, op};
use towpath_ring::control::{Reply, Request};
use towpath_rng::Rng;
use towpath_system_tests::attacker::{Answer, descriptors, requests};
use towpath_system_tests::{Attacker, Service, require_root, until};

/// A user other than root.
const OTHER: u32 = 23_461;
const SOON: Duration = Duration::from_millis(1);

fn service() -> Service {
    Service::start(|program| program.arg("--admit").arg("all"))
}

/// The service serves honest programs, has lost no thread, and forgets those that have gone.
fn check(service: &Service) {
    let script = "import socket, threading
l = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(l.getsockname()); s, _ = l.accept()
threading.Thread(target=lambda: c.sendall(b'x' * 300000)).start()
got = 0
while got < 300000: got += len(s.recv(65536))
print(got)";
    assert_eq!(service.accelerated("python3 -c").arg(script).run(60).ok().trim(), "300000");
    until("all clients are forgotten", 60, || service.status()["clients"].as_array().is_some_and(Vec::is_empty));
    let log = service.running.output();
    assert!(!log.contains("panicked") && !log.contains("ERROR"), "{log}");
}

/// Takes what has been answered so far. False: the service has hung up.
fn is_served(attacker: &Attacker) -> bool {
    loop {
        match attacker.answer(SOON) {
            Answer::Said(..) => {}
            Answer::Lost => return false,
            Answer::Silence => return true,
        }
    }
}

#[test]
fn every_message_before_hello_ends_the_conversation() {
    let service = service();
    let mut random = Rng::new(1);
    let things = descriptors();
    for request in requests(&mut random) {
        let hello = matches!(request, Request::Hello { .. });
        for count in 0..3 {
            let attacker = Attacker::connect(&service);
            let carried: Vec<_> = things.iter().take(count).map(OwnedFd::as_fd).collect();
            let fits = count == request.descriptors();
            match attacker.ask(&request, &carried) {
                Answer::Said(Reply::Welcome { .. } | Reply::Make { .. }, _) => {
                    assert!(hello && fits, "{request:?} with {count}")
                }
                Answer::Said(Reply::Refused { .. }, 0) => {}
                Answer::Lost => assert!(!fits, "{request:?} with {count} is told why"),
                other => panic!("{request:?} with {count}: {other:?}"),
            }
        }
    }
    check(&service);
}

/// Every request with every descriptor, in a new order each time, by clients that are given another try when they have
/// lost their connection.
#[test]
fn every_message_in_any_order_harms_the_sender_at_most() {
    let service = service();
    let mut random = Rng::new(2);
    let mut attacker = Attacker::registered(&service);
    let (mut lost, mut served) = (0, 0);
    for _ in 0..40 {
        let things = descriptors();
        for request in requests(&mut random) {
            let own: Vec<_> = attacker.given().map(OwnedFd::as_fd).collect();
            let carried = match random.below(8) {
                0 => vec![own[random.below(own.len() as u64) as usize]],
                1 => vec![attacker.socket.as_fd()],
                2 => vec![things[0].as_fd(), things[1].as_fd()],
                _ if request.descriptors() == 0 => vec![],
                _ => vec![things[random.below(things.len() as u64) as usize].as_fd()],
            };
            let sent = attacker.send(&request, &carried);
            if sent.is_ok() && is_served(&attacker) {
                served += 1;
            } else {
                lost += 1;
                attacker = Attacker::registered(&service);
            }
        }
    }
    assert!(lost > 100 && served > 100, "{lost} lost, {served} served");
    drop(attacker);
    check(&service);
}

/// A thread of this process that is another user for the kernel.
fn as_other<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| {
        let body = || {
            // SAFETY: integers only. The raw calls change the ids of this thread alone.
            let changed = unsafe {
                libc::syscall(libc::SYS_setresgid, OTHER, OTHER, OTHER)
                    | libc::syscall(libc::SYS_setresuid, OTHER, OTHER, OTHER)
            };
            assert_eq!(changed, 0);
            work()
        };
        scope.spawn(body).join().expect("the other user's thread")
    })
}

fn errno(answer: &Answer) -> Option<i32> {
    if let Answer::Said(Reply::Refused { errno }, 0) = answer { Some(*errno) } else { None }
}

#[test]
fn another_users_regions_sockets_pairs_and_contexts_are_out_of_reach() {
    require_root();
    let service = service();
    let victim = Attacker::registered(&service);
    let (end, theirs) = UnixStream::pair().expect("pair");
    victim.send(&Request::Attach { slot: 5, generation: 1, end: 5 }, &[theirs.as_fd()]).expect("attach");
    victim.send(&Request::Name { slot: 5, generation: 1 }, &[end.as_fd()]).expect("name");
    let Answer::Said(Reply::Context { context }, 1) = victim.ask(&Request::Context, &[]) else { panic!("a context") };
    let located = || match victim.ask(&Request::Adopt, &[end.as_fd()]) {
        Answer::Said(Reply::Adopted { token, slot: 5, generation: 1 }, 0) => token == victim.region().token(),
        _ => false,
    };
    assert!(located());
    let service = &service;
    let (victims, shown) = (victim.region().token(), end.as_fd());
    as_other(move || {
        let refused = Attacker::joined(service, victims).err().expect("another user's region");
        assert_eq!(errno(&refused), Some(libc::ENOENT));
        assert_eq!(errno(&Attacker::connect(service).ask(&Request::Adopt, &[shown])), Some(libc::EPERM));
        let own = Attacker::registered(service);
        assert_eq!(errno(&own.ask(&Request::Adopt, &[shown])), Some(libc::EPERM), "a descriptor that was passed on");
        own.send(&Request::Name { slot: 1, generation: 9 }, &[shown]).expect("name");
        assert_eq!(errno(&own.ask(&Request::Adopt, &[shown])), Some(libc::EPERM), "its name stays");
        for place in [0, 63] {
            for pair in [0, 1, u32::MAX] {
                assert_eq!(errno(&own.ask(&Request::Pair { place, pair }, &[])), Some(libc::ENOENT));
                let doorbell = Request::Doorbell { place, pair, context };
                assert_eq!(errno(&own.ask(&doorbell, &[])), Some(libc::ENOENT));
            }
        }
        own.send(&Request::DropContext { context }, &[]).expect("drop");
        assert!(!is_served(&own) || matches!(own.answer(Duration::from_secs(20)), Answer::Lost), "it is not his");
    });
    assert!(located(), "the victim's socket is where it was");
    let Answer::Said(Reply::Context { context: next }, 1) = victim.ask(&Request::Context, &[]) else {
        panic!("served")
    };
    assert_ne!(next, context, "the victim's context is still its own");
    // A client lives as long as its sockets.
    drop((victim, end, theirs));
    check(service);
}

#[test]
fn what_is_asked_for_in_excess_is_refused_and_given_back() {
    let service = service();
    check(&service);
    let before = descriptors_of(&service);
    let attacker = Attacker::registered(&service);
    let contexts = attacker.region().geometry().contexts;
    let given = (0..contexts + 50).filter(|_| errno(&attacker.ask(&Request::Context, &[])).is_none()).count();
    assert_eq!(given as u32, contexts);
    // Ends of pairs for many slots, again and again. A new one replaces the old one.
    let mut ends = Vec::new();
    for generation in 0..3 {
        for slot in 0..500 {
            let (end, theirs) = UnixStream::pair().expect("pair");
            let sent = attacker.send(&Request::Attach { slot, generation, end: slot }, &[theirs.as_fd()]);
            sent.and_then(|()| attacker.send(&Request::Name { slot, generation }, &[end.as_fd()])).expect("served");
            ends.push(end);
        }
        ends.truncate(250);
    }
    // The same end for two slots costs its sender the connection at most.
    let (end, theirs) = UnixStream::pair().expect("pair");
    for slot in [1, 2, 1, 2, 1] {
        let _ = attacker.send(&Request::Attach { slot, generation: 9, end: 7 }, &[theirs.as_fd()]);
        let _ = attacker.send(&Request::Name { slot, generation: 9 }, &[end.as_fd()]);
    }
    // More connections than have a right to be, which say nothing.
    let silent: Vec<_> = (0..300).map(|_| Attacker::connect(&service)).collect();
    drop((silent, attacker, ends, end, theirs));
    until("the silent ones are forgotten", 60, || Attacker::joined(&service, 0).is_ok());
    let attacker = Attacker::registered(&service);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    // Reservations that no command uses. Beyond the user's share they are dropped.
    let slots = attacker.region().geometry().app_slots;
    for seq in 0..20_000 {
        let reserve = Request::Reserve { slot: seq % slots, seq, listens: true };
        if attacker.send(&reserve, &[listener.as_fd()]).is_err() || (seq % 512 == 0 && !is_served(&attacker)) {
            break;
        }
    }
    drop(attacker);
    check(&service);
    until("all descriptors are given back", 60, || descriptors_of(&service) <= before + 20);
}

/// Descriptors of the service, in the tables of all its threads.
fn descriptors_of(service: &Service) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", service.running.worker())).expect("tasks").flatten();
    tasks.map(|task| std::fs::read_dir(task.path().join("fd")).map_or(0, Iterator::count)).sum()
}

#[test]
fn every_command_on_every_slot_harms_the_sender_at_most() {
    let service = service();
    let mut random = Rng::new(4);
    for round in 0..6 {
        let attacker = Attacker::registered(&service);
        let region = attacker.region();
        let geometry = region.geometry();
        let (mut tail, here) = (0, std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped());
        for number in 0..600u32 {
            let raw = if number % 4 == 0 { random.below(geometry.slots.into()) } else { random.below(6) } as u32;
            let slot = region.slot(raw).expect("slot");
            let mut word = || [0, 7392, 80, 65_535, 65_536, u32::MAX, 5][random.below(7) as usize];
            let command = Command {
                op: if number % 3 == 0 { word() } else { [op::CONNECT, op::LISTEN, number % 12][number as usize % 3] },
                remote_addr: if number % 5 == 0 { std::net::Ipv6Addr::from(u128::from(word()) << 96) } else { here },
                remote_port: word(),
                local_addr: if number % 2 == 0 { here } else { std::net::Ipv6Addr::UNSPECIFIED },
                local_port: word(),
                backlog: word(),
                flags: word(),
            };
            let line = region.command(slot);
            // Also before the last one has been answered, and with a number that was used before.
            line.holder.store(word(), Ordering::Relaxed);
            let seq = line.post(&command);
            if number % 7 == 0 {
                line.seq.store(seq.wrapping_sub(1), Ordering::Release);
            }
            let app = region.app(slot);
            app.generation.store(region.stack(slot).generation.load(Ordering::Relaxed), Ordering::Relaxed);
            // Closed, aborted, a peer that is said to have broken the contract, and flags that do not exist.
            app.flags.store(if number % 9 == 0 { word() } else { 1 << (number % 32) }, Ordering::Relaxed);
            region.commands().push_again(&mut tail, slot);
            attacker.ring();
            if number % 50 == 0 {
                std::thread::sleep(SOON);
            }
        }
        // The last answer comes, or the client leaves in the middle.
        if round % 2 == 0 {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    check(&service);
}
