//! Splices: what has become of them is looked at now and then, as nobody tells. Their flows rest until the end.

use super::SlowPath;
use super::connections::{Phase, SpliceState};
use super::ending::Ending;
use super::errno::{ECONNABORTED, ECONNRESET, ETIMEDOUT};
use super::host::Host;
use super::path_mtu::to_tell;
use super::segments::{Arrival, Reply};
use super::translation::{Forwarded, Translation};
use crate::counters::Drop;
use crate::flow::{FlowId, Link};
use crate::messages::{Splicing, ToFast};
use crate::seq::Seq;
use crate::time::Micros;
use std::collections::{HashMap, VecDeque};
use towpath_wire::flags;
use towpath_wire::icmp::{IcmpError, IcmpKind};
use towpath_wire::too_big::TooBig;

/// How often splices are looked at, µs, and how many at a time.
const LOOK_US: u64 = 100_000;
const LOOKS: usize = 512;
/// A splice that has ended stays for so long after its last segment, µs: that may have been lost.
const SETTLED_US: u64 = 2_000_000;
/// The same if the end does not stand exactly where the other peer's newest acknowledgement does.
const DOUBTFUL_US: u64 = 60_000_000;
/// How far from it such an end may stand: by what was sent right before it.
const NEAR: u32 = 1 << 18;
/// How far beyond the newest acknowledgement a segment may be of which a router says that it is too big. The first of them stands
/// where that is, and of what is forged blindly hardly anything is as near.
const MOST_AHEAD: u32 = 1 << 20;
/// How often a splice passes on what routers say, µs.
const TELL_US: u64 = 100_000;
/// A splice without segments ends after five days (as Linux's connection tracking).
const IDLE_US: u64 = 5 * 86_400_000_000;

/// All splices, by their first flow.
#[derive(Default)]
pub(super) struct Spliced {
    running: HashMap<FlowId, Running>,
    /// The order in which they are looked at. Some of them may be over.
    order: VecDeque<(FlowId, u64)>,
    /// Numbers of splices: those of flows come again.
    last: u64,
    look_at: Micros,
}

/// A splice.
struct Running {
    number: u64,
    flows: [FlowId; 2],
    translations: [Translation; 2],
    /// Segments at the last look, and when their number was last another.
    segments: u64,
    active_at: Micros,
    /// How far each one's bytes have been acknowledged by the other peer, and how many that were.
    reached: [Seq; 2],
    passed: [u64; 2],
    /// Whose peer's end has arrived at the other one. Its application was told.
    ended: [bool; 2],
    /// The applications were told of its end.
    told: bool,
    /// When a peer was last told what a router has said.
    passed_on_at: Option<Micros>,
}

impl Running {
    /// How far the other peer has acknowledged each one's bytes, in the numbers of the one that has sent them. If the last
    /// acknowledgement says nothing new, it may have been on its way for longer than many others. So a newer one before it counts if
    /// that much has gone on.
    fn heard(&self, seen: &[Forwarded; 2]) -> [Seq; 2] {
        [0, 1].map(|side| {
            let (other, reached) = (&seen[1 - side], self.reached[side]);
            let [last, newest] = [other.acked, other.newest].map(|seq| seq.sub(self.translations[side].seq));
            // A FIN has a number, too.
            let gone_on = seen[side].bytes.saturating_sub(self.passed[side]) + 1;
            let is_known = last.distance(reached) <= 0 && u64::from(newest.bytes_since(reached)) <= gone_on;
            if is_known && newest.distance(last) > 0 { newest } else { last }
        })
    }

