//! Closing: from the first FIN to the flow's removal and TIME-WAIT. The fast path exchanges the FINs, and this file
//! checks its flags.

use super::connections::{ConnectionEntry, Phase};
use super::ending::Ending;
use super::errno::{ECONNABORTED, ECONNRESET, ETIMEDOUT};
use super::host::{Host, Steered};
use super::segments::Arrival;
use super::socket_options::fin_wait_us;
use super::time_wait::{Answer, TimeWait};
use super::{SlowPath, Snapshots};
use crate::counters::Drop;
use crate::flow::{FlowId, FlowSnapshot, Owner, flow_flags};
use crate::messages::ToFast;
use crate::time::Micros;
use towpath_probes as probes;
use towpath_wire::flags;

impl SlowPath {
    /// Follows a flow through the closing states.
    pub(super) fn look_at_closing(&mut self, now: Micros, id: FlowId, snapshot: &FlowSnapshot, host: &mut dyn Host) {
        let Some(installed) = self.table.running(id) else { return };
        let has = |bit| snapshot.flags & bit != 0;
        installed.flags = snapshot.flags;
        installed.orphan |= has(flow_flags::APP_CLOSED);
        installed.passive |=
            has(flow_flags::PASSIVE_CLOSE) || (has(flow_flags::FIN_RECEIVED) && !has(flow_flags::FIN_WANTED));
        if has(flow_flags::FIN_ACKED) && has(flow_flags::FIN_RECEIVED) {
            self.both_closed(now, id, snapshot, host);
        } else if has(flow_flags::FIN_ACKED) && installed.orphan && !installed.fin_wait {
            installed.fin_wait = true;
            match fin_wait_us(&installed.options, self.config.fin_wait_s) {
                Some(wait) => self.arm(id, now.after(wait)),
                None => {
                    self.note_end(id, Ending::NoFin);
                    self.abort_flow(id, true, None, host);
                }
            }
        }
    }

    /// Both FINs have been exchanged. The flow is removed, and enters TIME-WAIT if we closed first.
    fn both_closed(&mut self, now: Micros, id: FlowId, snapshot: &FlowSnapshot, host: &mut dyn Host) {
        let Some(connection) = self.table.get(id) else { return };
        let Phase::Installed(installed) = &connection.phase else { return };
        let passive = installed.passive;
        if !passive {
            let entry = TimeWait {
                snd_nxt: snapshot.snd_max,
                rcv_nxt: snapshot.rcv_nxt,
                timestamps: installed.timestamps.then_some((snapshot.ts_recent, installed.ts_offset)),
                since: now,
                // RFC 9293 §3.6.1, MUST-13.
                until: now.after(u64::from(self.config.time_wait_s) * 1_000_000),
                window: (snapshot.rcv_wnd >> snapshot.rcv_wscale).min(u32::from(u16::MAX)) as u16,
                answered_at: None,
            };
            self.time_wait.insert(connection.tuple, entry);
        }
        self.note_end(id, if passive { Ending::PeerClosed } else { Ending::Closed });
        self.remove_flow(id, host);
    }

    /// Handles the FIN-WAIT-2 timer of a closed socket's connection: the peer's FIN has not come.
    pub(super) fn fin_wait_timeout(&mut self, now: Micros, id: FlowId, flows: &dyn Snapshots, host: &mut dyn Host) {
        if self.table.running(id).is_some() {
            self.look_at_closing(now, id, &flows.snapshot(id), host);
            self.note_end(id, Ending::NoFin);
            self.remove_flow(id, host);
        }
    }

    /// Removes a flow from its fast path; `Removed` follows.
    pub(super) fn remove_flow(&mut self, id: FlowId, host: &mut dyn Host) {
        let Some(installed) = self.table.running(id) else { return };
        installed.removing = true;
        if let Some(connection) = self.table.get(id) {
            host.send(connection.flow_group, ToFast::Remove(id));
        }
    }

