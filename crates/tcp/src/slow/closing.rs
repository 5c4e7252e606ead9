//! From the first FIN to the flow's removal and TIME-WAIT. The fast path exchanges the FINs; this file looks at its flags.

use super::connections::{Connection, Phase};
use super::errno::ETIMEDOUT;
use super::host::Host;
use super::options::fin_wait_us;
use super::segments::Arrival;
use super::time_wait::{Answer, TimeWait};
use super::{SlowPath, Snapshots};
use crate::counters::Drop;
use crate::flow::{FlowId, FlowSnapshot, FourTuple, flow_flags};
use crate::messages::ToFast;
use crate::time::Micros;
use towpath_wire::flags;

impl SlowPath {
    /// Asks for a look at the flow in the next `poll`.
    pub(super) fn look_soon(&mut self, id: FlowId) {
        if let Some(live) = self.table.running(id)
            && !live.look
        {
            live.look = true;
            self.looks.push(id);
        }
    }

    /// All flows that something has been reported of.
    pub(super) fn look_at_reported(&mut self, now: Micros, flows: &dyn Snapshots, host: &mut dyn Host) {
        for id in std::mem::take(&mut self.looks) {
            if self.table.running(id).is_some_and(|live| std::mem::take(&mut live.look)) {
                let snapshot = flows.snapshot(id);
                self.look_at_icmp(now, id, &snapshot, host);
                self.report_loss(now, id, &snapshot, host);
                self.look_at_closing(now, id, &snapshot, host);
            }
        }
    }

    /// Moves a flow on through the closing states.
    pub(super) fn look_at_closing(&mut self, now: Micros, id: FlowId, snapshot: &FlowSnapshot, host: &mut dyn Host) {
        let Some(live) = self.table.running(id) else { return };
        let has = |bit| snapshot.flags & bit != 0;
        live.flags = snapshot.flags;
        live.orphan |= has(flow_flags::APP_CLOSED);
        live.passive |=
            has(flow_flags::PASSIVE_CLOSE) || (has(flow_flags::FIN_RECEIVED) && !has(flow_flags::FIN_WANTED));
        if has(flow_flags::FIN_ACKED) && has(flow_flags::FIN_RECEIVED) {
            self.both_closed(now, id, snapshot, host);
        } else if has(flow_flags::FIN_ACKED) && live.orphan && !live.fin_wait {
            live.fin_wait = true;
            match fin_wait_us(&live.options, self.config.fin_wait_s) {
                Some(wait) => self.arm(id, now.after(wait)),
                None => self.abort_flow(id, true, 0, host),
            }
        }
    }

    /// Both FINs are done: the flow goes, and TIME-WAIT stays if we closed first.
    fn both_closed(&mut self, now: Micros, id: FlowId, snapshot: &FlowSnapshot, host: &mut dyn Host) {
        let Some(connection) = self.table.get(id) else { return };
        let Phase::Live(live) = &connection.phase else { return };
        if !live.passive {
            let entry = TimeWait {
                snd_nxt: snapshot.snd_max,
                rcv_nxt: snapshot.rcv_nxt,
                timestamps: live.timestamps.then_some((snapshot.ts_recent, live.ts_offset)),
                since: now,
                // RFC 9293 §3.6.1, MUST-13.
                until: now.after(u64::from(self.config.time_wait_s) * 1_000_000),
                window: (snapshot.rcv_wnd >> snapshot.rcv_wscale).min(u32::from(u16::MAX)) as u16,
                answered_at: None,
            };
            self.time_wait.insert(connection.tuple, entry);
        }
        self.remove_flow(id, host);
    }

    /// The timer of a closed socket's connection in FIN-WAIT-2: the peer's FIN does not come.
    pub(super) fn fin_wait_timeout(&mut self, now: Micros, id: FlowId, flows: &dyn Snapshots, host: &mut dyn Host) {
        if self.table.running(id).is_some() {
            self.look_at_closing(now, id, &flows.snapshot(id), host);
            self.remove_flow(id, host);
        }
    }

