//! Active flows, which have data outstanding. They are checked every control interval for time-outs, closed windows and
//! congestion.

use super::congestion::{Controller, Idle};
use super::host::Host;
use super::persist::{Peer, Persist};
use super::rto::{Due, Limit, Retransmit, lone_probe_us, timeout_us};
use super::send_stats::SendMeter;
use super::socket_options::user_timeout_us;
use super::timers::Stamp;
use super::{SlowPath, Snapshots};
use crate::flow::{FlowId, FlowSnapshot, flow_flags};
use crate::messages::ToFast;
use crate::seq::Seq;
use crate::time::Micros;

/// Share of the control interval per flow in µs: about five times the cost of a check.
const LOOK_US: u64 = 1;

/// Timers and congestion control of one flow.
pub(super) struct Activity {
    /// Identifies its entry in the list; `NONE` = not on it.
    listed: Stamp,
    pub(super) retransmit: Retransmit,
    pub(super) persist: Persist,
    /// Send statistics.
    pub(super) meter: SendMeter,
    /// Congestion control.
    pub(super) congestion: Controller,
}

impl Activity {
    /// For a new flow, whose handshake had `timeouts` time-outs.
    pub(super) fn new(now: Micros, una: Seq, congestion: Controller, timeouts: u32) -> Self {
        let (retransmit, persist) = (Retransmit::start(now, una), Persist::default());
        Self { listed: Stamp::NONE, retransmit, persist, meter: SendMeter::new(now, una, timeouts), congestion }
    }
    /// Is the flow on the list?
    pub(super) fn is_listed(&self) -> bool {
        self.listed != Stamp::NONE
    }
}

/// The list of active flows.
#[derive(Debug, Default)]
pub(super) struct ActiveFlows {
    list: Vec<(FlowId, Stamp)>,
    due: Micros,
    /// Listed flows whose congestion control decides once per round trip, and when each is due.
    round_trips: Vec<(FlowId, Stamp, Micros)>,
    /// When the first of them is due.
    next_round_trip: Option<Micros>,
}

impl ActiveFlows {
    /// When the list must be checked next.
    pub(super) fn next(&self) -> Option<Micros> {
        let due = (!self.list.is_empty()).then_some(self.due);
        [due, self.next_round_trip].into_iter().flatten().min()
    }
    /// The number of active flows.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }
}

impl SlowPath {
    /// Adds a flow to the list, as it has sent data or has data to send.
    pub(super) fn activate(&mut self, now: Micros, id: FlowId) {
        let stamp = self.timers.stamp();
        let Some(installed) = self.table.running(id) else { return };
        if installed.activity.listed != Stamp::NONE {
            return;
        }
        installed.activity.listed = stamp;
        installed.activity.retransmit.restart(now);
        installed.activity.meter.resume(now);
        if self.active.list.is_empty() {
            self.active.due = now.after(u64::from(self.config.control_interval_us));
        }
        self.active.list.push((id, stamp));
        self.want_round_trips(now, id);
    }

    /// Schedules a listed flow whose congestion control decides once per round trip.
    pub(super) fn want_round_trips(&mut self, now: Micros, id: FlowId) {
        let Some(installed) = self.table.running(id) else { return };
        let stamp = installed.activity.listed;
        if stamp != Stamp::NONE
            && let Some(us) = installed.activity.congestion.round_trip_us(&self.config)
        {
            let due = now.after(us);
            self.active.round_trips.push((id, stamp, due));
            self.active.next_round_trip = Some(self.active.next_round_trip.map_or(due, |next| next.min(due)));
        }
    }

    /// Handles the due flows that decide once per round trip.
    fn look_at_round_trips(&mut self, now: Micros, flows: &dyn Snapshots, host: &mut dyn Host) {
        if self.active.next_round_trip.is_none_or(|due| now < due) {
            return;
        }
        let mut list = std::mem::take(&mut self.active.round_trips);
        let at_least_us = list.len() as u64 * LOOK_US;
        list.retain_mut(|(id, stamp, due)| {
            if now < *due {
                return true;
            }
            let (Some(flow_group), Some(installed)) =
                (self.table.get(*id).map(|c| c.flow_group), self.table.running(*id))
            else {
                return false;
            };
            if installed.activity.listed != *stamp {
                return false;
            }
            let congestion = &mut installed.activity.congestion;
            let snapshot = flows.snapshot(*id);
            if let Some(window) = congestion.interval(now, &snapshot, &self.config) {
                host.send(flow_group, ToFast::SetWindow(*id, window));
            }
            let Some(us) = congestion.round_trip_us(&self.config) else { return false };
            *due = now.after(us.max(at_least_us));
            true
        });
        self.active.next_round_trip = list.iter().map(|&(_, _, due)| due).min();
        self.active.round_trips = list;
    }

    /// Checks all active flows, once per control interval.
    pub(super) fn look_at_active(&mut self, now: Micros, flows: &dyn Snapshots, host: &mut dyn Host) {
        self.look_at_round_trips(now, flows, host);
        if self.active.list.is_empty() || now < self.active.due {
            return;
        }
        // With very many flows the interval grows, so that other work is not delayed. It stays below the shortest
        // time-out.
        let interval_us = u64::from(self.config.control_interval_us).max(self.active.list.len() as u64 * LOOK_US);
        self.active.due = now.after(interval_us);
        let mut list = std::mem::take(&mut self.active.list);
        list.retain(|&(id, stamp)| {
            let listed = self.table.running(id).is_some_and(|installed| installed.activity.listed == stamp);
            listed && self.look_at_flow(now, id, &flows.snapshot(id), host)
        });
        self.active.list = list;
    }

