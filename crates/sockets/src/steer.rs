//! Socket options that the stack has to know: they stand in the slot's options line, where also `getsockopt` finds them.
//! Ranges, rounding and defaults are Linux's.

use crate::doors;
use crate::kept;
use crate::session::Session;
use crate::socket::Socket;
use crate::sys::{self, Sys};
use crate::table::Undecided;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use libc::c_int;
use towpath_ring::OptionsLine;
use towpath_ring::Slot;
use towpath_ring::command::Options;
use towpath_ring::lines::{congestion, option_flags, state};

/// `TCP_MAXSEG` of a socket that is not connected and has set none (RFC 9293 MUST-15).
const DEFAULT_MSS: c_int = 536;
/// Shortest `TCP_MAXSEG` (Linux: `TCP_MIN_MSS`).
const LEAST_MSS: c_int = 88;
/// Longest `TCP_MAXSEG` (Linux: `MAX_TCP_WINDOW`).
const MOST_MSS: c_int = 32_767;
/// Longest `TCP_LINGER2`, s (Linux: `TCP_FIN_TIMEOUT_MAX`).
const LINGER2_MAX_S: c_int = 120;
/// Longest time between two SYN-ACKs, s (Linux: `TCP_RTO_MAX`).
const RTO_MAX_S: c_int = 120;
/// The two bits of a type of service that are not an application's (RFC 3168 §5).
const ECN: c_int = 3;

/// Those that are carried from the kernel socket to the slot, if the program has set them. `TCP_CONGESTION` goes another way,
/// because the kernel may not have the algorithm.
pub const CARRIED: [(c_int, c_int); 16] = [
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::IPPROTO_TCP, libc::TCP_MAXSEG),
    (libc::IPPROTO_TCP, libc::TCP_SYNCNT),
    (libc::IPPROTO_TCP, libc::TCP_LINGER2),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IP, libc::IP_TTL),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
    (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE),
    (libc::IPPROTO_IP, libc::IP_RECVERR),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
];

/// The bits of two options of the rings (see `buffers`).
const RCVBUF: u32 = 1 << 16;
/// See [`RCVBUF`].
const SNDBUF: u32 = 1 << 17;

/// The bit of such an option in [`Undecided::steered`]; 0 = it is none.
pub fn carried(level: c_int, name: c_int) -> u32 {
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) => return RCVBUF,
        (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) => return SNDBUF,
        _ => {}
    }
    CARRIED.iter().position(|option| *option == (level, name)).map_or(0, |place| 1 << place)
}

/// Where an integer option stands.
fn word(line: &OptionsLine, level: c_int, name: c_int) -> Option<&AtomicU32> {
    Some(match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => &line.keep_idle_s,
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => &line.keep_interval_s,
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => &line.keep_count,
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => &line.user_timeout_ms,
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => &line.max_segment,
        (libc::IPPROTO_TCP, libc::TCP_SYNCNT) => &line.syn_retries,
        (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) => &line.defer_accept_s,
        (libc::IPPROTO_IP, libc::IP_TOS) => &line.tos,
        (libc::IPPROTO_IP, libc::IP_TTL) => &line.ttl,
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => &line.tclass,
        (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => &line.hops,
        _ => return None,
    })
}

/// The bit of an option that is on or off.
fn bit(level: c_int, name: c_int) -> Option<u32> {
    Some(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => option_flags::KEEPALIVE,
        (libc::IPPROTO_IP, libc::IP_RECVERR) => option_flags::RECVERR,
        (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => option_flags::RECVERR_SIX,
        _ => return None,
    })
}

/// Sets one of `option_flags`, or takes it off.
pub fn mark(line: &OptionsLine, bit: u32, on: bool) {
    let flags = line.flags.load(Relaxed);
    line.flags.store(if on { flags | bit } else { flags & !bit }, Relaxed);
}

