//! Clients that make the memory of their regions, and what they may bring instead.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::client::until;
use common::{Client, GEOMETRY, Service};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::sync::atomic::Ordering::Relaxed;
use towpath_ring::control::{Reply, Request, recv_reply, send_request};
use towpath_ring::layout::VERSION;
use towpath_ring::memory::new_memory;
use towpath_ring::{Geometry, Region};

fn service(name: &str) -> Service {
    let service = Service::with(name, |settings| settings.live.change(|live| live.clients_per_user = 2));
    service.stack.takes_client_memory.store(true, Relaxed);
    service
}

/// A connection that has said Hello and has been asked for memory, once the user has a place.
fn asked(service: &Service) -> OwnedFd {
    let mut asked = None;
    until("a place is free", || {
        let socket = service.connect();
        // The service may refuse without reading.
        let _ = send_request(socket.as_fd(), &Request::Hello { version: VERSION, join: 0, features: u32::MAX }, &[]);
        let answer = recv_reply(socket.as_fd()).unwrap().0;
        let full = answer == Reply::Refused { errno: Errno::USERS.raw_os_error() };
        assert!(full || answer == Reply::Make { geometry: GEOMETRY }, "{answer:?}");
        asked = Some(socket);
        !full
    });
    asked.unwrap()
}

fn inode(fd: &OwnedFd) -> u64 {
    rustix::fs::fstat(fd).unwrap().st_ino
}

#[test]
fn the_memory_that_a_client_brings_is_its_region_and_that_of_those_who_join() {
    let service = service("brought");
    let memory = new_memory(GEOMETRY).unwrap();
    let client = Client::bring(asked(&service), &memory).unwrap();
    assert_eq!(inode(&client.descriptors[0]), inode(&memory));
    assert_eq!(Region::map(memory.as_fd(), GEOMETRY).unwrap().token(), client.token);
    // Who joins is not asked.
    let socket = service.connect();
    let hello = Request::Hello { version: VERSION, join: client.token, features: u32::MAX };
    send_request(socket.as_fd(), &hello, &[]).unwrap();
    let (Reply::Welcome { token, .. }, descriptors) = recv_reply(socket.as_fd()).unwrap() else { panic!("refused") };
    assert_eq!((token, inode(&descriptors[0])), (client.token, inode(&memory)));
}

#[test]
fn whatever_is_no_such_memory_is_refused_and_takes_no_place() {
    let service = service("no-memory");
    let small = Geometry { slots: GEOMETRY.slots / 2, app_slots: 16, ..GEOMETRY };
    let things: [OwnedFd; 5] = [
        std::fs::File::open("/dev/zero").unwrap().into(),
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().into(),
        new_memory(small).unwrap(),
        std::fs::File::open("/").unwrap().into(),
        rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::CLOEXEC).unwrap(),
    ];
    // More often than the user may have clients.
    for thing in &things {
        assert_eq!(Client::bring(asked(&service), thing).unwrap_err(), Errno::IO.raw_os_error());
    }
    let others =
        [(Request::Context, vec![]), (Request::Hello { version: VERSION, join: 0, features: u32::MAX }, vec![])];
    for (request, descriptors) in others.into_iter().chain([(Request::Adopt, vec![things[0].as_fd()])]) {
        let socket = asked(&service);
        send_request(socket.as_fd(), &request, &descriptors).unwrap();
        assert_eq!(Client::welcomed(socket).unwrap_err(), Errno::PROTO.raw_os_error(), "{request:?}");
    }
    for _ in 0..3 {
        // It hangs up.
        drop(asked(&service));
    }
    assert_eq!(service.stack.count(|_| true), 0, "the stack has been told of one");
    // All places are free again.
    let clients = [(); 2].map(|()| Client::bring(asked(&service), &new_memory(GEOMETRY).unwrap()).unwrap());
    assert!(clients.iter().all(|client| !client.lost()));
}

#[test]
fn who_has_as_many_clients_as_it_may_is_refused_before_it_makes_memory() {
    let service = service("full");
    let _clients = [(); 2].map(|()| service.client());
    let socket = service.connect();
    // The service may refuse without reading.
    let _ = send_request(socket.as_fd(), &Request::Hello { version: VERSION, join: 0, features: u32::MAX }, &[]);
    let errno = Errno::USERS.raw_os_error();
    assert_eq!(recv_reply(socket.as_fd()).unwrap().0, Reply::Refused { errno });
}

#[test]
fn memory_that_nobody_has_asked_for_ends_the_conversation() {
    let service = service("unasked");
    let client = service.client();
    let memory = new_memory(GEOMETRY).unwrap();
    client.send(&Request::Region, &[&memory]).unwrap();
    until("the connection is lost", || client.lost());
}