    /// Takes a flow away from its core; `Removed` follows.
    pub(super) fn remove_flow(&mut self, id: FlowId, host: &mut dyn Host) {
        let Some(live) = self.table.running(id) else { return };
        live.removing = true;
        if let Some(connection) = self.table.get(id) {
            host.send(connection.core, ToFast::Remove(id));
        }
    }

    /// Ends a flow whose peer does not answer: with the errno of what was last heard of the path (RFC 9293 §3.9.1.8
    /// MUST-47, §3.9.2.2 SHLD-25), else ETIMEDOUT.
    pub(super) fn give_up(&mut self, id: FlowId, rst: bool, host: &mut dyn Host) {
        let Some(live) = self.table.running(id) else { return };
        let errno = if live.soft_error == 0 { ETIMEDOUT } else { live.soft_error };
        self.abort_flow(id, rst, errno, host);
    }

    /// Ends a flow.
    pub(super) fn abort_flow(&mut self, id: FlowId, rst: bool, errno: i32, host: &mut dyn Host) {
        let Some(live) = self.table.running(id) else { return };
        let errno = if live.orphan { 0 } else { errno };
        if let Some(connection) = self.table.get(id) {
            host.send(connection.core, ToFast::Abort { flow: id, rst, errno });
        }
        self.remove_flow(id, host);
    }

    /// The core has forgotten the flow.
    pub(super) fn removed(&mut self, id: FlowId, host: &mut dyn Host) {
        if !self.table.get(id).is_some_and(|connection| matches!(connection.phase, Phase::Live(_))) {
            return;
        }
        self.timers.cancel(id);
        let Some(connection) = self.table.remove(id) else { return };
        self.unsteer(&connection, host);
        host.released(connection.owner, Some(id));
    }

    /// Ends the steering of a connection that is gone, unless TIME-WAIT still needs it.
    pub(super) fn unsteer(&mut self, connection: &Connection, host: &mut dyn Host) {
        if connection.steered && !self.time_wait.has(&connection.tuple) {
            host.steer(&connection.tuple, false);
        }
    }

    /// Ends TIME-WAIT where it is over.
    pub(super) fn expire_time_wait(&mut self, now: Micros, host: &mut dyn Host) {
        while let Some(tuple) = self.time_wait.pop(now, self.config.time_wait_max) {
            // Else the connection itself is not quite gone, and ends the steering.
            if self.table.by_tuple(&tuple).is_none() {
                host.steer(&tuple, false);
            }
        }
    }

    /// A segment for a tuple in TIME-WAIT. `closed`: the old flow is gone, so a new one may take its place.
    pub(super) fn in_time_wait(
        &mut self,
        now: Micros,
        entry: TimeWait,
        arrival: &Arrival,
        closed: bool,
        host: &mut dyn Host,
    ) {
        match entry.judge(arrival) {
            Answer::Drop(why) => self.counters.drop(why),
            Answer::Reopen if closed && self.listens_for(&arrival.tuple) => {
                if self.passive_open(now, arrival, Some(entry.snd_nxt), host) {
                    self.time_wait.take(&arrival.tuple);
                }
            }
            Answer::Reopen => {
                self.counters.drop(Drop::NoSocket);
                if closed {
                    self.refuse(now, arrival, host);
                }
            }
            Answer::Ack { restart } => {
                self.counters.drop(Drop::Duplicate);
                if restart {
                    let until = now.after(u64::from(self.config.time_wait_s) * 1_000_000);
                    self.time_wait.insert(arrival.tuple, TimeWait { until, ..entry });
                }
                // As Linux: who sends data is no loop of acknowledgements.
                let last = entry.answered_at.filter(|_| arrival.segment.payload_len == 0 || arrival.has(flags::SYN));
                if self.may_challenge(now, last, host) {
                    self.time_wait.answered(now, &arrival.tuple);
                    let ack = entry.acknowledgement(now);
                    self.transmit(arrival.core, &arrival.tuple, &arrival.way_back(), &ack, host);
                }
            }
        }
    }

    /// Is there a listener for this tuple?
    fn listens_for(&self, tuple: &FourTuple) -> bool {
        self.listeners.find(tuple.local, tuple.local_port).is_some()
    }
}