/// What Linux makes of a value that is asked for, or EINVAL.
fn checked(level: c_int, name: c_int, value: c_int) -> Sys<u32> {
    let within = |low, high| if (low..=high).contains(&value) { Ok(value as u32) } else { Err(libc::EINVAL) };
    match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE | libc::TCP_KEEPINTVL) => within(1, 32_767),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_SYNCNT) => within(1, 127),
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) if value != 0 => within(LEAST_MSS, MOST_MSS),
        (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) => Ok(whole_timeouts(value)),
        (libc::IPPROTO_IP, libc::IP_TOS) => Ok((value & 0xff & !ECN) as u32),
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) if value != -1 => within(0, 0xff).map(|tos| tos & !ECN as u32),
        (libc::IPPROTO_IP, libc::IP_TTL) if value != -1 => within(1, 255),
        (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) if value != -1 => within(0, 255),
        (libc::IPPROTO_TCP, _) => within(0, c_int::MAX),
        _ => Ok(0),
    }
}

/// `TCP_DEFER_ACCEPT` counts in time-outs of the SYN-ACK: 1, 2, 4, ... seconds.
fn whole_timeouts(seconds: c_int) -> u32 {
    let (mut timeout, mut period) = (1, if seconds > 0 { 1 } else { 0 });
    // Linux counts them in eight bits.
    for _ in 1..255 {
        if seconds <= period {
            break;
        }
        timeout = (timeout * 2).min(RTO_MAX_S);
        period += timeout;
    }
    period as u32
}

/// `setsockopt` of an integer option; `None` = it is not one of these.
pub fn set(socket: &Socket, level: c_int, name: c_int, value: c_int) -> Option<Sys<c_int>> {
    let line = socket.options();
    if let Some(bit) = bit(level, name) {
        mark(line, bit, value != 0);
        changed(socket);
        return Some(Ok(0));
    }
    match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_LINGER2) => line.linger2_s.store(value.clamp(-1, LINGER2_MAX_S), Relaxed),
        _ => {
            let word = word(line, level, name)?;
            match checked(level, name, value) {
                Ok(value) => word.store(value, Relaxed),
                Err(errno) => return Some(Err(errno)),
            }
        }
    }
    changed(socket);
    Some(Ok(0))
}

/// `getsockopt` of an integer option; `None` = it is not one of these.
pub fn get(socket: &Socket, level: c_int, name: c_int) -> Option<c_int> {
    let line = socket.options();
    if let Some(bit) = bit(level, name) {
        return Some((line.flags.load(Relaxed) & bit != 0).into());
    }
    // What the stack does if nothing is set is what Linux does.
    let default = match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_LINGER2) => {
            return Some(match line.linger2_s.load(Relaxed) {
                0 => 60,
                seconds => seconds,
            });
        }
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) if !matches!(socket.state(), state::LISTENING | state::CLOSED) => {
            return Some(socket.info().mss.load(Relaxed) as c_int);
        }
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => DEFAULT_MSS,
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => 7200,
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => 75,
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => 9,
        (libc::IPPROTO_TCP, libc::TCP_SYNCNT) => 6,
        (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => 64,
        _ => 0,
    };
    Some(match word(line, level, name)?.load(Relaxed) {
        0 => default,
        value => value as c_int,
    })
}

/// `TCP_CONGESTION` by name; ENOENT = there is no such algorithm.
pub fn congestion_of(name: &[u8]) -> Sys<u32> {
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let place = congestion::NAMES.iter().position(|known| !known.is_empty() && known.as_bytes() == name);
    place.map(|place| place as u32).ok_or(libc::ENOENT)
}

/// `TCP_CONGESTION` set.
pub fn set_congestion(socket: &Socket, number: u32) {
    socket.options().congestion.store(number, Relaxed);
    changed(socket);
}

/// `TCP_CONGESTION` as it reads: what was set, else what the stack says is at work.
pub fn congestion_name(socket: &Socket) -> [u8; 16] {
    let set = socket.options().congestion.load(Relaxed);
    name_of(if set != 0 { set } else { socket.info().congestion.load(Relaxed) })
}

/// An algorithm's name as `TCP_CONGESTION` shows it.
pub fn name_of(number: u32) -> [u8; 16] {
    let name = congestion::NAMES.get(number as usize).copied().unwrap_or_default();
    let mut out = [0; 16];
    out[..name.len()].copy_from_slice(name.as_bytes());
    out
}

