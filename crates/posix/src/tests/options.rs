//! Options: a slot answers as a kernel socket does.

use super::os::*;
use crate::fd::table;
use core::ffi::c_int;
use std::net::{TcpListener, TcpStream};
use std::os::fd::IntoRawFd;
use towpath_ring::options::{Options, option_flags};

/// A connected kernel socket that the library does not know.
fn kernels() -> c_int {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    TcpStream::connect(listener.local_addr().expect("an address")).expect("connect").into_raw_fd()
}

const INTEGERS: [(c_int, c_int); 19] = [
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::SOL_SOCKET, libc::SO_INCOMING_CPU),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::IPPROTO_TCP, libc::TCP_SYNCNT),
    (libc::IPPROTO_TCP, libc::TCP_LINGER2),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
    (libc::IPPROTO_TCP, libc::TCP_QUICKACK),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IP, libc::IP_TTL),
    (libc::IPPROTO_IP, libc::IP_RECVERR),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
];

#[test]
fn options_answer_as_the_kernels_do() {
    let (ours, theirs) = pair();
    let native = kernels();
    for (level, name) in INTEGERS {
        let same = |what: &str| {
            let (slot, kernel) = (option(ours, level, name), option(native, level, name));
            // A kernel connection knows the CPU that received for it.
            if name != libc::SO_INCOMING_CPU || level != libc::SOL_SOCKET {
                assert_eq!(slot, kernel, "option {level} {name}, {what}");
            }
        };
        same("before");
        for value in [-2, -1, 0, 1, 2, 5, 87, 88, 99, 127, 128, 200, 255, 256, 32_767, 32_768, c_int::MAX] {
            // The kernel checks values that no TCP on this host can have.
            if (level, name) == (libc::SOL_SOCKET, libc::SO_INCOMING_CPU) {
                continue;
            }
            let (slot, kernel) = (set_option(ours, level, name, value), set_option(native, level, name, value));
            assert_eq!(slot, kernel, "option {level} {name} set to {value}");
            same(&format!("after {value}"));
        }
        assert_eq!(set_option(ours, level, name, 1u8).is_ok(), set_option(native, level, name, 1u8).is_ok());
    }
    close_both(ours, theirs);
    close(native).expect("close");
}

#[test]
fn the_shortest_segments_are_checked() {
    let (ours, theirs) = pair();
    for (value, outcome) in
        [(0, Ok(0)), (87, Err(libc::EINVAL)), (88, Ok(0)), (32_767, Ok(0)), (32_768, Err(libc::EINVAL))]
    {
        assert_eq!(set_option(ours, libc::IPPROTO_TCP, libc::TCP_MAXSEG, value), outcome, "{value}");
    }
    close_both(ours, theirs);
}

#[test]
fn congestion_control_has_names() {
    let (listening, port) = listener(0);
    let fd = socket(0);
    let set = |fd, name: &[u8; 16]| set_option(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, *name);
    let name = |fd| get_option::<[u8; 16]>(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION);
    // An algorithm that the kernel lacks.
    assert_eq!(set(fd, b"timely\0\0\0\0\0\0\0\0\0\0"), Ok(0));
    assert_eq!(name(fd), Ok(*b"timely\0\0\0\0\0\0\0\0\0\0"));
    connect(fd, port).expect("connect");
    assert_eq!(name(fd), Ok(*b"timely\0\0\0\0\0\0\0\0\0\0"), "carried over");
    assert_eq!(set(fd, b"nosuch\0\0\0\0\0\0\0\0\0\0"), Err(libc::ENOENT));
    assert_eq!(set(fd, b"cubic\0\0\0\0\0\0\0\0\0\0\0"), Ok(0));
    assert_eq!(name(fd), Ok(*b"cubic\0\0\0\0\0\0\0\0\0\0\0"));
    let socket = table::socket(fd).expect("a slot");
    assert_eq!(socket.options().read().1.congestion, 2);
    close_both(fd, listening);
}

#[test]
fn the_pacing_rate_has_two_forms() {
    let (ours, theirs) = pair();
    let (level, name) = (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE);
    assert_eq!(get_option::<u64>(ours, level, name), Ok(u64::MAX));
    assert_eq!(get_option::<u32>(ours, level, name), Ok(u32::MAX));
    set_option(ours, level, name, 5_000_000_000u64).expect("option");
    assert_eq!(get_option::<u64>(ours, level, name), Ok(5_000_000_000));
    assert_eq!(get_option::<u32>(ours, level, name), Ok(u32::MAX));
    set_option(ours, level, name, 125_000u32).expect("option");
    assert_eq!(get_option::<u64>(ours, level, name), Ok(125_000));
    set_option(ours, level, name, u32::MAX).expect("option");
    assert_eq!(get_option::<u64>(ours, level, name), Ok(u64::MAX));
    close_both(ours, theirs);
}

/// RFC 9293 MUST-51, MUST-52.
#[test]
fn a_socket_with_ip_options_is_the_kernels() {
    let listening = unconnected();
    listen(listening).expect("listen");
    let fd = socket(0);
    let nothing = u32::from_ne_bytes([1, 1, 1, 0]);
    set_option(fd, libc::IPPROTO_IP, libc::IP_OPTIONS, nothing).expect("option");
    connect(fd, port_of(listening)).expect("the listener's kernel half");
    let theirs = accept(listening, 0).expect("accept");
    assert!(table::socket(fd).is_none() && table::socket(theirs).is_none());
    close(theirs).expect("close");
    close(fd).expect("close");
    close(listening).expect("close");
}

/// Options set before `connect` and `listen` are on the options line when the command comes. A connection begins with
/// its listener's options.
#[test]
fn the_stack_is_shown_what_was_set_before() {
    let (level, tcp) = (libc::SOL_SOCKET, libc::IPPROTO_TCP);
    let listening = unconnected();
    set_option(listening, tcp, libc::TCP_KEEPIDLE, 33).expect("option");
    set_option(listening, libc::IPPROTO_IP, libc::IP_TOS, 0x2b).expect("option");
    listen(listening).expect("listen");
    let fd = socket(0);
    set_option(fd, level, libc::SO_KEEPALIVE, 1).expect("option");
    set_option(fd, tcp, libc::TCP_KEEPCNT, 3).expect("option");
    set_option(fd, tcp, libc::TCP_SYNCNT, 4).expect("option");
    set_option(fd, tcp, libc::TCP_LINGER2, -5).expect("option");
    set_option(fd, tcp, libc::TCP_MAXSEG, 500).expect("option");
    assert_eq!(set_option(fd, tcp, libc::TCP_MAXSEG, 50), Err(libc::EINVAL));
    set_option(fd, libc::IPPROTO_IP, libc::IP_TTL, 9).expect("option");
    set_option(fd, level, libc::SO_MAX_PACING_RATE, 77_000u32).expect("option");
    connect(fd, port_of(listening)).expect("connect");
    let theirs = accept(listening, 0).expect("accept");
    let shown = |fd| table::socket(fd).expect("a slot").options().read().1;
    let expected = Options {
        flags: option_flags::KEEPALIVE,
        keep_count: 3,
        syn_retries: 4,
        linger2_s: -1,
        max_segment: 500,
        ttl: 9,
        max_pacing: 77_000,
        ..Options::default()
    };
    assert_eq!(shown(fd), expected);
    let expected = Options { keep_idle_s: 33, tos: 0x28, ..Options::default() };
    assert_eq!((shown(listening), shown(theirs)), (expected, expected));
    for fd in [fd, theirs, listening] {
        close(fd).expect("close");
    }
}
