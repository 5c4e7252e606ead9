//! Keepalive (RFC 9293 §3.8.4, MAY-5): probes the peer of an idle connection. Off unless the application asks for it
//! (MUST-25).

use super::SlowPath;
use super::host::{Host, Snapshots};
use super::socket_options::user_timeout_us;
use crate::flow::{FlowId, FlowSnapshot, SocketOptions, flow_flags};
use crate::messages::ToFast;
use crate::time::Micros;

/// Idle time before the first probe in s (MUST-28; Linux: `tcp_keepalive_time`).
const IDLE_S: u32 = 7200;
/// Time between probes in s (`tcp_keepalive_intvl`).
const INTERVAL_S: u32 = 75;
/// Probes without an answer before the connection is ended (`tcp_keepalive_probes`; MUST-29: one is not enough).
const COUNT: u32 = 9;
/// Number of checks in a waiting time. Received segments are only counted, so the time of the last one is known to this
/// fraction.
const LOOKS: u64 = 8;

/// The time of the peer's last segment, and the probes since.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keepalive {
    segments_heard: u32,
    heard_at: Micros,
    probes: u32,
    probed_at: Micros,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tick {
    /// Nothing before this time.
    Wait(Micros),
    /// Send a probe, and check again at this time.
    Probe(Micros),
    /// Give up.
    Dead,
}

impl Keepalive {
    /// For a new flow.
    pub(super) fn new(now: Micros) -> Self {
        Self { segments_heard: 0, heard_at: now, probes: 0, probed_at: now }
    }

    /// Probes since the peer's last segment.
    pub(super) fn probes(&self) -> u32 {
        self.probes
    }

    /// When the peer was last heard.
    pub(super) fn heard_at(&self) -> Micros {
        self.heard_at
    }

    /// Records that `segments_heard` segments have been received by now.
    pub(super) fn hear(&mut self, now: Micros, segments_heard: u32) {
        if segments_heard != self.segments_heard {
            (self.segments_heard, self.heard_at, self.probes) = (segments_heard, now, 0);
        }
    }

    /// Checks the flow.
    fn tick(&mut self, now: Micros, snapshot: &FlowSnapshot, options: &SocketOptions) -> Tick {
        self.hear(now, snapshot.segments_heard);
        // MUST-27: both times are configurable.
        let us = |seconds: u32, default| u64::from(if seconds == 0 { default } else { seconds }) * 1_000_000;
        let (idle_us, interval_us) = (us(options.keep_idle_s, IDLE_S), us(options.keep_interval_s, INTERVAL_S));
        // MUST-26: probe only if nothing is outstanding.
        if busy(snapshot) {
            return Tick::Wait(now.after(idle_us / LOOKS));
        }
        let (since, wait_us) = if self.probes == 0 { (self.heard_at, idle_us) } else { (self.probed_at, interval_us) };
        let due = since.after(wait_us);
        if now < due {
            return Tick::Wait(due.min(now.after(wait_us / LOOKS)));
        }
        // As in Linux, TCP_USER_TIMEOUT replaces the count.
        let limit_us = user_timeout_us(options);
        let count = if options.keep_count == 0 { COUNT } else { options.keep_count };
        let dead = match limit_us {
            0 => self.probes >= count,
            _ => self.probes > 0 && now.since(self.heard_at) >= limit_us,
        };
        if dead {
            return Tick::Dead;
        }
        self.probes += 1;
        self.probed_at = now;
        Tick::Probe(now.after(interval_us / LOOKS))
    }
}

/// Is data outstanding or waiting, so that other timers supervise the peer?
fn busy(snapshot: &FlowSnapshot) -> bool {
    let fin_due = snapshot.flags & (flow_flags::FIN_WANTED | flow_flags::FIN_SENT) == flow_flags::FIN_WANTED;
    snapshot.snd_max != snapshot.snd_una || snapshot.snd_queued.after(snapshot.snd_max) || fin_due
}

