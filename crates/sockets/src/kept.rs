//! Options that are kept and read back as the kernel would: those of SOL_SOCKET by the socketpair that stands in the descriptor's place,
//! those that are on or off in the slot's private part, numbers in its options line. That shows them, and some of the others, to a stack
//! that has sockets of a kernel, for which they are in effect; for any other they are not.

use crate::private::flag;
use crate::socket::Socket;
use crate::steer;
use crate::sys::{self, Sys};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use libc::c_int;
use towpath_ring::OptionsLine;
use towpath_ring::lines::{option_flags, state};

/// Names of Linux that libc lacks.
const TCP_TX_DELAY: c_int = 37;
const IPV6_MINHOPCOUNT: c_int = 73;
/// The least `TCP_WINDOW_CLAMP` (Linux: half of `SOCK_MIN_RCVBUF`).
const LEAST_WINDOW: c_int = 1152;
/// The highest number of `IP_MTU_DISCOVER` (`IP_PMTUDISC_OMIT`).
const PMTUDISC_MAX: c_int = 5;

/// SOL_SOCKET options that an AF_UNIX socket treats as a TCP socket does.
const BY_PAIR: [c_int; 10] = [
    libc::SO_BROADCAST,
    libc::SO_DONTROUTE,
    libc::SO_TIMESTAMP,
    libc::SO_TIMESTAMPNS,
    libc::SO_DEBUG,
    libc::SO_MARK,
    libc::SO_RXQ_OVFL,
    libc::SO_PEEK_OFF,
    libc::SO_BUSY_POLL,
    libc::SO_PRIORITY,
];

/// Those that are on or off, each in the bit of its place; and whether only 0 and 1 may be set.
const BITS: [(c_int, c_int, bool); 18] = [
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY, true),
    (libc::IPPROTO_TCP, libc::TCP_THIN_LINEAR_TIMEOUTS, true),
    (libc::IPPROTO_TCP, libc::TCP_SAVE_SYN, true),
    (libc::IPPROTO_TCP, libc::TCP_INQ, true),
    (libc::IPPROTO_IP, libc::IP_RECVTOS, false),
    (libc::IPPROTO_IP, libc::IP_RECVTTL, false),
    (libc::IPPROTO_IP, libc::IP_PKTINFO, false),
    (libc::IPPROTO_IP, libc::IP_FREEBIND, false),
    (libc::IPPROTO_IP, libc::IP_TRANSPARENT, false),
    (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, false),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, false),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, false),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, false),
    (libc::IPPROTO_IPV6, libc::IPV6_FREEBIND, false),
    (libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, false),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, true),
    (libc::IPPROTO_TCP, libc::TCP_THIN_DUPACK, true),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_NO_COOKIE, true),
];

/// Numbers: where, the lowest and highest that may be set, and the number that is not stored because it is there at first.
fn number(line: &OptionsLine, level: c_int, name: c_int) -> Option<(&AtomicU32, c_int, c_int, c_int)> {
    Some(match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT) => (&line.not_sent_low_water, c_int::MIN, c_int::MAX, 0),
        (libc::IPPROTO_TCP, TCP_TX_DELAY) => (&line.send_delay_us, 0, c_int::MAX, 0),
        (libc::IPPROTO_TCP, libc::TCP_FASTOPEN) => (&line.fast_open, 0, c_int::MAX, 0),
        (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP) => (&line.window_clamp, c_int::MIN, c_int::MAX, 0),
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER) | (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER) => {
            (&line.path_mtu_discovery, 0, PMTUDISC_MAX, 1)
        }
        (libc::IPPROTO_IP, libc::IP_MINTTL) | (libc::IPPROTO_IPV6, IPV6_MINHOPCOUNT) => (&line.least_hops, 0, 255, 0),
        _ => return None,
    })
}

/// What else the stack is shown: a bit of the line's flags, or a word of it.
enum Shown<'a> {
    Bit(u32),
    Word(&'a AtomicU32),
}

fn shown(line: &OptionsLine, level: c_int, name: c_int) -> Option<Shown<'_>> {
    Some(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_DONTROUTE) => Shown::Bit(option_flags::DONTROUTE),
        (libc::IPPROTO_TCP, libc::TCP_THIN_LINEAR_TIMEOUTS) => Shown::Bit(option_flags::THIN),
        (libc::SOL_SOCKET, libc::SO_PRIORITY) => Shown::Word(&line.priority),
        (libc::SOL_SOCKET, libc::SO_MARK) => Shown::Word(&line.mark),
        _ => return None,
    })
}

/// Puts into the line what the stack is to be shown of an option; false = nothing.
fn show(line: &OptionsLine, level: c_int, name: c_int, value: c_int) -> bool {
    match shown(line, level, name) {
        Some(Shown::Bit(bit)) => steer::mark(line, bit, value != 0),
        Some(Shown::Word(word)) => word.store(value as u32, Relaxed),
        None => return false,
    }
    true
}

fn bit(level: c_int, name: c_int) -> Option<(u32, bool)> {
    let place = BITS.iter().position(|(l, n, _)| (*l, *n) == (level, name))?;
    Some((1 << place, BITS[place].2))
}

/// Is this an option that is kept?
pub fn is_kept(level: c_int, name: c_int) -> bool {
    BITS.iter().any(|(l, n, _)| (*l, *n) == (level, name))
        || (level == libc::SOL_SOCKET && BY_PAIR.contains(&name))
        || matches!(
            (level, name),
            (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT | TCP_TX_DELAY | libc::TCP_FASTOPEN | libc::TCP_WINDOW_CLAMP)
                | (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER | libc::IP_MINTTL)
                | (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER | IPV6_MINHOPCOUNT)
        )
}

