//! Clients register, attach sockets, ask for contexts and leave. A hostile client loses only its own connection.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::client::{a_moment, is_lost, until};
use common::{Client, GEOMETRY, Service, StackCall};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::Ordering;
use towpath_ring::control::{MESSAGE_BYTES, Reply, Request, recv_reply, send_request};
use towpath_ring::layout::VERSION;
use towpath_ring::lines::app_flags;
use towpath_ring::{Region, wake};
use towpath_service::admission::{Admission, Admit};
use towpath_service::control::{self, Asker, Place};

#[test]
fn welcome_carries_the_region_and_the_doorbells() {
    let service = Service::start("welcome");
    let client = service.client();
    assert_eq!(client.geometry, GEOMETRY);
    // The memfd, and the doorbells of two flow groups and of the command queue.
    assert_eq!(client.descriptors.len(), 4);
    let region = Region::map(client.descriptors[0].as_fd(), client.geometry).unwrap();
    assert_eq!(region.token(), client.token);
    let calls = service.stack.calls.lock().unwrap();
    let (uid, own) = (rustix::process::geteuid().as_raw(), std::process::id() as i32);
    assert!(
        matches!(calls[..], [StackCall::Client { uid: u, pid, doorbells: 3, .. }] if u == uid && pid == own),
        "{calls:?}"
    );
}

#[test]
fn other_versions_and_unknown_regions_are_refused() {
    let service = Service::start("refused");
    let socket = service.connect();
    send_request(socket.as_fd(), &Request::Hello { version: VERSION + 1, join: 0, features: u32::MAX }, &[]).unwrap();
    assert_eq!(Client::welcomed(socket).unwrap_err(), Errno::PROTO.raw_os_error());
    assert_eq!(Client::hello(service.connect(), 12345).unwrap_err(), Errno::NOENT.raw_os_error());
    let socket = service.connect();
    send_request(socket.as_fd(), &Request::Context, &[]).unwrap();
    assert_eq!(Client::welcomed(socket).unwrap_err(), Errno::PROTO.raw_os_error());
    assert_eq!(service.stack.count(|_| true), 0);
}

#[test]
fn a_forked_child_joins_its_parents_region() {
    let service = Service::start("join");
    let parent = service.client();
    let child = Client::hello(service.connect(), parent.token).unwrap();
    assert_eq!(child.token, parent.token);
    let inode = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_ino;
    assert_eq!(inode(&child.descriptors[0]), inode(&parent.descriptors[0]));
    drop(parent);
    a_moment();
    assert_eq!(service.stack.removed(), 0, "the child is still there");
    drop(child);
    until("the client is removed", || service.stack.removed() == 1);
}

#[test]
fn contexts_are_numbered_and_numbers_are_used_again() {
    let service = Service::start("contexts");
    let client = service.client();
    let mut wakes = Vec::new();
    for number in 0..GEOMETRY.contexts {
        let (context, wake) = client.context().unwrap();
        assert_eq!(context, number);
        wakes.push(wake);
    }
    assert_eq!(client.context().unwrap_err(), Errno::NFILE.raw_os_error());
    assert!(!client.lost(), "one context too many is no offence");
    // The stack notifies the doorbell that the client got.
    {
        let calls = service.stack.calls.lock().unwrap();
        let notified = calls.iter().find_map(|t| match t {
            StackCall::Context { context: 2, wake, .. } => Some(wake),
            _ => None,
        });
        wake::notify(notified.unwrap().as_fd());
    }
    assert!(wake::drain(wakes[2].as_fd()));
    assert!(!wake::drain(wakes[1].as_fd()));
    client.send(&Request::DropContext { context: 1 }, &[]).unwrap();
    until("context 1 is dropped", || {
        service.stack.count(|t| matches!(t, StackCall::DropContext { context: 1, .. })) == 1
    });
    until("its number is free", || client.context().is_ok_and(|(number, _)| number == 1));
    // A second process gets the contexts of one that has ended.
    let child = Client::hello(service.connect(), client.token).unwrap();
    drop(client);
    until("all are dropped", || service.stack.count(|t| matches!(t, StackCall::DropContext { .. })) == 5);
    until("its numbers are free", || child.context().is_ok_and(|(number, _)| number == 0));
}

