//! A user's share of the service's descriptors.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::client::until;
use common::{Service, StackCall};
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::sync::atomic::Ordering::Relaxed;
use towpath_ring::control::{Reply, Request, recv_reply, send_request};
use towpath_ring::layout::VERSION;

/// The errno with which a new client is refused.
fn refused(service: &Service) -> Option<i32> {
    let socket = service.connect();
    // The service may refuse without reading.
    let _ = send_request(socket.as_fd(), &Request::Hello { version: VERSION, join: 0, features: u32::MAX }, &[]);
    match recv_reply(socket.as_fd()).unwrap() {
        (Reply::Refused { errno }, _) => Some(errno),
        _ => None,
    }
}

#[test]
fn a_share_of_descriptors_bounds_clients_contexts_and_reservations() {
    // 56 are left beside the reserve.
    let service = Service::with("share", |settings| settings.descriptors = 64);
    // Each 1 for the connection and 7 for the client.
    let first = service.client();
    for _ in 0..4 {
        first.context().unwrap();
    }
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    for slot in 0..32 {
        first.send(&Request::Reserve { slot, seq: 1, listens: true }, &[&socket]).unwrap();
    }
    let reserved = |call: &StackCall| matches!(call, StackCall::Reserve { .. });
    until("all are reserved", || service.stack.count(reserved) == 32);
    let second = service.client();
    assert_eq!(refused(&service), Some(Errno::NFILE.raw_os_error()), "48 and 8 are taken");
    drop(second);
    until("the share is there again", || refused(&service).is_none());
    drop(first);
    // The stack frees the slots.
    for call in service.stack.calls.lock().unwrap().iter_mut() {
        if let StackCall::Reserve { held, .. } = call {
            *held = None;
        }
    }
    until("all is given back", || service.state.registry().connections.is_empty());
    let third = service.client();
    for _ in 0..4 {
        third.context().unwrap();
    }
}

#[test]
fn clients_that_have_ended_count_until_the_stack_has_forgotten_them() {
    let service = Service::with("drains", |settings| settings.live.change(|live| live.clients_per_user = 2));
    service.stack.drains.store(true, Relaxed);
    for ended in 1..=2 {
        drop(service.client());
        until("the stack knows", || service.stack.removed() == ended);
    }
    let refused = || refused(&service);
    until("the connections are over", || refused() == Some(Errno::USERS.raw_os_error()));
    until("no connection is left", || service.state.registry().connections.is_empty());
    assert_eq!(refused(), Some(Errno::USERS.raw_os_error()), "for their regions");
    service.stack.leases.lock().unwrap().clear();
    assert_eq!(refused(), None);
}