    /// Ends a flow whose peer does not answer. The errno is the path's last soft error (RFC 9293 §3.9.1.8 MUST-47,
    /// §3.9.2.2 SHLD-25), else ETIMEDOUT.
    pub(super) fn give_up(&mut self, id: FlowId, rst: bool, host: &mut dyn Host) {
        let Some(installed) = self.table.running(id) else { return };
        let errno = installed.soft_error.unwrap_or(ETIMEDOUT);
        self.note_end(id, Ending::NoAnswer(errno));
        self.abort_flow(id, rst, Some(errno), host);
    }

    /// Aborts a flow.
    pub(super) fn abort_flow(&mut self, id: FlowId, rst: bool, errno: Option<i32>, host: &mut dyn Host) {
        self.forget_splice(id, host);
        let Some(installed) = self.table.running(id) else { return };
        let errno = errno.filter(|_| !installed.orphan);
        if let Some(connection) = self.table.get(id) {
            host.send(connection.flow_group, ToFast::Abort { flow: id, rst, errno });
        }
        self.remove_flow(id, host);
    }

    /// Ends a connection because the host's operator wants it: a reset for the peer, ECONNABORTED for the application, as
    /// `ss -K` does. False: there is none.
    pub fn cut(&mut self, owner: Owner, host: &mut dyn Host) -> bool {
        let Some(id) = self.table.by_owner(owner) else { return false };
        if self.table.opening(id).is_some() {
            self.fail_opening(id, ECONNABORTED, host);
        } else if !self.cut_splice(id, Ending::Cut, ECONNABORTED, host) {
            self.note_end(id, Ending::Cut);
            self.abort_flow(id, true, Some(ECONNABORTED), host);
        }
        true
    }

    /// Resets a connection whose application is gone, for this reason, whatever is still to be sent. If the time is over, and the
    /// peer has acknowledged all, only its FIN has not come.
    pub fn reset(&mut self, owner: Owner, why: Ending, host: &mut dyn Host) {
        let Some(id) = self.table.by_owner(owner) else { return };
        let waits = self.table.running(id).is_some_and(|installed| installed.fin_wait);
        let why = if why == Ending::Left && waits { Ending::NoFin } else { why };
        if !self.cut_splice(id, why, ECONNRESET, host) {
            self.note_end(id, why);
            self.abort_flow(id, true, None, host);
        }
    }

    /// Notes why an installed connection ends.
    pub(super) fn note_end(&mut self, id: FlowId, why: Ending) {
        if let Some(Phase::Installed(installed)) = self.table.get_mut(id).map(|connection| &mut connection.phase) {
            installed.ending.get_or_insert(why);
        }
    }

    /// Tells the host and tracers of a connection that ends before it is established. Those that a peer began are nobody's yet.
    pub(super) fn not_opened(&self, id: FlowId, why: Ending, host: &mut dyn Host) {
        let Some(connection) = self.table.get(id) else { return };
        if matches!(&connection.phase, Phase::Opening(opening) if opening.listener.is_none()) {
            let (owner, tuple, none) = (connection.owner, &connection.tuple, (probes::NONE, probes::NONE));
            probes::end(none, owner.0, why.in_short(), tuple.local_end(), tuple.remote_end());
            host.ended(owner, tuple, why);
        }
    }

    /// The fast path has removed the flow.
    pub(super) fn removed(&mut self, id: FlowId, host: &mut dyn Host) {
        if !self.table.get(id).is_some_and(|connection| matches!(connection.phase, Phase::Installed(_))) {
            return;
        }
        self.timers.cancel(id);
        self.forget_splice(id, host);
        let Some(connection) = self.table.remove(id) else { return };
        self.unsteer(&connection, host);
        if let Phase::Installed(installed) = &connection.phase {
            let (flow, tuple) = ((connection.flow_group as i64, i64::from(id.0)), &connection.tuple);
            let ending = installed.ending.unwrap_or(Ending::Aborted);
            probes::end(flow, connection.owner.0, ending.in_short(), tuple.local_end(), tuple.remote_end());
            host.ended(connection.owner, tuple, ending);
        }
        host.released(connection.owner, Some(id));
    }