#[test]
fn a_socket_hangs_up_when_its_last_descriptor_is_closed() {
    let service = Service::start("hangup");
    let client = service.client();
    let end = client.attach(40, 7);
    let copy = end.try_clone().unwrap();
    drop(end);
    a_moment();
    assert_eq!(service.stack.hangups(), []);
    drop(copy);
    until("it hangs up", || service.stack.hangups() == [(40, 7)]);
    // A half-close is no hang-up.
    let end = client.attach(3, 1);
    rustix::net::shutdown(&end, rustix::net::Shutdown::Write).unwrap();
    a_moment();
    assert_eq!(service.stack.hangups().len(), 1);
    // A newer generation replaces the old end without a hang-up.
    let _newer = client.attach(3, 2);
    until("the old end is closed", || is_lost(&end));
    assert_eq!(service.stack.hangups().len(), 1);
}

#[test]
fn an_end_that_is_attached_anew_hangs_up_for_its_last_socket() {
    let service = Service::start("anew");
    let client = service.client();
    let end = client.attach(3, 1);
    let _second = client.attach(4, 1);
    client.send(&Request::Reattach { slot: 4, generation: 1, end: 4 }, &[]).unwrap();
    assert!(client.context().is_ok(), "it has been processed");
    drop(end);
    until("it hangs up", || service.stack.hangups() == [(4, 1)]);
    // The end has gone before it could be another socket's.
    let _third = client.attach(6, 9);
    client.send(&Request::Reattach { slot: 6, generation: 9, end: 4 }, &[]).unwrap();
    until("nobody has the new socket", || service.stack.hangups() == [(4, 1), (6, 9)]);
}

#[test]
fn what_the_library_has_closed_in_the_memory_is_not_told_twice() {
    let service = Service::start("told");
    let client = service.client();
    let (closed, open) = (client.attach(3, 1), client.attach(4, 1));
    let region = client.region();
    let slot = region.slot(3).unwrap();
    region.app(slot).generation.store(1, Ordering::Relaxed);
    region.app(slot).flags.store(app_flags::CLOSED, Ordering::Relaxed);
    drop(closed);
    drop(open);
    until("the other one hangs up", || service.stack.hangups() == [(4, 1)]);
    // The stack has not freed the slot: the process may have been killed before it could wake it.
    until("the stack is told after all", || service.stack.hangups() == [(4, 1), (3, 1)]);
}

/// Another process keeps the client, and would have to end before the stack would free the slot.
#[test]
fn what_a_killed_process_has_closed_in_the_memory_is_told_when_it_leaves() {
    let service = Service::start("killed");
    let client = service.client();
    let _sibling = Client::hello(service.connect(), client.token).unwrap();
    let end = client.attach(3, 1);
    let region = client.region();
    let slot = region.slot(3).unwrap();
    region.app(slot).generation.store(1, Ordering::Relaxed);
    region.app(slot).flags.store(app_flags::CLOSED, Ordering::Relaxed);
    drop((client, end));
    until("the stack is told", || service.stack.hangups() == [(3, 1)]);
    assert_eq!(service.stack.removed(), 0);
}

#[test]
fn a_late_hang_up_is_not_the_newer_sockets() {
    let service = Service::start("late");
    let client = service.client();
    let mut end = client.attach(3, 0);
    for generation in 1..=1000 {
        // The connection's thread wakes for the first request, and finds the hang-up and the third one together.
        let _other = client.attach(4, generation);
        drop(end);
        end = client.attach(3, generation);
        if generation % 10 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(!service.stack.hangups().contains(&(3, generation)), "the newer end, {generation}, is still open");
    }
    a_moment();
    assert!(!service.stack.hangups().contains(&(3, 1000)));
}

#[test]
fn each_process_has_a_number_under_which_its_end_is_told() {
    let service = Service::start("process");
    let parent = service.client();
    let child = Client::hello(service.connect(), parent.token).unwrap();
    let (first, second) = (parent.process, child.process);
    assert!(first != 0 && second != 0 && first != second);
    drop(child);
    let calls = |number| {
        service.stack.count(|calls| matches!(calls, StackCall::Departed { process, .. } if *process == number))
    };
    until("the child's end is calls", || calls(second) == 1);
    assert_eq!(calls(first), 0);
}

