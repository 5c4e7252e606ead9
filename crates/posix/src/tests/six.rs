//! AF_INET6 sockets.

use super::os::*;
use crate::fd::table::{self, Descriptor};
use crate::handler::Posix;
use core::ffi::c_int;
use libc::{sockaddr_in6, socklen_t};
use std::net::{Ipv4Addr, Ipv6Addr};
use towpath_hook::{Handler, outcome, real};

const LOCALHOST: Ipv6Addr = Ipv6Addr::LOCALHOST;
const MAPPED: Ipv6Addr = Ipv4Addr::LOCALHOST.to_ipv6_mapped();

fn address6(address: Ipv6Addr, port: u16) -> sockaddr_in6 {
    sockaddr_in6 {
        sin6_family: libc::AF_INET6 as u16,
        sin6_port: port.to_be(),
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: address.octets() },
        sin6_scope_id: 0,
    }
}

fn socket6() -> c_int {
    start();
    // SAFETY: integers only.
    unsafe { Posix::socket(libc::AF_INET6, libc::SOCK_STREAM, 0) }.expect("ours").expect("socket")
}

type Named = unsafe fn(c_int, *const libc::sockaddr, socklen_t) -> Option<Os<c_int>>;

fn call(
    what: Named,
    otherwise: impl FnOnce(*const libc::sockaddr, socklen_t) -> c_int,
    fd: c_int,
    at: (Ipv6Addr, u16),
) -> Os<c_int> {
    let (addr, len) = (address6(at.0, at.1), size_of::<sockaddr_in6>() as socklen_t);
    let addr = (&raw const addr).cast();
    // SAFETY: `addr` is a local of `len` bytes.
    unsafe { what(fd, addr, len) }.unwrap_or_else(|| outcome(otherwise(addr, len)))
}

fn bind6(fd: c_int, address: Ipv6Addr) -> Os<c_int> {
    // SAFETY: `call` gives a local of `len` bytes.
    call(Posix::bind, |addr, len| unsafe { real::bind(fd, addr, len) }, fd, (address, 0))
}

fn connect6(fd: c_int, address: Ipv6Addr, port: u16) -> Os<c_int> {
    // SAFETY: `call` gives a local of `len` bytes.
    call(Posix::connect, |addr, len| unsafe { real::connect(fd, addr, len) }, fd, (address, port))
}

/// The name that the call returns, with its family.
fn named(what: impl FnOnce(*mut libc::sockaddr, *mut socklen_t) -> Option<Os<c_int>>) -> (Ipv6Addr, u16) {
    let mut addr = address6(Ipv6Addr::UNSPECIFIED, 0);
    addr.sin6_family = 0;
    let mut len = size_of::<sockaddr_in6>() as socklen_t;
    what((&raw mut addr).cast(), &raw mut len).expect("ours").expect("a name");
    assert_eq!((c_int::from(addr.sin6_family), len), (libc::AF_INET6, 28));
    (Ipv6Addr::from_octets(addr.sin6_addr.s6_addr), u16::from_be(addr.sin6_port))
}

fn own(fd: c_int) -> (Ipv6Addr, u16) {
    // SAFETY: `named` gives a local of `len` bytes.
    named(|addr, len| unsafe {
        // The kernel knows the name of its own half of a listener.
        Posix::getsockname(fd, addr, len).or_else(|| Some(outcome(real::getsockname(fd, addr, len))))
    })
}

fn peer(fd: c_int) -> (Ipv6Addr, u16) {
    // SAFETY: `named` gives a local of `len` bytes.
    named(|addr, len| unsafe { Posix::getpeername(fd, addr, len) })
}

fn listener6(address: Ipv6Addr, v6only: c_int) -> (c_int, u16) {
    let fd = socket6();
    set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, v6only).expect("option");
    bind6(fd, address).expect("bind");
    listen(fd).expect("listen");
    assert!(table::socket(fd).is_some(), "the stack took the listener");
    (fd, own(fd).1)
}

