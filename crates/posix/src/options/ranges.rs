//! The values that Linux accepts for numeric options, and how it rounds them.

use libc::c_int;
use towpath_client::sys::Sys;

/// Shortest `TCP_MAXSEG` (Linux: `TCP_MIN_MSS`).
const LEAST_MSS: c_int = 88;
/// Longest `TCP_MAXSEG` (Linux: `MAX_TCP_WINDOW`).
const MOST_MSS: c_int = 32_767;
/// Longest `TCP_LINGER2`, s (Linux: `TCP_FIN_TIMEOUT_MAX`).
const LINGER2_MAX_S: c_int = 120;
/// Longest time between two SYN-ACKs, s (Linux: `TCP_RTO_MAX`).
const RTO_MAX_S: c_int = 120;
/// Least `TCP_WINDOW_CLAMP` other than 0 (Linux: half of `SOCK_MIN_RCVBUF`).
const LEAST_WINDOW: c_int = 1152;
/// The two ECN bits of a type of service, which applications cannot set (RFC 3168 §5).
const ECN: c_int = 3;

/// Any number is accepted.
pub fn any(value: c_int) -> Sys<c_int> {
    Ok(value)
}

/// A number from LOW to HIGH.
pub fn within<const LOW: c_int, const HIGH: c_int>(value: c_int) -> Sys<c_int> {
    if (LOW..=HIGH).contains(&value) { Ok(value) } else { Err(libc::EINVAL) }
}

/// A number that is not negative.
pub fn not_negative(value: c_int) -> Sys<c_int> {
    within::<0, { c_int::MAX }>(value)
}

/// `TCP_MAXSEG`; 0 = not set.
pub fn segment(value: c_int) -> Sys<c_int> {
    if value == 0 { Ok(0) } else { within::<LEAST_MSS, MOST_MSS>(value) }
}

/// `TCP_LINGER2`.
pub fn linger2(value: c_int) -> Sys<c_int> {
    Ok(value.clamp(-1, LINGER2_MAX_S))
}

/// `TCP_WINDOW_CLAMP`.
pub fn window_clamp(value: c_int) -> Sys<c_int> {
    Ok(value.max(LEAST_WINDOW))
}

/// `IP_TOS`.
pub fn type_of_service(value: c_int) -> Sys<c_int> {
    Ok(value & 0xff & !ECN)
}

/// `IPV6_TCLASS`; -1 = not set.
pub fn traffic_class(value: c_int) -> Sys<c_int> {
    if value == -1 { Ok(0) } else { within::<0, 0xff>(value).map(|class| class & !ECN) }
}

/// `IP_TTL`; -1 = not set.
pub fn time_to_live(value: c_int) -> Sys<c_int> {
    if value == -1 { Ok(0) } else { within::<1, 255>(value) }
}

/// `IPV6_UNICAST_HOPS`; -1 = not set.
pub fn hop_limit(value: c_int) -> Sys<c_int> {
    if value == -1 { Ok(0) } else { within::<0, 255>(value) }
}

/// `TCP_DEFER_ACCEPT`, rounded up to a whole number of SYN-ACK time-outs: 1, 3, 7, 15, ... seconds.
pub fn deferral(seconds: c_int) -> Sys<c_int> {
    let (mut timeout, mut period) = (1, if seconds > 0 { 1 } else { 0 });
    // Linux counts the time-outs in eight bits.
    for _ in 1..255 {
        if seconds <= period {
            break;
        }
        timeout = (timeout * 2).min(RTO_MAX_S);
        period += timeout;
    }
    Ok(period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deferring_is_rounded_to_whole_timeouts() {
        let rounded = [-1, 0, 1, 2, 3, 4, 7, 8, 100, 128, 300].map(|seconds| deferral(seconds).expect("any number"));
        assert_eq!(rounded, [0, 0, 1, 3, 3, 7, 7, 15, 127, 247, 367]);
    }
}
