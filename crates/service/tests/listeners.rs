//! Listeners whose descriptors stay listening sockets of the kernel.
#![allow(clippy::unwrap_used)]

mod common;

use common::client::{a_moment, until};
use common::{Client, Service};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::sockopt;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use towpath_ring::command::{NOT_OURS, not_ours};
use towpath_ring::control::{Reply, Request, recv_reply};
use towpath_runtime::{ListenerProof, Proof};

fn service(name: &str) -> Service {
    let service = Service::start(name);
    service.stack.listens_in_kernel.store(true, Ordering::Relaxed);
    service
}

fn listening() -> (OwnedFd, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener.into(), address)
}

/// Shows the listener for a slot, and waits for what the stack is told.
fn show(service: &Service, client: &Client, slot: u32, listener: &OwnedFd) -> Proof {
    let before = service.stack.proofs().len();
    client.send(&Request::Reserve { slot, seq: 1, listens: true }, &[listener]).unwrap();
    until("the stack is told", || service.stack.proofs().len() > before);
    let (told, proof) = service.stack.proofs()[before];
    assert_eq!(told, slot);
    proof
}

fn proof_of(listener: &OwnedFd, address: SocketAddr) -> Proof {
    let cookie = sockopt::socket_cookie(listener).unwrap();
    Proof::Listener(ListenerProof { cookie, addr: address.ip(), port: address.port(), dual: false })
}

fn adopt(client: &Client, shown: &OwnedFd) -> Reply {
    client.send(&Request::Adopt, &[shown]).unwrap();
    recv_reply(client.socket.as_fd()).unwrap().0
}

#[test]
fn the_stack_is_told_which_socket_listens_and_the_client_has_its_only_copy() {
    let service = service("listens");
    let client = service.client();
    let (listener, address) = listening();
    assert_eq!(show(&service, &client, 5, &listener), proof_of(&listener, address));
    let bound = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    assert_eq!(show(&service, &client, 6, &bound), Proof::Refused(-libc::EINVAL));
    drop(listener);
    // The listener's slot is not free yet, but its port is.
    assert!(TcpListener::bind(address).is_ok());
}

#[test]
fn a_socket_is_one_listener_until_the_stack_lets_it_go() {
    let service = service("once");
    let (client, other) = (service.client(), service.client());
    let (listener, address) = listening();
    let kernels = Proof::Refused(NOT_OURS + not_ours::ELSEWHERE as i32);
    assert_eq!(show(&service, &client, 5, &listener), proof_of(&listener, address));
    assert_eq!(show(&service, &client, 6, &listener), kernels);
    assert_eq!(show(&service, &other, 5, &listener), kernels);
    service.stack.free(5);
    // The program acts as soon as the stack has freed the slot, whatever the service's thread has seen of that.
    assert_eq!(show(&service, &client, 7, &listener), proof_of(&listener, address));
}

#[test]
fn a_listener_outlives_the_connection_of_its_client() {
    let service = service("outlives");
    let client = service.client();
    let (listener, address) = listening();
    assert_eq!(show(&service, &client, 5, &listener), proof_of(&listener, address));
    drop(client);
    a_moment();
    assert_eq!(service.stack.removed(), 0, "another process may have the socket");
    service.stack.free(5);
    until("the client is removed", || service.stack.removed() == 1);
    let client = service.client();
    assert_eq!(show(&service, &client, 0, &listener), proof_of(&listener, address));
}

/// Somebody has its socket who cannot take it over: a program without the library, or another user's.
#[test]
fn a_listener_that_no_process_of_the_client_serves_is_left_to_the_kernel() {
    let service = service("deserted");
    let (first, second) = (service.client(), service.client());
    let other = Client::hello(service.connect(), second.token).unwrap();
    for client in [&first, &second] {
        let (listener, address) = listening();
        assert_eq!(show(&service, client, 5, &listener), proof_of(&listener, address));
        std::mem::forget(listener);
    }
    drop((first, second));
    until("the client without a process is removed", || service.stack.removed() == 1);
    drop(other);
    until("nobody is left of the other one", || service.stack.removed() == 2);
}

#[test]
fn a_listener_is_found_by_its_socket_while_it_lasts() {
    let service = service("found");
    let client = service.client();
    let (listener, _) = listening();
    show(&service, &client, 5, &listener);
    assert_eq!(adopt(&client, &listener), Reply::Refused { errno: libc::EAGAIN }, "nobody has named it");
    client.send(&Request::Name { slot: 5, generation: 3 }, &[&listener]).unwrap();
    let (token, slot, generation) = (client.token, 5, 3);
    assert_eq!(adopt(&client, &listener), Reply::Adopted { token, slot, generation });
    service.stack.free(5);
    until("it is nowhere", || adopt(&client, &listener) == Reply::Refused { errno: libc::EAGAIN });
}

/// A namespace that no table names, or the service's own, is no other one, whatever the rules are.
#[test]
fn a_client_is_joined_only_from_a_namespace_that_the_configuration_names() {
    let service = service("joins");
    let client = service.client();
    let join = |slot: u32, shown: &OwnedFd| {
        let before = service.stack.proofs().len();
        let remote_addr = Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped();
        client.send(&Request::Join { slot, seq: 1, remote_addr, remote_port: 80 }, &[shown]).unwrap();
        until("the stack is told", || service.stack.proofs().len() > before);
        service.stack.proofs()[before]
    };
    let fresh = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    let refused = |why: u32| Proof::Refused(NOT_OURS + why as i32);
    assert_eq!(join(5, &fresh), (5, refused(not_ours::NAMESPACE)));
    assert_eq!(join(6, &listening().0), (6, refused(not_ours::ELSEWHERE)));
    // No port has so many bits, and no region so many slots: the client loses its connection.
    for (slot, remote_port) in [(7, 65_536), (1 << 20, 80)] {
        let client = service.client();
        let remote_addr = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
        client.send(&Request::Join { slot, seq: 1, remote_addr, remote_port }, &[&fresh]).unwrap();
        assert!(recv_reply(client.socket.as_fd()).is_err());
    }
}