#[test]
fn connections_over_ipv6_have_names_of_ipv6() {
    let (listening, port) = listener6(LOCALHOST, 0);
    assert_eq!(own(listening).0, LOCALHOST);
    let ours = socket6();
    connect6(ours, LOCALHOST, port).expect("connect");
    let mut from = (Ipv6Addr::UNSPECIFIED, 0);
    let mut theirs = -1;
    from.clone_from(&named(|addr, len| {
        // SAFETY: `named` gives a local of `len` bytes.
        theirs = unsafe { Posix::accept4(listening, addr, len, 0) }.expect("ours").expect("accept");
        Some(Ok(0))
    }));
    assert_eq!(from, own(ours));
    assert_eq!((peer(ours), own(theirs), peer(theirs)), ((LOCALHOST, port), (LOCALHOST, port), own(ours)));
    assert_eq!(option(theirs, libc::SOL_SOCKET, libc::SO_DOMAIN), Ok(libc::AF_INET6));
    send(ours, b"six", 0).expect("send");
    assert_eq!(recv(theirs, 3, libc::MSG_WAITALL), Ok(b"six".to_vec()));
    close_both(ours, theirs);
    close(listening).expect("close");
}

#[test]
fn a_listener_of_both_families_shows_ipv4_mapped() {
    let (listening, port) = listener6(Ipv6Addr::UNSPECIFIED, 0);
    assert_eq!(option(listening, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY), Ok(0));
    let four = socket(0);
    connect(four, port).expect("connect");
    let theirs = accept(listening, 0).expect("accept");
    assert_eq!(peer(theirs), (MAPPED, port_of(four)));
    assert_eq!(own(theirs), (MAPPED, port));
    let mapped = socket6();
    connect6(mapped, MAPPED, port).expect("connect");
    assert_eq!(peer(mapped), (MAPPED, port));
    let other = accept(listening, 0).expect("accept");
    assert_eq!(peer(other), own(mapped));
    for fd in [four, theirs, mapped, other, listening] {
        close(fd).expect("close");
    }
}

#[test]
fn a_listener_of_ipv6_alone_takes_no_ipv4() {
    let (listening, port) = listener6(Ipv6Addr::UNSPECIFIED, 1);
    assert_eq!(option(listening, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY), Ok(1));
    assert_eq!(set_option(listening, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0), Err(libc::EINVAL));
    let four = socket(0);
    assert_eq!(connect(four, port), Err(libc::ECONNREFUSED), "neither the stack nor the kernel listens there");
    let only = socket6();
    set_option(only, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1).expect("option");
    assert_eq!(connect6(only, MAPPED, port), Err(libc::ENETUNREACH), "as on the kernel");
    let any = socket6();
    connect6(any, Ipv6Addr::UNSPECIFIED, port).expect("connecting to any is connecting to this host");
    assert_eq!(peer(any), (LOCALHOST, port));
    for fd in [four, only, any, listening] {
        close(fd).expect("close");
    }
}

#[test]
fn link_local_addresses_stay_with_the_kernel() {
    let fd = socket6();
    let _ = connect6(fd, Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1), 9);
    assert!(!matches!(table::get(fd), Descriptor::Slot { .. }));
    close(fd).expect("close");
}

/// Each family has options of its own, as on Linux; the family of the packets decides.
#[test]
fn type_of_service_and_hop_limit_are_separate_for_each_family() {
    let (ip, ipv6) = (libc::IPPROTO_IP, libc::IPPROTO_IPV6);
    let (listening, port) = listener6(LOCALHOST, 0);
    let fd = socket6();
    set_option(fd, ipv6, libc::IPV6_TCLASS, 0x20).expect("before connecting");
    connect6(fd, LOCALHOST, port).expect("connect");
    for (level, name, value) in [
        (ip, libc::IP_TOS, 0x10),
        (ip, libc::IP_TTL, 9),
        (ipv6, libc::IPV6_UNICAST_HOPS, 7),
        (ipv6, libc::IPV6_RECVERR, 1),
    ] {
        set_option(fd, level, name, value).expect("option");
    }
    let read = |level, name| option(fd, level, name).expect("option");
    assert_eq!((read(ip, libc::IP_TOS), read(ip, libc::IP_TTL), read(ip, libc::IP_RECVERR)), (0x10, 9, 0));
    assert_eq!((read(ipv6, libc::IPV6_TCLASS), read(ipv6, libc::IPV6_UNICAST_HOPS)), (0x20, 7));
    assert_eq!(read(ipv6, libc::IPV6_RECVERR), 1);
    let shown = table::socket(fd).expect("a slot").options().read().1;
    assert_eq!((shown.tos, shown.ttl, shown.tclass, shown.hops, shown.flags), (0x10, 9, 0x20, 7, 4));
    for fd in [fd, listening] {
        close(fd).expect("close");
    }
}