#[test]
fn a_client_lives_as_long_as_its_sockets() {
    let service = Service::start("lives");
    let client = service.client();
    let end = client.attach(1, 1);
    // As after exec: the connection is closed, but the socket was inherited.
    drop(client);
    a_moment();
    assert_eq!(service.stack.removed(), 0);
    drop(end);
    until("the client is removed", || service.stack.removed() == 1);
    assert_eq!(service.stack.hangups(), [(1, 1)]);
}

#[test]
fn a_port_is_reserved_until_the_stack_lets_go() {
    let service = Service::start("reserve");
    let client = service.client();
    // A bound socket that does not listen reserves the port as well as a listener would.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    client.send(&Request::Reserve { slot: 5, seq: 1, listens: true }, &[&OwnedFd::from(listener)]).unwrap();
    until("the stack is calls", || service.stack.count(|t| matches!(t, StackCall::Reserve { slot: 5, .. })) == 1);
    drop(client);
    until("the client is removed", || service.stack.removed() == 1);
    assert_eq!(TcpListener::bind(address).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    for calls in service.stack.calls.lock().unwrap().iter_mut() {
        if let StackCall::Reserve { held, .. } = calls {
            *held = None;
        }
    }
    until("the port is free", || TcpListener::bind(address).is_ok());
    until("the client connection has ended", || service.state.registry().connections.is_empty());
}

#[test]
fn a_port_is_free_when_the_pair_hangs_up() {
    let service = Service::start("freed");
    let client = service.client();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    client.send(&Request::Reserve { slot: 5, seq: 1, listens: true }, &[&OwnedFd::from(listener)]).unwrap();
    let end = client.attach(5, 1);
    let other = client.attach(6, 1);
    until("the stack is calls", || service.stack.count(|t| matches!(t, StackCall::Reserve { slot: 5, .. })) == 1);
    a_moment();
    assert!(!is_lost(&end));
    for calls in service.stack.calls.lock().unwrap().iter_mut() {
        if let StackCall::Reserve { held, .. } = calls {
            *held = None;
        }
    }
    until("the pair hangs up", || is_lost(&end));
    assert!(TcpListener::bind(address).is_ok(), "the port is still taken");
    assert!(!is_lost(&other));
    assert_eq!(service.stack.hangups(), []);
}

#[test]
fn a_hostile_client_loses_its_connection_only() {
    let service = Service::start("hostile");
    let good = service.client();
    let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let udp = || OwnedFd::from(std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
    // A client's own connection is of this kind.
    let packets = || {
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        pair.unwrap().0
    };
    let bad: Vec<(Request, Vec<OwnedFd>)> = vec![
        (Request::Hello { version: VERSION, join: 0, features: u32::MAX }, vec![]),
        (Request::Attach { slot: 64, generation: 1, end: 1 }, vec![file()]),
        (Request::Attach { slot: u32::MAX, generation: 1, end: 1 }, vec![file()]),
        (Request::Attach { slot: 1, generation: 1, end: 1 }, vec![file()]),
        (Request::Attach { slot: 1, generation: 1, end: 1 }, vec![udp()]),
        (Request::Attach { slot: 1, generation: 1, end: 1 }, vec![packets()]),
        (Request::Reserve { slot: 1, seq: 1, listens: true }, vec![file()]),
        (Request::Reserve { slot: 1, seq: 1, listens: true }, vec![udp()]),
        // A slot that only the stack may allocate.
        (
            Request::Reserve { slot: 40, seq: 1, listens: true },
            vec![OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap())],
        ),
        (Request::DropContext { context: 0 }, vec![]),
        (Request::DropContext { context: u32::MAX }, vec![]),
    ];
    let wrong_requests = bad.len();
    for (request, descriptors) in bad {
        let client = service.client();
        client.send(&request, &descriptors.iter().collect::<Vec<_>>()).unwrap();
        until(&format!("the connection is lost after {request:?}"), || client.lost());
    }
    // Packets of every length that are no messages, and more descriptors than any message has.
    let lengths = [1, 8, MESSAGE_BYTES - 1, MESSAGE_BYTES, MESSAGE_BYTES + 1, 4000];
    for length in lengths {
        let client = service.client();
        rustix::net::send(&client.socket, &vec![0xa5; length], rustix::net::SendFlags::NOSIGNAL).unwrap();
        until(&format!("the connection is lost after {length} bytes"), || client.lost());
    }
    let removed = wrong_requests + lengths.len();
    until("they are all removed", || service.stack.removed() == removed);
    assert!(!good.lost());
    assert!(good.context().is_ok(), "an honest client is still served");
}

#[test]
fn a_flood_of_requests_without_reading_ends_the_connection() {
    let service = Service::start("flood");
    let good = service.client();
    let client = service.client();
    let mut sent = 0;
    // Every request beyond the last context is refused. The client does not read the refusals.
    until("the connection is lost", || {
        while client.send(&Request::Context, &[]).is_ok() && sent < 1_000_000 {
            sent += 1;
        }
        client.lost()
    });
    assert!(good.context().is_ok());
}

#[test]
fn who_asks_for_what_is_not_his_pair_is_refused_and_served_on() {
    let service = Service::start("pairs");
    let client = service.client();
    for request in [
        Request::Pair { place: 0, pair: 1 },
        Request::Pair { place: u32::MAX, pair: 0 },
        Request::Doorbell { place: 63, pair: 7, context: 5 },
        Request::Doorbell { place: 64, pair: u32::MAX, context: u32::MAX },
    ] {
        client.send(&request, &[]).unwrap();
        let (reply, descriptors) = recv_reply(client.socket.as_fd()).unwrap();
        assert_eq!(
            (reply, descriptors.len()),
            (Reply::Refused { errno: Errno::NOENT.raw_os_error() }, 0),
            "{request:?}"
        );
    }
    assert!(client.context().is_ok());
}

#[test]
fn the_number_of_clients_per_user_is_limited() {
    let service = Service::with("limit", |settings| settings.live.change(|live| live.clients_per_user = 3));
    let mut clients: Vec<_> = (0..3).map(|_| service.client()).collect();
    let refused = service.connect();
    assert_eq!(Client::welcomed(refused).unwrap_err(), Errno::USERS.raw_os_error());
    clients.pop();
    until("there is room again", || Client::hello_or_refused(&service).is_ok());
}

#[test]
fn clients_that_share_one_memory_are_refused_to_other_users_even_to_root() {
    let service = Service::with("one-memory", |settings| {
        let own = rustix::process::geteuid().as_raw();
        let mut admission = Admission::new(own, &[Admit::Uid(STRANGER)]).unwrap();
        assert!(admission.restrict_clients_to_one());
        settings.live.change(|live| live.admission = admission.into());
    });
    assert_eq!(Client::welcomed(service.connect()).unwrap_err(), Errno::PERM.raw_os_error());
}

/// A user that does not run the tests.
const STRANGER: u32 = 65_534;

/// Registers as another user. Root takes the user id of a stranger; others use a service that believes to be another
/// user's.
fn as_stranger(name: &str, admit: &[Admit]) -> Result<u64, i32> {
    let own = rustix::process::geteuid();
    let service = Service::with(name, |settings| {
        let service_uid = if own.is_root() { 0 } else { own.as_raw() + 1 };
        let admission = Admission::new(service_uid, admit).unwrap();
        settings.live.change(|live| live.admission = admission.into());
    });
    towpath_service::paths::set_socket_mode(&service.scratch.socket(), true).unwrap();
    let path = service.scratch.socket();
    let register = move || {
        if own.is_root() {
            // Only this thread changes its user, and it ends here.
            let stranger = rustix::process::Uid::from_raw(STRANGER);
            rustix::thread::set_thread_res_uid(stranger, stranger, stranger).unwrap();
        }
        let socket = common::connect(&path).unwrap();
        let _ = send_request(socket.as_fd(), &Request::Hello { version: VERSION, join: 0, features: u32::MAX }, &[]);
        Client::welcomed(socket).map(|client| client.token)
    };
    std::thread::spawn(register).join().unwrap()
}

#[test]
fn only_who_is_admitted_is_served() {
    let own = rustix::process::geteuid();
    let stranger = if own.is_root() { STRANGER } else { own.as_raw() };
    assert_eq!(as_stranger("strict", &[]), Err(Errno::PERM.raw_os_error()));
    assert_eq!(as_stranger("other", &[Admit::Uid(stranger - 1)]), Err(Errno::PERM.raw_os_error()));
    assert!(as_stranger("admits", &[Admit::Uid(stranger)]).is_ok());
    assert!(as_stranger("open", &[Admit::All]).is_ok());
}

#[test]
fn the_control_interface_shows_others_only_their_own() {
    let service = Service::with("control", |settings| {
        let admission = Admission::new(1000, &[Admit::Uid(1001), Admit::Uid(1002)]).unwrap();
        settings.live.change(|live| live.admission = admission.into());
    });
    for uid in [1000, 1001, 1001, 1002] {
        service.stack.listed.lock().unwrap().push(uid);
    }
    let ask_from = |place, uid, command: &str| {
        let line = format!("{{\"command\":\"{command}\"}}\n");
        let text = control::answer(&service.state, &line, Asker { uid, gid: uid, pid: 1, place });
        serde_json::from_str::<serde_json::Value>(&text).unwrap()
    };
    let ask = |uid, command: &str| ask_from(Place::Here, uid, command);
    let listed = |uid| ask(uid, "sockets")["sockets"].as_array().unwrap().len();
    assert_eq!([0, 1000, 1001, 1002].map(listed), [4, 4, 2, 1]);
    let clients = |uid| ask(uid, "status")["clients"].as_array().unwrap().len();
    assert_eq!([0, 1000, 1001, 1002].map(clients), [4, 4, 2, 1]);
    let files = |uid| {
        let status = ask(uid, "status");
        let (policy, configuration) = (&status["policy"], &status["configuration"]);
        [&policy["generation"], &policy["hash"], configuration].map(|one| !one.is_null())
    };
    assert_eq!([0, 1000, 1001].map(files), [[true; 3], [true; 3], [false; 3]]);
    assert_eq!(ask(1001, "log")["error"], "only the service's own user and root may see and set what is logged");
    let refusal = ask(1003, "sockets");
    assert!(refusal["error"].as_str().unwrap().contains("admit"), "{refusal}");
    let refusal = ask(1001, "stop");
    assert_eq!(refusal["error"], "only the service's own user and root may stop it");
    let refusal = ask_from(Place::Container, 0, "stop");
    assert_eq!(refusal["error"], "only the service's own user and root may stop it; from a container nobody may");
    for (place, seen) in [(Place::Container, 1), (Place::OtherNetwork, 0)] {
        assert_eq!(ask_from(place, 1000, "sockets")["sockets"].as_array().unwrap().len(), seen);
    }
    assert!(!service.state.stop_requested());
    assert!(ask(1000, "stop").get("pid").is_some());
    assert!(service.state.stop_requested());
}

#[test]
fn two_services_do_not_share_a_socket_and_a_dead_ones_is_replaced() {
    use towpath_service::server::Sockets;
    let service = Service::start("two");
    let path = service.scratch.socket();
    let error = Sockets::listen(&path, false).err().unwrap().to_string();
    assert_eq!(error, format!("another service already listens on {}", path.display()));
    let scratch = common::Scratch::new("stale");
    // A killed service leaves sockets without a listener, and an unlocked lock file.
    for name in ["towpath.sock", "control.sock"] {
        drop(std::os::unix::net::UnixListener::bind(scratch.0.join(name)).unwrap());
    }
    std::fs::write(scratch.0.join("towpath.lock"), "").unwrap();
    let sockets = Sockets::listen(&scratch.socket(), false).unwrap();
    common::connect(&scratch.socket()).unwrap();
    drop(sockets);
    assert!(!scratch.socket().exists());
    // A file that is no socket is not removed.
    std::fs::write(scratch.socket(), "precious").unwrap();
    assert!(Sockets::listen(&scratch.socket(), false).is_err());
    assert_eq!(std::fs::read_to_string(scratch.socket()).unwrap(), "precious");
}

impl Client {
    fn hello_or_refused(service: &Service) -> Result<Client, i32> {
        let socket = service.connect();
        // A refused connection may be closed before Hello is sent.
        let _ = send_request(socket.as_fd(), &Request::Hello { version: VERSION, join: 0, features: u32::MAX }, &[]);
        match recv_reply(socket.as_fd()) {
            Ok((Reply::Refused { errno }, _)) => Err(errno),
            Ok((Reply::Welcome { geometry, token, process, .. }, descriptors)) => {
                Ok(Client { socket, token, process, geometry, descriptors })
            }
            other => panic!("{other:?}"),
        }
    }
}
