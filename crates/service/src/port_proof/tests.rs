//! The hostile cases: each shows a socket that does not give its user the port.
#![allow(clippy::unwrap_used)]

use super::*;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A user who is not the one that runs the tests.
const STRANGER: u32 = 12_345;

fn socket(family: AddressFamily) -> OwnedFd {
    rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP)).unwrap()
}

/// A socket of this user, bound with `SO_REUSEADDR`.
fn bound_by(uid: u32, local: SocketAddr) -> Result<OwnedFd, Errno> {
    let socket = as_user(uid, || socket(if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }));
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &local)?;
    Ok(socket)
}

fn any_port() -> (OwnedFd, SocketAddr) {
    let socket = bound_by(0, (Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let local = bound_to(&socket).unwrap();
    (socket, local)
}

fn try_prove(shown: &OwnedFd) -> Result<(OwnedFd, Grant), i32> {
    prove(shown, own_namespace())
}

/// Another user's attempt to listen at an address, by the kernel alone.
fn kernel_lets_listen(uid: u32, local: SocketAddr) -> Result<(), Errno> {
    bound_by(uid, local).and_then(|socket| rustix::net::listen(&socket, 1))
}

#[test]
fn a_bound_socket_proves_its_port_and_the_port_stays_held_without_it() {
    for reuse in [true, false] {
        let (shown, local) = any_port();
        sockopt::set_socket_reuseaddr(&shown, reuse).unwrap();
        let (own, grant) = try_prove(&shown).unwrap();
        assert_eq!(grant, Grant { addr: local.ip(), port: local.port(), dual: false });
        assert_eq!(sockopt::socket_reuseaddr(&shown), Ok(reuse), "the client's option is as before");
        drop(shown);
        // As beside the client's own socket: two that have the option share the port.
        let beside = if reuse { Ok(()) } else { Err(Errno::ADDRINUSE) };
        assert_eq!(kernel_lets_listen(STRANGER, local), beside);
        let alone = rustix::net::bind(socket(AddressFamily::INET), &local);
        assert_eq!(alone, Err(Errno::ADDRINUSE));
        drop(own);
        assert_eq!(rustix::net::bind(socket(AddressFamily::INET), &local), Ok(()));
    }
}

#[test]
fn a_socket_without_a_port_proves_nothing() {
    assert_eq!(try_prove(&socket(AddressFamily::INET)).unwrap_err(), -libc::EINVAL);
    let datagram = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
    assert_eq!(try_prove(&datagram).unwrap_err(), -libc::EINVAL);
    let unix = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    assert_eq!(try_prove(&unix).unwrap_err(), -libc::EINVAL);
}

#[test]
fn a_connection_proves_nothing_of_its_listeners_port_and_an_unbound_socket_nothing_of_its_last() {
    let (listener, local) = any_port();
    rustix::net::listen(&listener, 1).unwrap();
    let client = socket(AddressFamily::INET);
    rustix::net::connect(&client, &local).unwrap();
    let accepted = rustix::net::accept(&listener).unwrap();
    drop(listener);
    for end in [&accepted, &client] {
        assert_eq!(try_prove(end).unwrap_err(), -libc::EISCONN);
    }
    // A reset ends the connection, and the accepted socket lets go of its port.
    sockopt::set_socket_linger(&client, Some(std::time::Duration::ZERO)).unwrap();
    drop(client);
    assert_eq!(try_prove(&accepted).unwrap_err(), -libc::EINVAL);
}

#[test]
fn a_port_on_one_device_is_left_to_the_kernel() {
    let (shown, _) = any_port();
    let name = b"lo\0";
    // SAFETY: `name` outlives the call and has the length given.
    let result = unsafe {
        let name = name.as_ptr().cast();
        libc::setsockopt(shown.as_raw_fd(), libc::SOL_SOCKET, libc::SO_BINDTODEVICE, name, 3)
    };
    assert_eq!(result, 0);
    assert_eq!(try_prove(&shown).unwrap_err(), NOT_OURS + not_ours::ELSEWHERE as i32);
}

#[test]
fn nobody_gets_in_beside_a_port_that_was_bound_alone() {
    for _ in 0..200 {
        let shown = socket(AddressFamily::INET);
        rustix::net::bind(&shown, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let local = bound_to(&shown).unwrap();
        let proven = std::thread::scope(|scope| {
            let attacker = scope.spawn(|| (0..100).any(|_| kernel_lets_listen(STRANGER, local).is_ok()));
            let proven = try_prove(&shown);
            assert!(!attacker.join().unwrap());
            proven
        });
        assert!(proven.is_ok(), "{proven:?}");
        assert!(!sockopt::socket_reuseport(&shown).unwrap(), "the client's option is as before");
    }
}

#[test]
fn a_socket_that_is_unbound_later_leaves_the_port_held() {
    let taken_by_another = |proven: bool| {
        let (shown, local) = any_port();
        let held = proven.then(|| try_prove(&shown).unwrap());
        // The end of a connection frees a port that the kernel has chosen.
        assert_eq!(rustix::net::connect(&shown, &any_port().1), Err(Errno::CONNREFUSED));
        let taken = rustix::net::bind(socket(AddressFamily::INET), &local);
        drop(held);
        taken
    };
    assert_eq!(taken_by_another(false), Ok(()));
    assert_eq!(taken_by_another(true), Err(Errno::ADDRINUSE));
}

#[test]
fn a_group_that_shares_a_port_is_of_one_user() {
    let member = |uid, local: SocketAddr| {
        let socket = as_user(uid, || socket(AddressFamily::INET));
        sockopt::set_socket_reuseport(&socket, true).unwrap();
        rustix::net::bind(&socket, &local).map(|()| socket)
    };
    let first = member(STRANGER, (Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let local = bound_to(&first).unwrap();
    let (_own, _) = try_prove(&first).unwrap();
    drop(first);
    let second = member(STRANGER, local).unwrap();
    let (_own_too, grant) = try_prove(&second).unwrap();
    assert_eq!(grant.port, local.port());
    assert_eq!(member(STRANGER + 1, local).unwrap_err(), Errno::ADDRINUSE);
}

#[test]
fn a_port_of_six_is_none_of_four() {
    let shown = socket(AddressFamily::INET6);
    sockopt::set_ipv6_v6only(&shown, true).unwrap();
    rustix::net::bind(&shown, &SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))).unwrap();
    let (own, grant) = try_prove(&shown).unwrap();
    assert!(!grant.dual && sockopt::ipv6_v6only(&own).unwrap());
    let both = socket(AddressFamily::INET6);
    sockopt::set_ipv6_v6only(&both, false).unwrap();
    rustix::net::bind(&both, &SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))).unwrap();
    assert!(try_prove(&both).unwrap().1.dual);
}

#[test]
fn a_socket_of_another_namespace_is_left_to_its_kernel() {
    let elsewhere = NOT_OURS + not_ours::ELSEWHERE as i32;
    let (shown, _) = any_port();
    let home = own_namespace().unwrap();
    assert_eq!(prove(&shown, Some(home + 1)).unwrap_err(), elsewhere);
    assert_eq!(prove(&shown, None).unwrap_err(), elsewhere);
}

#[test]
fn a_socket_is_joined_only_if_the_usual_routes_of_its_namespace_are_its_own() {
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        assert_eq!(joinable(&socket(family)), own_namespace());
        let on_device = socket(family);
        assert_eq!(set(&on_device, libc::SO_BINDTODEVICE, b"lo\0"), Ok(()));
        assert_eq!(joinable(&on_device), None);
        let marked = socket(family);
        assert_eq!(set(&marked, libc::SO_MARK, &7u32.to_ne_bytes()), Ok(()), "this needs CAP_NET_ADMIN");
        assert_eq!(joinable(&marked), None);
    }
    assert_eq!(joinable(&any_port().0), None, "it has a port");
    let udp = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
    assert_eq!(joinable(&udp), None);
    assert_eq!(joinable(&std::os::unix::net::UnixStream::pair().unwrap().0.into()), None);
    assert_eq!(joinable(&std::fs::File::open("/dev/null").unwrap().into()), None);
}

fn set(socket: &OwnedFd, option: i32, value: &[u8]) -> Result<(), Errno> {
    let length = value.len() as libc::socklen_t;
    // SAFETY: the option is read from `value`, which has `length` bytes.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value.as_ptr().cast(), length) };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}
