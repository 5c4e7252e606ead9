//! The handshake (RFC 9293 §3.10.7.3 and §3.10.7.4, RFC 5961): SYN-SENT and SYN-RECEIVED, until the flow is installed.

use super::active_flows::Activity;
use super::congestion::Controller;
use super::connections::{Installed, Phase, SpliceState};
use super::ending::Ending;
use super::errno::{ECONNREFUSED, ETIMEDOUT};
use super::host::{FirstSyn, Host, Route, Steered};
use super::keepalive::Keepalive;
use super::opening::{Opening, OpeningState, Path};
use super::path_mtu::PathMtu;
use super::segments::{Arrival, Reply};
use super::socket_options::{defer_timeouts, service, user_timeout_us};
use super::timers::Stamp;
use super::{SlowConfig, SlowPath};
use crate::counters::Drop;
use crate::flow::{FlowId, Owner, RingBytes, SocketOptions};
use crate::messages::ToFast;
use crate::seq::Seq;
use crate::time::Micros;
use std::net::IpAddr;
use towpath_probes as probes;
use towpath_wire::{Options, flags};

/// The handling of a segment in SYN-RECEIVED.
enum Handling {
    /// The handshake is complete. `resynchronise`: the peer still needs our acknowledgement of its SYN-ACK.
    Establish { resynchronise: bool },
    /// The peer has not seen our SYN-ACK.
    SendSynAck,
    /// Send an ACK, and drop the segment.
    Challenge(Drop),
    /// Drop the segment.
    Ignore(Drop),
    /// Answer with RST, drop the segment.
    Refuse(Drop),
    /// A valid RST.
    Reset,
    /// Return to LISTEN, as the peer has started again.
    Listen,
}

impl SlowPath {
    /// A handshake that has not begun, with the settings of configuration and application.
    pub(super) fn new_opening(
        &self,
        now: Micros,
        listener: Option<Owner>,
        remote: IpAddr,
        ring_bytes: RingBytes,
        options: SocketOptions,
    ) -> Opening {
        let mut opening = Opening::new(now, listener, remote, ring_bytes, self.config.timestamps);
        opening.sack = self.config.sack;
        if !self.config.window_scaling {
            opening.our_shift = None;
        }
        (opening.options, opening.mss_clamp) = (options, self.config.mss_clamp);
        if listener.is_some() {
            opening.dctcp = self.inherited_congestion(listener).needs_ecn();
            opening.ecn = self.config.ecn != 0 || opening.dctcp;
        }
        opening
    }

    /// Handles a segment in SYN-SENT.
    pub(super) fn in_syn_sent(&mut self, now: Micros, id: FlowId, arrival: &Arrival, host: &mut dyn Host) {
        let Some(opening) = self.table.opening(id) else { return };
        let acks_syn = arrival.has(flags::ACK) && arrival.ack() == opening.iss.add(1);
        if arrival.has(flags::ACK) && !acks_syn {
            self.counters.drop(Drop::BadAck);
            self.refuse(now, arrival, host);
        } else if arrival.has(flags::RST) {
            // Without a valid ACK an off-path attacker may have sent it (RFC 5961 §3).
            if acks_syn {
                self.counters.resets += 1;
                self.fail_opening(id, ECONNREFUSED, host);
            } else {
                self.counters.drop(Drop::BadReset);
            }
        } else if !arrival.has(flags::SYN) {
            self.counters.drop(Drop::BadFlags);
        } else {
            opening.hear_syn(&arrival.segment);
            if acks_syn {
                self.establish(now, id, true, arrival.came_to, host);
            } else {
                // Simultaneous open (RFC 9293 §3.5, MUST-10).
                opening.state = OpeningState::SynReceived;
                (opening.sent, opening.timeouts) = (0, 0);
                self.send_syn(now, id, host);
            }
        }
    }

