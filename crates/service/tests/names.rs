//! Sockets that are passed to other processes: naming them, and telling the receiver where they live.
#![allow(clippy::unwrap_used)]

mod common;

use common::client::{a_moment, until};
use common::{Client, Service};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use towpath_ring::control::{Reply, Request, recv_reply, send_request};

/// Shows the service a descriptor on a connection, before or after Hello.
fn whose(connection: &OwnedFd, end: &OwnedFd) -> Reply {
    send_request(connection.as_fd(), &Request::Adopt, &[end.as_fd()]).unwrap();
    recv_reply(connection.as_fd()).unwrap().0
}

fn refused(errno: Errno) -> Reply {
    Reply::Refused { errno: errno.raw_os_error() }
}

fn name(client: &Client, slot: u32, generation: u32, end: &OwnedFd) {
    client.send(&Request::Name { slot, generation }, &[end]).unwrap();
    // The answer to this request shows that the name has been processed.
    whose(&client.socket, end);
}

#[test]
fn who_has_a_descriptor_is_told_where_its_socket_lives() {
    let service = Service::start("named");
    let client = service.client();
    let end = client.attach(7, 3);
    assert_eq!(whose(&client.socket, &end), refused(Errno::AGAIN), "nobody has named it");
    name(&client, 7, 3, &end);
    let adopted = Reply::Adopted { token: client.token, slot: 7, generation: 3 };
    let other = service.client();
    assert_eq!(whose(&other.socket, &end.try_clone().unwrap()), adopted);
    // The question may come before Hello, which then joins the region.
    let connection = service.connect();
    assert_eq!(whose(&connection, &end), adopted);
    let member = Client::hello(connection, client.token).unwrap();
    assert_eq!(member.token, client.token);
    // The region lives on in the other process, and the socket in every holder of a descriptor.
    drop(client);
    a_moment();
    assert_eq!(whose(&member.socket, &end), adopted);
    drop(end);
    until("it hangs up", || service.stack.hangups() == [(7, 3)]);
    assert_eq!(service.stack.removed(), 0);
}

#[test]
fn a_descriptor_cannot_be_forged() {
    let service = Service::start("forged");
    let (client, other) = (service.client(), service.client());
    let end = client.attach(7, 3);
    name(&client, 7, 3, &end);
    let pair = || {
        let (kind, flags) = (rustix::net::SocketType::STREAM, rustix::net::SocketFlags::CLOEXEC);
        rustix::net::socketpair(rustix::net::AddressFamily::UNIX, kind, flags, None).unwrap()
    };
    let (mine, _theirs) = pair();
    assert_eq!(whose(&other.socket, &mine), refused(Errno::AGAIN), "no other socket is it");
    let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let udp = OwnedFd::from(std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
    assert_eq!(whose(&other.socket, &file), refused(Errno::INVAL));
    assert_eq!(whose(&other.socket, &udp), refused(Errno::INVAL));
    // A receiver cannot redefine it.
    name(&other, 1, 1, &end);
    assert_eq!(whose(&other.socket, &end), Reply::Adopted { token: client.token, slot: 7, generation: 3 });
    // The slot's next socket takes the name over.
    let next = client.attach(7, 4);
    name(&client, 7, 4, &next);
    assert_eq!(whose(&other.socket, &end), refused(Errno::AGAIN));
    assert_eq!(whose(&other.socket, &next), Reply::Adopted { token: client.token, slot: 7, generation: 4 });
    assert!(!client.lost() && !other.lost());
    // A slot that does not exist cannot be named, nor a descriptor that is not one end of a pair.
    for (slot, descriptor) in [(64, &next), (u32::MAX, &next), (1, &file), (1, &udp)] {
        let bad = service.client();
        bad.send(&Request::Name { slot, generation: 1 }, &[descriptor]).unwrap();
        until("the connection is lost", || bad.lost());
    }
}

#[test]
fn questions_before_hello_come_to_an_end() {
    let service = Service::start("questions");
    let client = service.client();
    let (end, connection) = (client.attach(1, 1), service.connect());
    let mut asked = 0;
    while send_request(connection.as_fd(), &Request::Adopt, &[end.as_fd()]).is_ok() && asked < 10_000 {
        asked += 1;
        match recv_reply(connection.as_fd()) {
            Ok((reply, _)) if reply == refused(Errno::AGAIN) => {}
            Ok((reply, _)) => assert_eq!(reply, refused(Errno::PROTO)),
            Err(_) => break,
        }
    }
    assert!((1000..2000).contains(&asked), "{asked} questions were answered");
    assert!(!client.lost());
}