impl SlowPath {
    /// Handles the timer of a flow whose socket has `SO_KEEPALIVE`.
    pub(super) fn keepalive_timeout(&mut self, now: Micros, id: FlowId, flows: &dyn Snapshots, host: &mut dyn Host) {
        let Some(flow_group) = self.table.get(id).map(|connection| connection.flow_group) else { return };
        let Some(installed) = self.table.running(id) else { return };
        if !installed.options.keepalive {
            return;
        }
        match installed.keepalive.tick(now, &flows.snapshot(id), &installed.options) {
            Tick::Wait(until) => self.arm(id, until),
            Tick::Probe(until) => {
                host.send(flow_group, ToFast::KeepAlive(id));
                self.arm(id, until);
            }
            // As in Linux, with RST: if the peer still exists, it learns of the end.
            Tick::Dead => self.give_up(id, true, host),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seq::Seq;

    #[test]
    fn keepalive_leaves_the_peer_to_other_timers_while_data_or_a_fin_is_due() {
        const WANTED: u64 = flow_flags::FIN_WANTED;
        let idle = FlowSnapshot { snd_una: Seq(5), snd_max: Seq(5), snd_queued: Seq(5), ..FlowSnapshot::default() };
        let fin = |flags| FlowSnapshot { flags, ..idle };
        for (snapshot, is) in [
            (idle, false),
            (FlowSnapshot { snd_max: Seq(6), ..idle }, true),
            (FlowSnapshot { snd_queued: Seq(6), ..idle }, true),
            (FlowSnapshot { snd_queued: Seq(4), ..idle }, false),
            (fin(WANTED), true),
            (fin(WANTED | flow_flags::FIN_SENT), false),
            (fin(flow_flags::FIN_SENT), false),
            (fin(WANTED | flow_flags::APP_CLOSED), true),
        ] {
            assert_eq!(busy(&snapshot), is, "{snapshot:?}");
        }
    }

    /// Times in s at which probes are sent, and the end. `answers`: does the peer answer the n-th probe?
    fn probes(options: SocketOptions, answers: impl Fn(usize) -> bool, seconds: u64) -> (Vec<u64>, Option<u64>) {
        let (mut keepalive, mut snapshot) = (Keepalive::new(Micros(0)), FlowSnapshot::default());
        let (mut now, mut sent) = (Micros(0), Vec::new());
        while now.0 < seconds * 1_000_000 {
            match keepalive.tick(now, &snapshot, &options) {
                Tick::Wait(until) => now = until,
                Tick::Probe(until) => {
                    sent.push(now.0 / 1_000_000);
                    snapshot.segments_heard += u32::from(answers(sent.len()));
                    now = until;
                }
                Tick::Dead => return (sent, Some(now.0 / 1_000_000)),
            }
        }
        (sent, None)
    }

    /// RFC 9293 MUST-28, MUST-29.
    #[test]
    fn defaults_are_two_hours_nine_probes_75_seconds() {
        let (sent, end) = probes(SocketOptions::default(), |_| false, 100_000);
        assert_eq!(sent, (0..9).map(|i| 7200 + 75 * i).collect::<Vec<_>>());
        assert_eq!(end, Some(7200 + 9 * 75));
    }

    #[test]
    fn an_answer_starts_the_idle_time_over() {
        let options = SocketOptions { keep_idle_s: 80, keep_interval_s: 8, keep_count: 2, ..SocketOptions::default() };
        let (sent, end) = probes(options, |n| n != 1 && n < 4, 10_000);
        assert_eq!(sent, [80, 88, 169, 250, 258], "the second, the third; then silence");
        assert_eq!(end, Some(266));
    }

    #[test]
    fn the_user_timeout_takes_the_place_of_the_count() {
        let options =
            SocketOptions { keep_idle_s: 10, keep_interval_s: 2, user_timeout_ms: 15_000, ..SocketOptions::default() };
        assert_eq!(probes(options, |_| false, 1000), (vec![10, 12, 14], Some(16)));
    }

    #[test]
    fn data_outstanding_are_watched_by_other_timers() {
        let mut keepalive = Keepalive::new(Micros(0));
        let snapshot = FlowSnapshot { snd_max: crate::seq::Seq(1), ..FlowSnapshot::default() };
        let tick = keepalive.tick(Micros(8_000_000_000), &snapshot, &SocketOptions::default());
        assert_eq!(tick, Tick::Wait(Micros(8_900_000_000)));
    }

    /// Between probes the flow is looked at eight times, to know when its peer was heard.
    #[test]
    fn a_waiting_time_has_eight_looks() {
        let (mut keepalive, idle) = (Keepalive::new(Micros(0)), FlowSnapshot::default());
        let options = SocketOptions { keep_idle_s: 80, keep_interval_s: 8, ..SocketOptions::default() };
        let mut tick = |s: u64| keepalive.tick(Micros(s * 1_000_000), &idle, &options);
        let at = |s: u64| Micros(s * 1_000_000);
        assert_eq!([tick(0), tick(75), tick(79)], [Tick::Wait(at(10)), Tick::Wait(at(80)), Tick::Wait(at(80))]);
        assert_eq!([tick(80), tick(81), tick(88)], [Tick::Probe(at(81)), Tick::Wait(at(82)), Tick::Probe(at(89))]);
    }

    /// As in Linux: a peer that was never asked is not dead, however short the user's time-out is.
    #[test]
    fn a_peer_is_asked_once_before_the_user_timeout_ends_the_connection() {
        let options =
            SocketOptions { keep_idle_s: 10, keep_interval_s: 2, user_timeout_ms: 5000, ..SocketOptions::default() };
        assert_eq!(probes(options, |_| false, 1000), (vec![10], Some(12)));
    }
}