/// `SO_MAX_PACING_RATE` in bytes per second; all ones (of 32 or 64 bits) = no limit.
pub fn set_max_pacing(socket: &Socket, rate: u64) {
    let line = socket.options();
    let rate = if rate == u64::MAX { 0 } else { rate };
    line.pacing_low.store(rate as u32, Relaxed);
    line.pacing_high.store((rate >> 32) as u32, Relaxed);
    changed(socket);
}

/// `SO_MAX_PACING_RATE` as it reads.
pub fn max_pacing(socket: &Socket) -> u64 {
    match socket.options().read().1.max_pacing {
        0 => u64::MAX,
        rate => rate,
    }
}

/// Shows the stack the line as it is now.
pub fn changed(socket: &Socket) {
    let line = socket.options();
    line.post(&line.read().1);
    doors::ring_commands(socket.session, socket.slot);
}

/// Before the command that takes a kernel socket over: what the program has set on it.
pub fn initial(fd: c_int, undecided: Undecided, session: &Session, slot: Slot) {
    let line = session.region.options(slot);
    let mut options = Options { congestion: undecided.congestion.into(), ..Options::default() };
    if undecided.steered | u32::from(undecided.congestion) != 0 || undecided.kept || line.seq.load(Relaxed) != 0 {
        line.post(&options);
    }
    if undecided.kept {
        kept::initial(fd, line);
    }
    let shared = undecided.options
        && sys::getsockopt::<c_int>(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 0).is_ok_and(|on| on != 0);
    mark(line, option_flags::REUSEPORT, shared);
    for (place, (level, name)) in CARRIED.into_iter().enumerate() {
        if undecided.steered & 1 << place == 0 {
            continue;
        }
        let value = sys::getsockopt::<c_int>(fd, level, name, 0).unwrap_or(0);
        if let Some(bit) = bit(level, name) {
            mark(line, bit, value != 0);
            continue;
        }
        match (level, name) {
            (libc::IPPROTO_TCP, libc::TCP_LINGER2) => line.linger2_s.store(value.clamp(-1, LINGER2_MAX_S), Relaxed),
            (_, libc::SO_MAX_PACING_RATE) if level == libc::SOL_SOCKET => {
                let rate = sys::getsockopt::<u64>(fd, level, name, u64::MAX).unwrap_or(u64::MAX);
                options.max_pacing = if rate == u64::MAX { 0 } else { rate };
                line.pacing_low.store(options.max_pacing as u32, Relaxed);
                line.pacing_high.store((options.max_pacing >> 32) as u32, Relaxed);
            }
            _ => {
                if let (Some(word), Ok(value)) = (word(line, level, name), checked(level, name, value)) {
                    word.store(value, Relaxed);
                }
            }
        }
    }
    for (bit, name, word) in
        [(SNDBUF, libc::SO_SNDBUF, &line.send_buffer), (RCVBUF, libc::SO_RCVBUF, &line.receive_buffer)]
    {
        if undecided.steered & bit != 0 {
            word.store(sys::getsockopt::<u32>(fd, libc::SOL_SOCKET, name, 0).unwrap_or(0), Relaxed);
        }
    }
    if undecided.steered != 0 || shared || undecided.kept {
        line.post(&line.read().1);
    }
}

/// An accepted connection begins with its listener's options, in the stack as here.
pub fn inherit(listener: &Socket, socket: &Socket) {
    socket.options().post(&Options { priority: 0, ..listener.options().read().1 });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deferring_is_rounded_to_whole_timeouts() {
        let rounded = [-1, 0, 1, 2, 3, 4, 7, 8, 100, 128, 300].map(whole_timeouts);
        assert_eq!(rounded, [0, 0, 1, 3, 3, 7, 7, 15, 127, 247, 367]);
    }

    #[test]
    fn congestion_control_is_chosen_by_name() {
        assert_eq!(congestion_of(b"cubic"), Ok(2));
        assert_eq!(congestion_of(b"bbr\0rest"), Ok(6));
        assert_eq!(congestion_of(b"vegas"), Err(libc::ENOENT));
        assert_eq!(congestion_of(b""), Err(libc::ENOENT));
    }
}