    /// Handles a segment in SYN-RECEIVED.
    pub(super) fn in_syn_received(&mut self, now: Micros, id: FlowId, arrival: Arrival, host: &mut dyn Host) {
        let Some(opening) = self.table.opening(id) else { return };
        let defers = opening.timeouts < self.config.defers(opening);
        let irs = opening.irs;
        match judge(opening, &arrival) {
            // As in Linux: the listener accepts the connection only with data (`TCP_DEFER_ACCEPT`).
            Handling::Establish { .. } if defers && arrival.seq_len() == 0 => {
                opening.hear_last(&arrival.segment);
                opening.deferred = true;
            }
            Handling::Establish { resynchronise } => {
                opening.hear_last(&arrival.segment);
                if !self.establish(now, id, resynchronise, arrival.came_to, host) {
                    // As in Linux the ACK is treated as lost. The peer's data or our next SYN-ACK make another attempt.
                    return self.counters.drop(Drop::BacklogFull);
                }
                // Data in a SYN is not passed on, as the fast path would return it; the peer sends it again. An ACK
                // that has overtaken data is passed on, as it sets SND.WL1 (RFC 9293 §3.10.7.4, fifth check): an older
                // window is ignored.
                if (arrival.seq_len() > 0 || arrival.seq() != irs.add(1))
                    && !arrival.has(flags::SYN)
                    && let Some(connection) = self.table.get(id)
                {
                    host.send(connection.flow_group, ToFast::Inject(arrival.port, arrival.frame));
                }
            }
            Handling::SendSynAck => {
                self.counters.drop(Drop::Duplicate);
                if self.may_challenge_opening(now, id, host) {
                    self.transmit_syn(now, id, host);
                }
            }
            Handling::Challenge(why) => {
                self.counters.drop(why);
                self.acknowledge_opening(now, id, host);
            }
            Handling::Ignore(why) => self.counters.drop(why),
            Handling::Refuse(why) => {
                self.counters.drop(why);
                self.refuse(now, &arrival, host);
            }
            Handling::Reset => {
                self.counters.resets += 1;
                self.fail_opening(id, ECONNREFUSED, host);
            }
            Handling::Listen => {
                self.counters.drop(Drop::BadFlags);
                self.fail_opening(id, ECONNREFUSED, host);
            }
        }
    }

    /// Installs the connection in the fast path of its flow group. `came_to` has got the last segment of the handshake. False = its
    /// listener's accept queue is full, and it is as before, but for its flow group.
    fn establish(
        &mut self,
        now: Micros,
        id: FlowId,
        acknowledge: bool,
        came_to: Option<usize>,
        host: &mut dyn Host,
    ) -> bool {
        let algorithm = self.choose_congestion(id);
        let Some(connection) = self.table.get_mut(id) else { return false };
        let Phase::Opening(opening) = &connection.phase else { return false };
        let Some(Path { link, mtu }) = opening.path else { return false };
        let (owner, tuple, parent) = (connection.owner, connection.tuple, opening.listener);
        let flow_group = host.flow_group_for(&tuple, came_to);
        connection.flow_group = flow_group;

        let (keepalive, max_pacing) = (opening.options.keepalive, opening.options.max_pacing);
        let mut controller = Controller::new(now, algorithm, u32::from(opening.payload()), opening.sent > 1);
        controller.set_max_pacing(max_pacing);
        let mut setup = opening.setup(now, id, owner, tuple, link, controller.initial());
        setup.class = host.class(owner);
        let installed = Installed {
            removing: false,
            ending: None,
            splice: SpliceState::No,
            orphan: false,
            passive: false,
            fin_wait: false,
            look: false,
            lost: false,
            undone: false,
            flags: 0,
            link,
            mtu,
            timestamps: opening.timestamps,
            ts_offset: opening.ts_offset,
            options: opening.options,
            keepalive: Keepalive::new(now),
            soft_error: opening.soft_error,
            icmp: None,
            path: PathMtu::new(opening.v6, setup.mss, opening.overhead()),
            peer_payload: opening.payload_within(u16::MAX),
            activity: Activity::new(now, setup.snd_start, controller, opening.timeouts),
        };
        if !connection.steered {
            connection.steered = true;
            host.steer(&tuple, if parent.is_some() { Steered::ButFirstSyns } else { Steered::All });
        }
        host.established(owner, &setup, flow_group);
        let accepted = parent.is_none_or(|parent| host.accepted(parent, owner, &tuple));
        if !accepted {
            return false;
        }
        connection.phase = Phase::Installed(Box::new(installed));
        connection.timer = Stamp::NONE;
        self.timers.cancel(id);
        if let Some(listener) = parent.and_then(|parent| self.listeners.of(parent)) {
            listener.half_open.remove(&id);
        }
        self.counters.opened += 1;
        let (group, flow, ends) = (flow_group as i64, i64::from(id.0), (tuple.local_end(), tuple.remote_end()));
        probes::established(group, flow, owner.0, parent.is_some(), ends.0, ends.1);
        if let Some(listener) = parent {
            probes::accept(listener.0, owner.0, ends.0, ends.1);
        }
        if keepalive {
            self.arm(id, now);
        }
        host.send(flow_group, ToFast::Install(Box::new(setup)));
        if acknowledge {
            host.send(flow_group, ToFast::SendAck(id));
        }
        true
    }

    /// Sends SYN or SYN-ACK, and arms the timer with backoff (RFC 6298 §5.5).
    pub(super) fn send_syn(&mut self, now: Micros, id: FlowId, host: &mut dyn Host) -> FirstSyn {
        let Some(opening) = self.table.opening(id) else { return FirstSyn::Sent };
        opening.sent += 1;
        opening.sent_at = now;
        self.await_answer(now, id);
        self.transmit_syn(now, id, host)
    }