    /// Counts what the other peers have acknowledged since the last time. No more counts than has gone on to them, so a forged
    /// acknowledgement gains next to nothing. It may have been far behind, or what came again has counted: then it goes on from where
    /// the peer is.
    fn count(&mut self, seen: &[Forwarded; 2], heard: [Seq; 2]) {
        for (side, heard) in heard.into_iter().enumerate() {
            // A FIN has a number, too.
            let upto = if seen[side].fin == Some(heard) { heard.sub(1) } else { heard };
            let ahead = upto.distance(self.reached[side]);
            if ahead < -(NEAR as i32) {
                self.reached[side] = upto;
            }
            let left = seen[side].bytes.saturating_sub(self.passed[side]);
            let more = u64::from(ahead.max(0).unsigned_abs()).min(left);
            self.passed[side] += more;
            self.reached[side] = self.reached[side].add(more as u32);
        }
    }

    /// Have both FINs been acknowledged, after this time without a segment? FIN or acknowledgement may be a forged one that came
    /// last. So after a minute it is enough that they are near.
    fn is_closed(seen: &[Forwarded; 2], heard: [Seq; 2], idle_us: u64) -> bool {
        seen.iter().zip(heard).all(|(seen, heard)| {
            let off = seen.fin.map(|fin| fin.distance(heard).unsigned_abs());
            off.is_some_and(|off| off == 0 || (off < NEAR && idle_us >= DOUBTFUL_US))
        })
    }

    /// Which peers have sent a RST that the other one has taken, after this time without a segment? It takes one that stands
    /// exactly where it expects the next byte, and nobody can guess that. After one that is near, it may have had bytes that it did
    /// not acknowledge. Whoever forges such a one needs some 2^14 attempts, and a minute of silence for each.
    fn have_reset(seen: &[Forwarded; 2], heard: [Seq; 2], idle_us: u64) -> [bool; 2] {
        [0, 1].map(|side| {
            let ahead = seen[side].rst.map(|rst| rst.bytes_since(heard[side]));
            let wait_us = ahead.map(|ahead| if ahead == 0 { SETTLED_US } else { DOUBTFUL_US });
            ahead.is_some_and(|ahead| ahead < NEAR) && wait_us.is_some_and(|wait_us| idle_us >= wait_us)
        })
    }
}

impl Spliced {
    /// When they must be looked at next.
    pub(super) fn next(&self) -> Option<Micros> {
        (!self.running.is_empty()).then_some(self.look_at)
    }

    /// Adds one.
    pub(super) fn insert(&mut self, now: Micros, flows: [FlowId; 2], translations: [Translation; 2]) {
        if self.running.is_empty() {
            self.order.clear();
            self.look_at = now.after(LOOK_US);
        }
        self.last += 1;
        let (key, number) = (flows[0], self.last);
        self.order.push_back((key, number));
        let [a, b] = &translations;
        let reached = [b.acked.sub(a.seq), a.acked.sub(b.seq)];
        let running = Running {
            number,
            flows,
            translations,
            segments: 0,
            active_at: now,
            reached,
            passed: [0; 2],
            ended: [false; 2],
            told: false,
            passed_on_at: None,
        };
        self.running.insert(key, running);
    }
}

impl SlowPath {
    /// Looks what has become of some splices.
    pub(super) fn look_at_spliced(&mut self, now: Micros, host: &mut dyn Host) {
        if now < self.spliced.look_at || self.spliced.running.is_empty() {
            return;
        }
        self.spliced.look_at = now.after(LOOK_US);
        let mut looks = LOOKS;
        for _ in 0..self.spliced.order.len() {
            let Some((key, number)) = self.spliced.order.pop_front() else { break };
            // The number of a flow may be another splice's by now.
            if self.spliced.running.get(&key).is_none_or(|running| running.number != number) {
                continue;
            }
            if let Some(running) = self.spliced.running.remove(&key)
                && let Some(running) = self.look_at_splice(now, running, host)
            {
                self.spliced.order.push_back((key, number));
                self.spliced.running.insert(key, running);
            }
            looks -= 1;
            if looks == 0 {
                break;
            }
        }
    }

