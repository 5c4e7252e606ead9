//! A client's sockets that linger. Neither the end nor other clients wait for them.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::client::until;
use common::{Client, Service, StackCall};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;
use towpath_ring::control::{Request, send_request};
use towpath_ring::layout::VERSION;

/// Longer than any test waits.
const LINGER: Duration = Duration::from_secs(200);

/// A TCP socket whose last close takes as long as it lingers, and the peer, which never reads.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    while near.write(&[0; 65536]).map_or_else(|error| error.kind() != ErrorKind::WouldBlock, |_| true) {}
    let near = OwnedFd::from(near);
    rustix::net::sockopt::set_socket_linger(&near, Some(LINGER)).unwrap();
    (near, far)
}

fn reservations(service: &Service) -> usize {
    service.stack.count(|call| matches!(call, StackCall::Reserve { .. }))
}

/// The stack frees the slots of all reservations.
fn free_all(service: &Service) {
    for call in service.stack.calls.lock().unwrap().iter_mut() {
        if let StackCall::Reserve { held, .. } = call {
            *held = None;
        }
    }
}

fn ends(service: Service) {
    service.state.request_stop();
    until("the service has ended", || service.is_over());
    service.wait_end();
}

#[test]
fn a_reserved_socket_that_lingers_does_not_delay_the_end() {
    let service = Service::start("linger-end");
    let client = service.client();
    let (socket, _peer) = lingering();
    client.send(&Request::Reserve { slot: 0, seq: 1, listens: true }, &[&socket]).unwrap();
    until("it is reserved", || reservations(&service) == 1);
    // The client sets it once more, and leaves the last descriptor to the service.
    rustix::net::sockopt::set_socket_linger(&socket, Some(LINGER)).unwrap();
    drop(socket);
    ends(service);
}

#[test]
fn a_client_is_served_on_when_its_lingering_socket_is_released() {
    let service = Service::start("linger-freed");
    let client = service.client();
    let (socket, _peer) = lingering();
    client.send(&Request::Reserve { slot: 0, seq: 1, listens: true }, &[&socket]).unwrap();
    drop(socket);
    until("it is reserved", || reservations(&service) == 1);
    free_all(&service);
    assert!(client.context().is_ok());
    ends(service);
}

#[test]
fn sockets_that_linger_in_unread_messages_delay_nobody() {
    let service = Service::start("linger-unread");
    let other = service.client();
    let mut peers = Vec::new();
    let mut reserve = |socket: &OwnedFd| {
        let (near, far) = lingering();
        peers.push(far);
        send_request(socket.as_fd(), &Request::Reserve { slot: 0, seq: 1, listens: true }, &[near.as_fd()]).unwrap();
    };
    // The first message ends the connection, and the others are never read as messages.
    for first in [Request::Context, Request::Hello { version: VERSION + 1, join: 0, features: u32::MAX }] {
        let socket = {
            // Nobody is admitted as long as the registry is locked.
            let _registry = service.state.registry();
            let socket = service.connect();
            send_request(socket.as_fd(), &first, &[]).unwrap();
            for _ in 0..2 {
                reserve(&socket);
            }
            socket
        };
        assert_eq!(Client::welcomed(socket).unwrap_err(), Errno::PROTO.raw_os_error());
    }
    // A first message that has a descriptor itself.
    let socket = service.connect();
    reserve(&socket);
    assert_eq!(Client::welcomed(socket).unwrap_err(), Errno::PROTO.raw_os_error());
    until("the connections are gone", || service.state.registry().connections.len() == 1);
    assert!(other.context().is_ok());
    ends(service);
}

#[test]
fn a_refused_client_leaves_nothing_to_the_main_loop() {
    let service = Service::with("linger-refused", |settings| settings.live.change(|live| live.clients_per_user = 0));
    let (near, _far) = lingering();
    let socket = {
        // The main loop gets no further than this lock.
        let _registry = service.state.registry();
        let socket = service.connect();
        send_request(socket.as_fd(), &Request::Reserve { slot: 0, seq: 1, listens: true }, &[near.as_fd()]).unwrap();
        drop(near);
        socket
    };
    assert_eq!(Client::welcomed(socket).unwrap_err(), Errno::USERS.raw_os_error());
    assert_eq!(Client::welcomed(service.connect()).unwrap_err(), Errno::USERS.raw_os_error(), "the next");
    ends(service);
}

/// Any message with a descriptor.
const RESERVE: Request = Request::Reserve { slot: 0, seq: 1, listens: true };

/// A UNIX socket whose close takes as long as the TCP socket lingers that a message in it has.
fn holding_one() -> (OwnedFd, TcpStream) {
    let flags = SocketFlags::CLOEXEC;
    let (near, far) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let (inner, peer) = lingering();
    send_request(far.as_fd(), &RESERVE, &[inner.as_fd()]).unwrap();
    (near, peer)
}

/// Threads of this process that finish what a refused client has left.
fn finishing() -> usize {
    let name = |task: &std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks.filter_map(Result::ok).filter(|task| name(task) == "refused\n").count()
}

#[test]
fn what_refused_clients_leave_keeps_no_thread() {
    let service = Service::with("linger-nested", |settings| settings.live.change(|live| live.clients_per_user = 0));
    let mut peers = Vec::new();
    for _ in 0..80 {
        let (near, peer) = holding_one();
        peers.push(peer);
        let socket = {
            let _registry = service.state.registry();
            let socket = service.connect();
            send_request(socket.as_fd(), &RESERVE, &[near.as_fd()]).unwrap();
            drop(near);
            socket
        };
        assert_eq!(Client::welcomed(socket).unwrap_err(), Errno::USERS.raw_os_error());
    }
    until("no thread is kept", || finishing() == 0);
    ends(service);
}

#[test]
fn an_empty_packet_hides_nothing_behind_it() {
    let service = Service::start("linger-empty");
    let other = service.client();
    let (near, _peer) = lingering();
    let socket = {
        let _registry = service.state.registry();
        let socket = service.connect();
        send_request(socket.as_fd(), &Request::Context, &[]).unwrap();
        rustix::net::send(&socket, &[], SendFlags::NOSIGNAL).unwrap();
        send_request(socket.as_fd(), &RESERVE, &[near.as_fd()]).unwrap();
        drop(near);
        socket
    };
    assert_eq!(Client::welcomed(socket).unwrap_err(), Errno::PROTO.raw_os_error());
    until("the connection is gone", || service.state.registry().connections.len() == 1);
    assert!(other.context().is_ok(), "the thread that serves all goes on");
    ends(service);
}