    /// Arms the timer of a handshake.
    fn await_answer(&mut self, now: Micros, id: FlowId) {
        let Some(opening) = self.table.opening(id) else { return };
        let timeout_us = u64::from(self.config.syn_timeout_ms) * 1000;
        let mut wait = super::rto::backed_off(timeout_us, opening.timeouts, u64::from(self.config.rto_max_ms) * 1000);
        let limit_us = user_timeout_us(&opening.options);
        if limit_us != 0 && opening.timeouts > 0 {
            wait = wait.min(limit_us.saturating_sub(now.since(opening.started)));
        }
        self.arm(id, now.after(wait));
    }

    /// Handles a time-out of a handshake.
    pub(super) fn handshake_timeout(&mut self, now: Micros, id: FlowId, host: &mut dyn Host) {
        let Some(connection) = self.table.get_mut(id) else { return };
        let Phase::Opening(opening) = &mut connection.phase else { return };
        let retries = match (opening.state, opening.options.syn_retries) {
            (OpeningState::Resolving, _) => return self.retry_route(now, id, host),
            (OpeningState::SynSent, 0) => self.config.syn_retries,
            (OpeningState::SynReceived, 0) => self.config.synack_retries,
            (_, retries) => retries,
        };
        let limit_us = user_timeout_us(&opening.options);
        let too_late = limit_us != 0 && opening.timeouts > 0 && now.since(opening.started) >= limit_us;
        let defers = self.config.defers(opening);
        // With TCP_DEFER_ACCEPT nothing is sent until the last time-out. The peer's answer to that SYN-ACK opens the
        // connection.
        let waits = opening.deferred && opening.timeouts + 1 < defers;
        if too_late || (opening.timeouts >= u32::from(retries) && !(opening.deferred && opening.timeouts < defers)) {
            // MUST-22: R2.
            let errno = opening.soft_error.unwrap_or(ETIMEDOUT);
            return self.fail_opening(id, errno, host);
        }
        opening.timeouts += 1;
        if waits {
            return self.await_answer(now, id);
        }
        // MUST-22: R1. Look up the route again, as the next hop may have changed.
        if let Route::Via { link, mtu, .. } = host.route(connection.tuple.remote, Some(connection.tuple.local)) {
            opening.path = Some(Path { link, mtu });
        }
        self.counters.retransmits += 1;
        self.send_syn(now, id, host);
    }

    /// Sends the SYN or SYN-ACK without touching timers.
    fn transmit_syn(&mut self, now: Micros, id: FlowId, host: &mut dyn Host) -> FirstSyn {
        let Some(opening) = self.table.opening(id) else { return FirstSyn::Sent };
        let mut syn = Reply::bare(opening.iss, Seq(0), flags::SYN);
        (syn.window, syn.options) = (opening.window(), opening.options(now));
        if opening.state == OpeningState::SynReceived {
            (syn.flags, syn.ack) = (flags::SYN | flags::ACK, opening.irs.add(1));
        }
        syn.flags |= opening.ecn_flags();
        self.send_opening(id, syn, host)
    }

    /// Sends a challenge ACK for a half-open connection.
    fn acknowledge_opening(&mut self, now: Micros, id: FlowId, host: &mut dyn Host) {
        let Some(opening) = self.table.opening(id) else { return };
        let mut ack = Reply::bare(opening.iss.add(1), opening.irs.add(1), flags::ACK);
        ack.window = opening.window() >> opening.our_shift.unwrap_or(0);
        ack.options = Options { timestamps: opening.stamp(now), ..Options::default() };
        if self.may_challenge_opening(now, id, host) {
            self.send_opening(id, ack, host);
        }
    }

    /// May a half-open connection send one more reply to its peer, or to a forged segment?
    fn may_challenge_opening(&mut self, now: Micros, id: FlowId, host: &mut dyn Host) -> bool {
        let last = self.table.opening(id).and_then(|opening| opening.challenged_at);
        let may = self.may_challenge(now, last, host);
        if may && let Some(opening) = self.table.opening(id) {
            opening.challenged_at = Some(now);
        }
        may
    }

    /// Resets the peer of a half-open connection.
    pub(super) fn reset_opening(&mut self, now: Micros, id: FlowId, host: &mut dyn Host) {
        let Some(opening) = self.table.opening(id) else { return };
        let mut reset = Reply::bare(opening.iss.add(1), opening.irs.add(1), flags::RST | flags::ACK);
        reset.options = Options { timestamps: opening.stamp(now), ..Options::default() };
        self.counters.resets += 1;
        self.send_opening(id, reset, host);
    }

