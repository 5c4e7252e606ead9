//! What applications set on their sockets (`setsockopt`), in every phase of a connection.

use super::SlowPath;
use super::congestion::Algorithm;
use super::connections::Phase;
use super::host::Host;
use super::rto::backed_off;
use crate::flow::{Owner, SocketOptions};
use crate::messages::ToFast;
use crate::time::Micros;
use towpath_wire::TTL;

/// Longest `TCP_LINGER2` in s (Linux: `TCP_FIN_TIMEOUT_MAX`).
const LINGER2_MAX_S: u32 = 120;

impl SlowPath {
    /// Takes over what the application has set on a socket: at once on a connection or a listener (whose later children inherit it), and for
    /// an owner that is not known yet with its `connect` or `listen`.
    pub fn set_options(&mut self, now: Micros, owner: Owner, options: SocketOptions, host: &mut dyn Host) {
        if let Some(algorithm) = Algorithm::from_id(options.congestion) {
            self.set_congestion(now, owner, algorithm, host);
        }
        self.set_max_pacing(owner, options.max_pacing);
        if let Some(listener) = self.listeners.of(owner) {
            listener.options = options;
            return;
        }
        let Some(id) = self.table.by_owner(owner) else {
            if self.early_options.len() < self.config.max_flows as usize || self.early_options.contains_key(&owner) {
                self.early_options.insert(owner, options);
            }
            return;
        };
        let Some(connection) = self.table.get_mut(id) else { return };
        let core = connection.core;
        match &mut connection.phase {
            Phase::Opening(opening) => opening.options = options,
            Phase::Live(live) if live.removing => {}
            Phase::Direct => {}
            Phase::Live(live) => {
                let old = std::mem::replace(&mut live.options, options);
                // RFC 9293 §3.8.4, MUST-24.
                let ticks = options.keepalive && !live.fin_wait;
                // RFC 9293 §3.9.1.9, SHLD-21.
                let v6 = connection.tuple.remote.is_ipv6();
                if service(&old, v6) != service(&options, v6) {
                    let (tos, ttl) = service(&options, v6);
                    host.send(core, ToFast::SetService { flow: id, tos, ttl });
                }
                if ticks {
                    // The next look at it counts from what has been heard last.
                    self.arm(id, now);
                }
            }
        }
    }

    /// What was set on a socket before its `connect` or `listen`.
    pub(super) fn take_early_options(&mut self, owner: Owner) -> SocketOptions {
        self.early_options.remove(&owner).unwrap_or_default()
    }
}

/// Type of service and time to live of a connection's packets (RFC 9293 MUST-48, MUST-49). The ECN bits are not the application's.
pub(super) fn service(options: &SocketOptions, v6: bool) -> (u8, u8) {
    let (tos, ttl) = if v6 { (options.tclass, options.hops) } else { (options.tos, options.ttl) };
    (tos & !3, if ttl == 0 { TTL } else { ttl })
}

/// `TCP_USER_TIMEOUT` in µs (RFC 5482), 0 = none.
pub(super) fn user_timeout_us(options: &SocketOptions) -> u64 {
    u64::from(options.user_timeout_ms) * 1000
}

/// How long a closed socket's connection stays in FIN-WAIT-2, in µs (`TCP_LINGER2`); `None` = not at all, it is reset.
pub(super) fn fin_wait_us(options: &SocketOptions, default_s: u32) -> Option<u64> {
    let seconds = match u32::try_from(options.linger2_s) {
        Err(_) => return None,
        Ok(0) => default_s,
        Ok(seconds) => seconds.min(LINGER2_MAX_S),
    };
    Some(u64::from(seconds) * 1_000_000)
}

/// `TCP_DEFER_ACCEPT` as Linux counts it: in time-outs of the SYN-ACK, as many as pass in that time.
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
