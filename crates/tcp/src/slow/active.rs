//! The flows that have something outstanding: looked at every control interval for time-outs, closed windows and congestion.

use super::congestion::{CongestionControl, Sample};
use super::errno::ETIMEDOUT;
use super::host::Host;
use super::persist::Persist;
use super::rto::{Due, Retransmit, timeout_us};
use super::timers::Stamp;
use super::{SlowPath, Snapshots};
use crate::flow::{FlowId, FlowSnapshot, flow_flags};
use crate::messages::ToFast;
use crate::seq::Seq;
use crate::time::Micros;

/// Share of the control interval that a flow claims, in µs: some five times what a look costs.
const LOOK_US: u64 = 1;

/// What is watched of one flow.
pub(super) struct Activity {
    /// Names its entry in the list; `NONE` = not on it.
    listed: Stamp,
    retransmit: Retransmit,
    persist: Persist,
    control: Box<dyn CongestionControl>,
}

impl Activity {
    /// Of a flow that begins.
    pub(super) fn new(now: Micros, una: Seq, control: Box<dyn CongestionControl>) -> Self {
        Self { listed: Stamp::NONE, retransmit: Retransmit::start(now, una), persist: Persist::default(), control }
    }
}

/// The list.
#[derive(Debug, Default)]
pub(super) struct ActiveFlows {
    list: Vec<(FlowId, Stamp)>,
    due: Micros,
}

impl ActiveFlows {
    /// When the list is looked at next.
    pub(super) fn next(&self) -> Option<Micros> {
        (!self.list.is_empty()).then_some(self.due)
    }
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }
}

impl SlowPath {
    /// Puts a flow on the list: it has just sent something, or wants to.
    pub(super) fn activate(&mut self, now: Micros, id: FlowId) {
        let stamp = self.timers.stamp();
        let Some(live) = self.table.running(id) else { return };
        if live.activity.listed != Stamp::NONE {
            return;
        }
        live.activity.listed = stamp;
        live.activity.retransmit.restart(now);
        if self.active.list.is_empty() {
            self.active.due = now.after(u64::from(self.config.control_interval_us));
        }
        self.active.list.push((id, stamp));
    }

    /// Looks at all of them, once per control interval.
    pub(super) fn look_at_active(&mut self, now: Micros, flows: &dyn Snapshots, host: &mut dyn Host) {
        if self.active.list.is_empty() || now < self.active.due {
            return;
        }
        // With very many flows the interval grows, so that other work is not held up; it stays below the shortest time-out.
        let interval_us = u64::from(self.config.control_interval_us).max(self.active.list.len() as u64 * LOOK_US);
        self.active.due = now.after(interval_us);
        let mut list = std::mem::take(&mut self.active.list);
        list.retain(|&(id, stamp)| {
            let listed = self.table.running(id).is_some_and(|live| live.activity.listed == stamp);
            listed && self.look_at_flow(now, id, &flows.snapshot(id), host)
        });
        self.active.list = list;
    }

    /// One flow. False = it is off the list.
    fn look_at_flow(&mut self, now: Micros, id: FlowId, snapshot: &FlowSnapshot, host: &mut dyn Host) -> bool {
        let (Some(core), Some(live)) = (self.table.get(id).map(|c| c.core), self.table.running(id)) else {
            return false;
        };
        let flight = snapshot.snd_max.bytes_since(snapshot.snd_una);
        let fin_due = snapshot.flags & (flow_flags::FIN_WANTED | flow_flags::FIN_SENT) == flow_flags::FIN_WANTED;
        let activity = &mut live.activity;
        if flight == 0 && !snapshot.snd_queued.after(snapshot.snd_max) && !fin_due {
            activity.listed = Stamp::NONE;
            activity.persist.stop();
            host.send(core, ToFast::Deactivate(id));
            return false;
        }
        let (config, base_us) = (&self.config, timeout_us(&self.config, snapshot));
        // The peer has no room (what is out was sent for room that it has taken back). Or nothing is out although something waits:
        // behind a window too small to be worth a segment (RFC 9293 §3.8.6.2.1 wants a time-out then, as the window's update may
        // have been lost), or behind TCP_CORK.
        let shut = flight == 0 || snapshot.snd_wnd == 0;
        let due = if shut {
            activity.retransmit.restart(now);
            activity.persist.check(now, snapshot.segments_in, base_us, live.orphan, config)
        } else {
            activity.persist.stop();
            let limit = if live.orphan { config.orphan_retries } else { config.retries };
            activity.retransmit.check(
                now,
                snapshot.snd_una,
                flight,
                base_us,
                u64::from(config.rto_max_ms) * 1000,
                limit,
            )
        };
        match due {
            Due::No => {
                if let Some(window) = activity.control.on_interval(&Sample::new(snapshot)) {
                    host.send(core, ToFast::SetWindow(id, window));
                }
            }
            Due::Fire(_) if shut => host.send(core, ToFast::ProbeWindow(id)),
            Due::Fire(timeouts) => {
                let window = activity.control.on_timeout(&Sample { timeouts, ..Sample::new(snapshot) });
                self.counters.timeouts += 1;
                host.send(core, ToFast::Timeout(id, window));
            }
            Due::Expired => {
                self.abort_flow(id, ETIMEDOUT, host);
                return false;
            }
        }
        true
    }

    /// The fast path has repaired a loss: does congestion control want more than `beta`?
    pub(super) fn report_loss(&mut self, id: FlowId, snapshot: &FlowSnapshot, host: &mut dyn Host) {
        let (Some(core), Some(live)) = (self.table.get(id).map(|c| c.core), self.table.running(id)) else { return };
        if std::mem::take(&mut live.lost)
            && let Some(window) = live.activity.control.on_loss(&Sample::new(snapshot))
        {
            host.send(core, ToFast::SetWindow(id, window));
        }
    }
}