    /// Sends a segment of a connection in its handshake.
    fn send_opening(&mut self, id: FlowId, mut reply: Reply, host: &mut dyn Host) -> FirstSyn {
        let Some(connection) = self.table.get(id) else { return FirstSyn::Sent };
        let Phase::Opening(opening) = &connection.phase else { return FirstSyn::Sent };
        let Some(path) = opening.path else { return FirstSyn::Sent };
        let (owner, flow_group, tuple) = (connection.owner, connection.flow_group, connection.tuple);
        reply.service = service(&opening.options, opening.v6);
        if reply.flags & (flags::SYN | flags::ACK | flags::RST) == flags::SYN {
            return self.transmit_first_syn((owner, flow_group), &tuple, &path.link, &reply, host);
        }
        self.transmit(flow_group, &tuple, &path.link, &reply, host);
        FirstSyn::ByPort
    }

    /// Ends a failed handshake. The application is told if it was an active open.
    pub(super) fn fail_opening(&mut self, id: FlowId, errno: i32, host: &mut dyn Host) {
        let Some(connection) = self.table.get(id) else { return };
        let Phase::Opening(opening) = &connection.phase else { return };
        if opening.listener.is_none() {
            host.connect_failed(connection.owner, errno);
        }
        self.not_opened(id, Ending::NotOpened(errno), host);
        self.counters.failed += 1;
        self.discard_opening(id, host);
    }

    /// Removes a connection that was never installed.
    pub(super) fn discard_opening(&mut self, id: FlowId, host: &mut dyn Host) {
        let parent = self.table.opening(id).and_then(|opening| opening.listener);
        self.timers.cancel(id);
        let Some(connection) = self.table.remove(id) else { return };
        self.unsteer(&connection, host);
        match parent {
            None => host.released(connection.owner, None),
            Some(parent) => {
                if let Some(listener) = self.listeners.of(parent) {
                    listener.half_open.remove(&id);
                }
                host.drop_child(connection.owner);
            }
        }
    }
}

impl SlowConfig {
    /// Number of time-outs for which a child of this listener waits for data.
    fn defers(&self, opening: &Opening) -> u32 {
        if opening.listener.is_none() {
            return 0;
        }
        let ms = |ms: u32| u64::from(ms) * 1000;
        defer_timeouts(&opening.options, ms(self.syn_timeout_ms), ms(self.rto_max_ms))
    }
}

/// The checks of RFC 9293 §3.10.7.4 for SYN-RECEIVED, in their order; PAWS first (RFC 7323 §5.3).
fn judge(opening: &Opening, arrival: &Arrival) -> Handling {
    let (seq, len, next) = (arrival.seq(), arrival.seq_len(), opening.irs.add(1));
    let acks_syn = arrival.has(flags::ACK) && arrival.ack() == opening.iss.add(1);
    let reset = arrival.has(flags::RST);
    if arrival.has(flags::SYN) && seq == opening.irs {
        // Simultaneous open: the peer's SYN is repeated, now with an ACK.
        let both = acks_syn && opening.listener.is_none();
        return if both { Handling::Establish { resynchronise: true } } else { Handling::SendSynAck };
    }
    if let Some(theirs) = arrival.segment.options.timestamps
        && opening.timestamps
        && !reset
        && Seq(theirs.value).before(Seq(opening.ts_recent))
    {
        return Handling::Challenge(Drop::Paws);
    }
    let end = next.add(u32::from(opening.window()).max(1));
    let acceptable = seq.before(end) && if len == 0 { !seq.before(next) } else { seq.add(len).after(next) };
    // RFC 5961 §3: an RST is judged by its sequence number alone.
    let inside = !seq.before(next) && seq.before(end);
    match () {
        () if !inside && reset => Handling::Ignore(Drop::BadReset),
        () if !acceptable => Handling::Challenge(Drop::OutOfWindow),
        () if reset && seq == next => Handling::Reset,
        () if reset => Handling::Challenge(Drop::BadReset),
        // Fourth check. SYN-RECEIVED is not a synchronized state, so RFC 5961 §4 requires a challenge only after an
        // active open. A passive one is removed without a reply (MUST-11), which would end the peer's new attempt. The
        // next SYN opens it.
        () if arrival.has(flags::SYN) && opening.listener.is_some() => Handling::Listen,
        () if arrival.has(flags::SYN) => Handling::Challenge(Drop::BadFlags),
        () if !arrival.has(flags::ACK) => Handling::Ignore(Drop::NoAck),
        () if !acks_syn => Handling::Refuse(Drop::BadAck),
        () => Handling::Establish { resynchronise: false },
    }
}