    /// What has become of a splice; `None` = it is over.
    fn look_at_splice(&mut self, now: Micros, mut running: Running, host: &mut dyn Host) -> Option<Running> {
        let seen = running.translations.each_ref().map(|translation| host.forwarded(&translation.from));
        let [Some(a), Some(b)] = seen else {
            // Somebody has taken the module away.
            self.end_splice(&running, [Ending::SpliceLost; 2], Some(ECONNABORTED), true, host);
            return None;
        };
        let segments = a.segments.wrapping_add(b.segments);
        if segments != running.segments {
            (running.segments, running.active_at) = (segments, now);
        }
        let (seen, idle_us) = ([a, b], now.since(running.active_at));
        let heard = running.heard(&seen);
        let have_reset = Running::have_reset(&seen, heard, idle_us);
        running.count(&seen, heard);
        for (id, passed) in running.flows.into_iter().zip(running.passed) {
            if let Some(connection) = self.table.get(id) {
                host.passed_on(connection.owner, passed);
            }
        }
        let is_closed = Running::is_closed(&seen, heard, idle_us);
        for (side, id) in running.flows.into_iter().enumerate() {
            // By the exact number alone: no byte of it is missing any more.
            if !running.ended[side] && (is_closed || seen[side].fin == Some(heard[side])) {
                running.ended[side] = true;
                self.step_one(id, Splicing::Ended(None), host);
            }
        }
        running.told = running.ended == [true; 2];
        match () {
            () if running.told && idle_us >= SETTLED_US => {
                self.end_splice(&running, [Ending::PeersClosed; 2], None, false, host);
            }
            () if have_reset != [false; 2] => {
                let why = have_reset.map(|reset| if reset { Ending::PeerReset } else { Ending::OtherEnd });
                self.end_splice(&running, why, Some(ECONNRESET), false, host);
            }
            () if idle_us >= IDLE_US => {
                self.end_splice(&running, [Ending::NoAnswer(ETIMEDOUT); 2], Some(ETIMEDOUT), true, host);
            }
            () => return Some(running),
        }
        None
    }

    /// Ends a splice, each flow for its reason, for the peers by RST if `rst`, and for the applications by this errno. Both flows
    /// are removed.
    fn end_splice(&mut self, running: &Running, why: [Ending; 2], errno: Option<i32>, rst: bool, host: &mut dyn Host) {
        for ((id, translation), why) in running.flows.into_iter().zip(&running.translations).zip(why) {
            let acked = host.forwarded(&translation.from).map_or(translation.acked, |seen| seen.acked);
            host.unsplice(&translation.from);
            self.note_end(id, why);
            let Some(connection) = self.table.get_mut(id) else { continue };
            let Phase::Installed(installed) = &mut connection.phase else { continue };
            let (flow_group, link) = (connection.flow_group, installed.link);
            (installed.splice, installed.removing) = (SpliceState::No, true);
            if rst {
                self.counters.resets += 1;
                self.transmit(flow_group, &translation.from, &link, &Reply::bare(acked, Seq(0), flags::RST), host);
            }
            if errno.is_some() {
                host.send(flow_group, ToFast::Splice(id, Splicing::Ended(errno)));
            }
            host.send(flow_group, ToFast::Remove(id));
        }
    }

    fn splice_of(&self, id: FlowId) -> Option<FlowId> {
        let Phase::Installed(installed) = &self.table.get(id)?.phase else { return None };
        if let SpliceState::Begun(key) = installed.splice { Some(key) } else { None }
    }

    /// Ends the splice of a flow for this reason, by RST. If both peers have ended already, that is the reason, and no RST goes.
    /// False: it is not spliced.
    pub(super) fn cut_splice(&mut self, id: FlowId, why: Ending, errno: i32, host: &mut dyn Host) -> bool {
        let Some(running) = self.splice_of(id).and_then(|key| self.spliced.running.remove(&key)) else { return false };
        let others = if why == Ending::SpliceLost { why } else { Ending::OtherEnd };
        let why = match running.told {
            true => [Ending::PeersClosed; 2],
            false => running.flows.map(|flow| if flow == id { why } else { others }),
        };
        self.end_splice(&running, why, Some(errno), !running.told, host);
        true
    }

