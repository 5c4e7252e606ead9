//! Socket options in the units that the slow path works with.

use super::rto::backed_off;
use crate::flow::SocketOptions;
use towpath_wire::TTL;

/// Longest `TCP_LINGER2` in s (Linux: `TCP_FIN_TIMEOUT_MAX`).
const LINGER2_MAX_S: u32 = 120;

/// Type of service and time to live of a connection's packets (RFC 9293 MUST-48, MUST-49). Applications cannot set the
/// ECN bits.
pub(super) fn service(options: &SocketOptions, v6: bool) -> (u8, u8) {
    let (tos, ttl) = if v6 { (options.tclass, options.hops) } else { (options.tos, options.ttl) };
    (tos & !3, if ttl == 0 { TTL } else { ttl })
}

/// `TCP_USER_TIMEOUT` in µs (RFC 5482), 0 = none.
pub(super) fn user_timeout_us(options: &SocketOptions) -> u64 {
    u64::from(options.user_timeout_ms) * 1000
}

/// Time in FIN-WAIT-2 of a closed socket's connection in µs (`TCP_LINGER2`); `None` = it is reset at once.
pub(super) fn fin_wait_us(options: &SocketOptions, default_s: u32) -> Option<u64> {
    let seconds = match u32::try_from(options.linger2_s) {
        Err(_) => return None,
        Ok(0) => default_s,
        Ok(seconds) => seconds.min(LINGER2_MAX_S),
    };
    Some(u64::from(seconds) * 1_000_000)
}

/// `TCP_DEFER_ACCEPT` as Linux counts it: the number of SYN-ACK time-outs in that time.
pub(super) fn defer_timeouts(options: &SocketOptions, timeout_us: u64, max_us: u64) -> u32 {
    let (wanted_us, mut passed_us) = (u64::from(options.defer_accept_s) * 1_000_000, 0);
    for timeouts in 0..u32::from(u8::MAX) {
        if passed_us >= wanted_us {
            return timeouts;
        }
        passed_us += backed_off(timeout_us, timeouts, max_us).max(1);
    }
    u32::from(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linger2_has_a_default_a_limit_and_a_way_out() {
        let wait = |linger2_s| fin_wait_us(&SocketOptions { linger2_s, ..Default::default() }, 60);
        assert_eq!([0, 5, 1000, -1].map(wait), [Some(60_000_000), Some(5_000_000), Some(120_000_000), None]);
    }

    #[test]
    fn deferring_is_counted_in_timeouts() {
        let timeouts = |defer_accept_s| {
            let options = SocketOptions { defer_accept_s, ..Default::default() };
            defer_timeouts(&options, 1_000_000, 120_000_000)
        };
        assert_eq!([0, 1, 2, 3, 4, 7, 8].map(timeouts), [0, 1, 2, 2, 3, 3, 4]);
    }
}