/// `setsockopt` of a number; `None` = it is not kept.
pub fn set(fd: c_int, socket: &Socket, level: c_int, name: c_int, value: c_int) -> Option<Sys<()>> {
    let (private, line) = (socket.private(), socket.options());
    if level == libc::SOL_SOCKET && BY_PAIR.contains(&name) {
        socket.mark(flag::KEPT_BY_PAIR, true);
        let set = sys::setsockopt(fd, level, name, value);
        if set.is_ok() && show(line, level, name, value) {
            steer::changed(socket);
        }
        return Some(set);
    }
    if let Some((bit, only_two)) = bit(level, name) {
        let late = name == libc::TCP_FASTOPEN_CONNECT && socket.state() != state::CLOSED;
        if (only_two && !(0..=1).contains(&value)) || (level == libc::IPPROTO_TCP && late) {
            return Some(Err(libc::EINVAL));
        }
        // Linux forgets this one.
        if value != 0 && (level, name) != (libc::IPPROTO_TCP, libc::TCP_THIN_DUPACK) {
            private.kept.fetch_or(bit, Relaxed);
        } else {
            private.kept.fetch_and(!bit, Relaxed);
        }
        if show(line, level, name, value) {
            steer::changed(socket);
        }
        return Some(Ok(()));
    }
    let (word, low, high, first) = number(line, level, name)?;
    let mut value = value;
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP) {
        if value == 0 && socket.state() != state::CLOSED {
            return Some(Err(libc::EINVAL));
        }
        value = value.max(LEAST_WINDOW);
    }
    if !(low..=high).contains(&value) {
        return Some(Err(libc::EINVAL));
    }
    word.store((value ^ first) as u32, Relaxed);
    steer::changed(socket);
    Some(Ok(()))
}

/// `getsockopt` of a number; `None` = it is not kept.
pub fn get(fd: c_int, socket: &Socket, level: c_int, name: c_int) -> Option<Sys<c_int>> {
    if level == libc::SOL_SOCKET && BY_PAIR.contains(&name) {
        return Some(sys::getsockopt(fd, level, name, 0));
    }
    if let Some((bit, _)) = bit(level, name) {
        return Some(Ok((socket.private().kept.load(Relaxed) & bit != 0).into()));
    }
    let (word, .., first) = number(socket.options(), level, name)?;
    Some(Ok(word.load(Relaxed) as c_int ^ first))
}

/// What is kept of one socket is set on another, by whatever means they have.
fn copy(get: impl Fn(c_int, c_int) -> Option<c_int>, set: impl Fn(c_int, c_int, c_int)) {
    let numbers = [
        (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
        (libc::IPPROTO_TCP, TCP_TX_DELAY),
        (libc::IPPROTO_TCP, libc::TCP_FASTOPEN),
        (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP),
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
        (libc::IPPROTO_IP, libc::IP_MINTTL),
    ];
    let by_pair = BY_PAIR.iter().map(|name| (libc::SOL_SOCKET, *name));
    let bits = BITS.iter().map(|(level, name, _)| (*level, *name));
    for (level, name) in by_pair.chain(bits).chain(numbers) {
        if let Some(value) = get(level, name) {
            set(level, name, value);
        }
    }
}

/// Before the command that takes the kernel socket `from` over: what of it the stack is to know.
pub fn initial(from: c_int, line: &OptionsLine) {
    copy(
        |level, name| sys::getsockopt::<c_int>(from, level, name, 0).ok(),
        |level, name, value| {
            if let Some((word, .., first)) = number(line, level, name) {
                word.store((value ^ first) as u32, Relaxed);
            } else {
                show(line, level, name, value);
            }
        },
    );
}

/// From the kernel socket `from` to the slot that takes its place, whose pair is `pair`.
pub fn carry(from: c_int, pair: c_int, socket: &Socket) {
    copy(
        |level, name| sys::getsockopt::<c_int>(from, level, name, 0).ok(),
        |level, name, value| {
            if get(pair, socket, level, name) != Some(Ok(value)) {
                let _ = set(pair, socket, level, name, value);
            }
        },
    );
}

/// From a slot to a kernel socket that takes its place.
pub fn give_back(fd: c_int, socket: &Socket, fresh: c_int) {
    copy(
        |level, name| get(fd, socket, level, name).and_then(Result::ok),
        |level, name, value| {
            if sys::getsockopt::<c_int>(fresh, level, name, 0).is_ok_and(|now| now != value) {
                let _ = sys::setsockopt(fresh, level, name, value);
            }
        },
    );
}

/// From a listener to a connection that it has accepted, whose options line has the listener's numbers. The priority is the one that is
/// not handed on.
pub fn inherit(listener_fd: c_int, listener: &Socket, fd: c_int, socket: &Socket) {
    socket.private().kept.store(listener.private().kept.load(Relaxed), Relaxed);
    if listener.has(flag::KEPT_BY_PAIR) {
        for name in BY_PAIR.iter().filter(|name| **name != libc::SO_PRIORITY) {
            if let Ok(value) = sys::getsockopt::<c_int>(listener_fd, libc::SOL_SOCKET, *name, 0) {
                let _ = set(fd, socket, libc::SOL_SOCKET, *name, value);
            }
        }
    }
}