    /// Ends the steering of a removed connection, unless TIME-WAIT still needs it.
    pub(super) fn unsteer(&mut self, connection: &ConnectionEntry, host: &mut dyn Host) {
        if connection.steered && !self.time_wait.has(&connection.tuple) {
            host.steer(&connection.tuple, Steered::No);
        }
    }

    /// Removes expired tuples from TIME-WAIT.
    pub(super) fn expire_time_wait(&mut self, now: Micros, host: &mut dyn Host) {
        while let Some(tuple) = self.time_wait.pop(now, self.config.time_wait_max) {
            // Otherwise the connection itself still exists, and its removal ends the steering.
            if self.table.by_tuple(&tuple).is_none() {
                host.steer(&tuple, Steered::No);
            }
        }
    }

    /// Has a listener that is not ours taken a later SYN of this tuple? The host's kernel shows SYNs to its own listeners,
    /// too. The peer repeats the segment, which the kernel gets once the tuple is no longer steered. A half-open connection
    /// of ours ends.
    pub(super) fn is_the_kernels(&mut self, arrival: &Arrival, host: &mut dyn Host) -> bool {
        let (tuple, id) = (&arrival.tuple, self.table.by_tuple(&arrival.tuple));
        let mut passive = |id| self.table.opening(id).is_some_and(|opening| opening.listener.is_some());
        if !id.is_none_or(&mut passive) || host.finds_listeners(arrival.port) || !host.kernel_has(tuple) {
            return false;
        }
        if let Some(id) = id {
            self.discard_opening(id, host);
        }
        self.time_wait.take(tuple);
        host.steer(tuple, Steered::Kernels);
        true
    }

    /// Handles a segment in TIME-WAIT. `closed`: the old flow has been removed, so a new one may replace it.
    pub(super) fn in_time_wait(
        &mut self,
        now: Micros,
        entry: TimeWait,
        arrival: &Arrival,
        closed: bool,
        host: &mut dyn Host,
    ) {
        let of_another = arrival.has(flags::ACK) && !arrival.has(flags::SYN) && arrival.ack() != entry.snd_nxt;
        if closed && of_another && self.is_the_kernels(arrival, host) {
            return self.counters.drop(Drop::NoSocket);
        }
        let answer = entry.judge(arrival);
        let listener = if answer == Answer::Reopen { self.listener_of_syn(arrival, host) } else { None };
        match (answer, listener) {
            (Answer::Drop(why), _) => self.counters.drop(why),
            (Answer::Reopen, Some(listener)) if closed => {
                if self.passive_open(now, arrival, listener, Some(entry.snd_nxt), host) {
                    self.time_wait.take(&arrival.tuple);
                }
            }
            // The host shall name the listener of the peer's next SYN.
            (Answer::Reopen, _) if !host.finds_listeners(arrival.port) => {
                self.counters.drop(Drop::NoSocket);
                host.steer(&arrival.tuple, Steered::ButFirstSyns);
            }
            (Answer::Reopen, _) => {
                self.counters.drop(Drop::NoSocket);
                if closed {
                    self.refuse(now, arrival, host);
                }
            }
            (Answer::Ack { restart }, _) => {
                self.counters.drop(Drop::Duplicate);
                if restart {
                    let until = now.after(u64::from(self.config.time_wait_s) * 1_000_000);
                    self.time_wait.insert(arrival.tuple, TimeWait { until, ..entry });
                }
                // As in Linux, replies to data are not limited, as they cannot form a loop of acknowledgements.
                let last = entry.answered_at.filter(|_| arrival.segment.payload_len == 0 || arrival.has(flags::SYN));
                if self.may_challenge(now, last, host) {
                    self.time_wait.answered(now, &arrival.tuple);
                    let ack = entry.acknowledgement(now);
                    self.transmit(arrival.flow_group, &arrival.tuple, &arrival.way_back(), &ack, host);
                }
            }
        }
    }
}