    /// The link of a spliced flow has changed: that is where the other one's segments go. Over another port they must fit.
    pub(super) fn relink_splice(&mut self, id: FlowId, link: &Link, narrower: bool, host: &mut dyn Host) {
        let key = self.splice_of(id);
        let Some(running) = key.and_then(|key| self.spliced.running.get_mut(&key)) else { return };
        let translation = &mut running.translations[usize::from(running.flows[0] == id)];
        let is_same = link.port == translation.link.port;
        let may_follow = link.vlan == translation.link.vlan && (is_same || !narrower);
        let known = may_follow && {
            translation.link = *link;
            host.resplice(translation)
        };
        if !known {
            self.cut_splice(id, Ending::SpliceLost, ECONNABORTED, host);
        }
    }

    /// How the host translates has changed.
    pub fn change_splices(&mut self, host: &mut dyn Host) {
        self.spliced.running.values().flat_map(|running| &running.translations).for_each(|one| _ = host.resplice(one));
    }

    /// A SYN on a spliced connection. Its peer has begun anew, or somebody forges it: a challenge ACK tells (RFC 5961 §4).
    pub(super) fn syn_on_splice(&mut self, now: Micros, id: FlowId, arrival: &Arrival, host: &mut dyn Host) {
        self.counters.drop(Drop::Duplicate);
        let Some(running) = self.splice_of(id).and_then(|key| self.spliced.running.get(&key)) else { return };
        if running.told {
            // The peer repeats the SYN, when the connection is gone.
            let key = running.flows[0];
            if let Some(running) = self.spliced.running.remove(&key) {
                self.end_splice(&running, [Ending::PeersClosed; 2], None, false, host);
            }
            return;
        }
        let side = usize::from(running.flows[1] == id);
        let seen = running.translations.each_ref().map(|translation| host.forwarded(&translation.from));
        let [Some(a), Some(b)] = seen else { return };
        let (seen, heard) = ([a, b], running.heard(&[a, b]));
        if self.may_challenge(now, None, host) {
            let ack = Reply::bare(seen[side].acked, heard[side], flags::ACK);
            self.transmit(arrival.flow_group, &arrival.tuple, &arrival.way_back(), &ack, host);
        }
    }

    /// An error about a segment of a spliced connection. If a router finds it too big, the peer that has sent it is told, who judges
    /// by its own numbers whether it is forged. False: the connection is not spliced.
    pub(super) fn icmp_on_splice(&mut self, now: Micros, id: FlowId, error: &IcmpError, host: &mut dyn Host) -> bool {
        let key = self.splice_of(id);
        let Some(running) = key.and_then(|key| self.spliced.running.get_mut(&key)) else { return false };
        let side = usize::from(running.flows[1] == id);
        // The segment has come by the other connection, and the answer goes there.
        let (came, back, other) = (running.translations[1 - side], running.translations[side], running.flows[1 - side]);
        let IcmpKind::TooBig { mtu } = error.kind else { return true };
        let outstanding = host.forwarded(&back.from).map(|seen| Seq(error.seq).bytes_since(seen.acked));
        if outstanding.is_none_or(|ahead| ahead > MOST_AHEAD) {
            self.counters.drop(Drop::BadIcmp);
            return true;
        }
        if running.passed_on_at.is_some_and(|at| now.since(at) < TELL_US) {
            return true;
        }
        running.passed_on_at = Some(now);
        let told = TooBig {
            macs: [back.link.destination, back.link.source],
            vlan: back.link.vlan,
            from: came.from.remote_end(),
            to: came.from.local_end(),
            seq: Seq(error.seq).sub(came.seq).0,
            packet_bytes: u16::try_from(error.packet_bytes).unwrap_or(u16::MAX),
            mtu: to_tell(error.local.is_ipv6(), mtu, error.packet_bytes),
        };
        if let (Some(frame), Some(connection)) = (told.frame(), self.table.get(other)) {
            host.send(connection.flow_group, ToFast::Transmit(back.link.port, frame));
        }
        true
    }
}