    /// Checks one flow. False = it leaves the list.
    fn look_at_flow(&mut self, now: Micros, id: FlowId, snapshot: &FlowSnapshot, host: &mut dyn Host) -> bool {
        let (Some(flow_group), Some(installed)) = (self.table.get(id).map(|c| c.flow_group), self.table.running(id))
        else {
            return false;
        };
        let flight = snapshot.snd_max.bytes_since(snapshot.snd_una);
        let fin_due = snapshot.flags & (flow_flags::FIN_WANTED | flow_flags::FIN_SENT) == flow_flags::FIN_WANTED;
        installed.keepalive.hear(now, snapshot.segments_heard);
        let activity = &mut installed.activity;
        activity.meter.look(now, snapshot);
        if activity.retransmit.una() != snapshot.snd_una {
            installed.soft_error = None;
            activity.meter.progress(now);
            if let Some(mss) = installed.path.try_larger(now) {
                host.send(flow_group, ToFast::SetMss(id, mss));
            }
        }
        let (config, base_us) = (&self.config, timeout_us(&self.config, snapshot));
        if flight == 0 && !snapshot.snd_queued.after(snapshot.snd_max) && !fin_due {
            activity.persist.stop();
            let Idle::Leave(window) = activity.congestion.idle(now, snapshot, base_us, config) else {
                activity.retransmit.restart(now);
                return true;
            };
            if let Some(window) = window {
                host.send(flow_group, ToFast::SetWindow(id, window));
            }
            activity.listed = Stamp::NONE;
            host.send(flow_group, ToFast::Deactivate(id));
            return false;
        }
        // Persist, not retransmission, applies in two cases. The peer's window is zero: data in flight was sent before
        // it shrank (RFC 9293 §3.8.6 MUST-35), and no retransmission limit ends the connection (SHLD-17). Or nothing is
        // in flight although data waits. A silly window holds it, and RFC 9293 §3.8.6.2.1 requires a time-out, because
        // the window's update may have been lost. Or TCP_CORK holds it (MUST-60).
        let user_timeout_us = user_timeout_us(&installed.options);
        let shut = flight == 0 || snapshot.snd_wnd == 0;
        // Data waits for pacing or a rate limit, which ends by itself. The timer of a retransmission has not started
        // yet.
        let held = snapshot.flags & (flow_flags::PACE_WAIT | flow_flags::LIMIT_WAIT) != 0;
        let due = if held && (flight == 0 || snapshot.snd_nxt.before(snapshot.snd_max)) {
            activity.persist.stop();
            activity.retransmit.hold(now)
        } else if shut {
            activity.retransmit.restart(now);
            let peer =
                Peer { una: snapshot.snd_una, segments_heard: snapshot.segments_heard, open: snapshot.snd_wnd != 0 };
            activity.persist.check(now, peer, base_us, installed.orphan, user_timeout_us, config)
        } else {
            activity.persist.stop();
            if let Some(probe_us) = lone_probe_us(snapshot, base_us)
                && activity.retransmit.probe(now, snapshot.snd_una, probe_us)
            {
                host.send(flow_group, ToFast::ProbeTail(id));
                return true;
            }
            let retries = if installed.orphan { config.orphan_retries } else { config.retries };
            let limit = Limit { retries, user_timeout_us, max_us: u64::from(config.rto_max_ms) * 1000 };
            activity.retransmit.check(now, snapshot.snd_una, flight, base_us, limit)
        };
        match due {
            Due::No => {
                if activity.congestion.round_trip_us(config).is_none()
                    && let Some(window) = activity.congestion.interval(now, snapshot, config)
                {
                    host.send(flow_group, ToFast::SetWindow(id, window));
                }
            }
            Due::Fire(_) if shut => host.send(flow_group, ToFast::ProbeWindow(id)),
            Due::Fire(timeouts) => {
                let window = activity.congestion.timeout(now, snapshot, timeouts, config);
                activity.meter.timed_out(now, timeouts);
                self.counters.timeouts += 1;
                // Before the time-out, so that retransmitted segments are small enough.
                let len = snapshot.snd_queued.distance(snapshot.snd_una).max(0) as u32;
                if let Some(mss) = installed.path.timed_out(now, timeouts, len) {
                    host.send(flow_group, ToFast::SetMss(id, mss));
                }
                host.send(flow_group, ToFast::Timeout(id, window));
                // MUST-20: R1.
                if timeouts >= u32::from(self.config.route_retries) {
                    self.ask_route(id, host);
                }
                if timeouts == u32::from(self.config.route_retries) {
                    self.delivery_problem(id, host);
                }
            }
            Due::Expired => {
                // MUST-20: R2. Without an RST, as in Linux.
                self.give_up(id, false, host);
                return false;
            }
        }
        true
    }

    /// Tells congestion control that the fast path repairs a loss, or that the last one was spurious.
    pub(super) fn report_loss(&mut self, now: Micros, id: FlowId, snapshot: &FlowSnapshot, host: &mut dyn Host) {
        let (Some(flow_group), Some(installed)) = (self.table.get(id).map(|c| c.flow_group), self.table.running(id))
        else {
            return;
        };
        let (lost, undone) = (std::mem::take(&mut installed.lost), std::mem::take(&mut installed.undone));
        let congestion = &mut installed.activity.congestion;
        // If both were reported since the last check, the loss was first.
        let after_loss = lost.then(|| congestion.loss(now, snapshot, &self.config)).flatten();
        let after_undo = undone.then(|| congestion.undo(now, snapshot, &self.config)).flatten();
        for window in [after_loss, after_undo].into_iter().flatten() {
            host.send(flow_group, ToFast::SetWindow(id, window));
        }
    }
}
