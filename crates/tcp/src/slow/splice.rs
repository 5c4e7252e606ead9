//! Splices that are being made: an application hands two connections over, and their segments are to be translated into each
//! other below the stack.
//!
//! Both flows first take no new payload, until nothing of them is left to do and they rest. What one peer sends from then on
//! is for the other. The flows stay installed: their addresses are taken, and their segments are steered to us.

use super::connections::{Phase, SpliceState};
use super::errno::{EAGAIN, EBUSY, EINVAL, ENOTCONN, EOPNOTSUPP, ETIMEDOUT};
use super::host::Host;
use super::segments::Arrival;
use super::translation::Translation;
use super::{SlowPath, Snapshots};
use crate::counters::Drop;
use crate::flow::{FlowId, FlowSnapshot, FourTuple, Link, Owner, PortId, flow_flags};
use crate::messages::{Held, Splicing, ToFast};
use crate::time::Micros;
use std::collections::VecDeque;
use std::net::IpAddr;

/// How long we wait for what is on its way before the application is to try again, µs.
const WAIT_US: u64 = 5000;
/// How long both take no new payload while the application passes on what is left, µs.
const HOLD_US: u64 = 1_000_000;
/// How soon a flow is asked again at first, µs.
const RETRY_US: u64 = 1000;
/// Most splices that are being made at a time, of all users and of one.
const MOST_ASKED: usize = 1024;
const MOST_OF_USER: usize = 128;
/// How long we know that a splice was given up while nobody waited for the answer, µs, and of how many.
const LATE_US: u64 = 1_000_000;
const MOST_LATE: usize = 1024;
/// Bytes of segments that are kept for a splice, and for all.
const KEPT: usize = 256 << 10;
const KEPT_FOR_ALL: usize = 16 << 20;
/// What both connections must have agreed, or neither.
const ALIKE: u64 = flow_flags::TIMESTAMPS | flow_flags::SACK | flow_flags::ECN;

/// All splices that are being made.
#[derive(Default)]
pub(super) struct Asking {
    asked: Vec<Asked>,
    /// How often flows were told to hold, for all of them.
    rounds: u32,
    /// Bytes of segments that are kept.
    kept: usize,
    /// Splices that were not at rest in time, and when that was. The application had been told to try again, and hears of it then.
    late: VecDeque<([FlowId; 2], Micros)>,
}

/// A splice that is being made.
struct Asked {
    flows: [FlowId; 2],
    /// What the flows answer counts if it is the answer to this.
    round: u32,
    resting: [bool; 2],
    /// The socket whose command it is, the command's number, and its user.
    owner: Owner,
    command: u32,
    user: u32,
    /// The application was told to pass on what is left.
    answered: bool,
    /// When both go on, if the splice has not begun.
    over_at: Micros,
    until: Micros,
    retry_at: Option<Micros>,
    retry_us: u64,
    /// Segments that came meanwhile.
    kept: Vec<(FlowId, PortId, Box<[u8]>)>,
    /// Their bytes.
    bytes: usize,
}

impl Asked {
    fn due(&self) -> Micros {
        self.retry_at.map_or(self.until, |at| at.min(self.until))
    }
    fn is_of(&self, id: FlowId) -> bool {
        self.flows.contains(&id)
    }
}

impl Asking {
    /// When they must be looked at next.
    pub(super) fn next(&self) -> Option<Micros> {
        self.asked.iter().map(Asked::due).min()
    }

    /// Remembers that these were not at rest in time.
    fn note_late(&mut self, now: Micros, flows: [FlowId; 2]) {
        if self.late.len() >= MOST_LATE {
            self.late.pop_front();
        }
        self.late.push_back((flows, now));
    }

    /// Were these not at rest in time, and the application does not know? Now it does.
    fn was_late(&mut self, now: Micros, flows: [FlowId; 2]) -> bool {
        while self.late.front().is_some_and(|(_, at)| now.since(*at) >= LATE_US) {
            self.late.pop_front();
        }
        let same = |(late, _): &([FlowId; 2], Micros)| *late == flows || *late == [flows[1], flows[0]];
        let place = self.late.iter().position(same);
        place.and_then(|place| self.late.remove(place)).is_some()
    }
}

impl SlowPath {
    /// Splices the connections of these sockets. After `Ok` the answer comes by [`Host::splice_answered`], with this number.
    pub fn splice(
        &mut self,
        now: Micros,
        owners: [Owner; 2],
        command: u32,
        snapshots: &dyn Snapshots,
        host: &mut dyn Host,
    ) -> Result<(), i32> {
        self.asking.rounds = self.asking.rounds.wrapping_add(1);
        let round = self.asking.rounds;
        let [Some(first), Some(second)] = owners.map(|owner| self.table.by_owner(owner)) else { return Err(ENOTCONN) };
        let flows = [first, second];
        if first == second {
            return Err(EINVAL);
        }
        if self.asking.was_late(now, flows) {
            return Err(ETIMEDOUT);
        }
        let (owner, until, retry_us) = (owners[0], now.after(WAIT_US), RETRY_US);
        let asked = &mut self.asking.asked;
        if let Some(asked) = asked.iter_mut().find(|asked| asked.is_of(first) || asked.is_of(second)) {
            let same = asked.flows == flows || asked.flows == [second, first];
            if !same || !asked.answered {
                return Err(EBUSY);
            }
            (asked.owner, asked.command, asked.round, asked.answered) = (owner, command, round, false);
            (asked.until, asked.retry_us) = (until.min(asked.over_at), retry_us);
        } else {
            let user = host.user(owner);
            let of_user = asked.iter().filter(|asked| asked.user == user).count();
            if asked.len() >= MOST_ASKED || of_user >= MOST_OF_USER {
                return Err(EBUSY);
            }
            self.ends(now, flows, snapshots, host)?;
            self.asking.asked.push(Asked {
                flows,
                round,
                resting: [false; 2],
                owner,
                command,
                user,
                answered: false,
                over_at: now.after(HOLD_US),
                until,
                retry_at: None,
                retry_us,
                kept: Vec::new(),
                bytes: 0,
            });
            self.note_splice(flows, SpliceState::Asked);
        }
        self.step(flows, Splicing::Hold(round), host);
        Ok(())
    }

    fn note_splice(&mut self, flows: [FlowId; 2], state: SpliceState) {
        for id in flows {
            if let Some(connection) = self.table.get_mut(id)
                && let Phase::Installed(installed) = &mut connection.phase
            {
                installed.splice = state;
            }
        }
    }

    /// Both ends, if whatever one peer sends is something that the other one understands. A flow that is not installed yet is
    /// judged when it rests.
    fn ends(
        &mut self,
        now: Micros,
        flows: [FlowId; 2],
        snapshots: &dyn Snapshots,
        host: &mut dyn Host,
    ) -> Result<[End; 2], i32> {
        let [a, b] = flows.map(|id| self.end_of(now, id, snapshots.snapshot(id), host));
        let (a, b) = (a?, b?);
        // Both ends of one connection would send each other their own segments.
        let apart = a.tuple != b.tuple.reversed();
        // Segments keep the length of their headers, and their tag.
        let same = a.tuple.local.is_ipv4() == b.tuple.local.is_ipv4() && a.link.vlan == b.link.vlan;
        let plain = same && [&a, &b].iter().all(|end| end.is_plain());
        let installed = a.snapshot.mss != 0 && b.snapshot.mss != 0;
        let fits = a.largest <= b.takes && b.largest <= a.takes;
        let alike = (a.snapshot.flags ^ b.snapshot.flags) & ALIKE == 0;
        if apart && plain && (!installed || (fits && alike)) { Ok([a, b]) } else { Err(EOPNOTSUPP) }
    }

    fn end_of(&self, now: Micros, id: FlowId, snapshot: FlowSnapshot, host: &mut dyn Host) -> Result<End, i32> {
        let Some(connection) = self.table.get(id) else { return Err(ENOTCONN) };
        let Phase::Installed(installed) = &connection.phase else { return Err(ENOTCONN) };
        if installed.removing || installed.is_spliced() {
            return Err(ENOTCONN);
        }
        if !host.may_splice(connection.owner) {
            return Err(EOPNOTSUPP);
        }
        let (tuple, link) = (connection.tuple, installed.link);
        // Its neighbour may be asked for anew just now, which would take time.
        let largest = installed.mtu.saturating_sub(installed.path.overhead());
        let stamp = ((now.0 / 1000) as u32).wrapping_add(installed.ts_offset);
        let takes = installed.path.told().unwrap_or(snapshot.mss);
        Ok(End { tuple, link, largest, takes, stamp, snapshot })
    }

    pub(super) fn step(&self, flows: [FlowId; 2], step: Splicing, host: &mut dyn Host) {
        for id in flows {
            self.step_one(id, step, host);
        }
    }

    pub(super) fn step_one(&self, id: FlowId, step: Splicing, host: &mut dyn Host) {
        let Some(connection) = self.table.get(id) else { return };
        host.send(connection.flow_group, ToFast::Splice(id, step));
    }

    /// A flow has answered.
    pub(super) fn held(&mut self, now: Micros, id: FlowId, round: u32, held: Held, host: &mut dyn Host) {
        // Of an earlier round: the flow was told to resume since.
        let is_of = |asked: &Asked| asked.is_of(id) && asked.round == round && !asked.answered;
        let Some(place) = self.asking.asked.iter().position(is_of) else { return };
        let asked = &mut self.asking.asked[place];
        match held {
            Held::Resting => {
                asked.resting[usize::from(asked.flows[1] == id)] = true;
                if asked.resting == [true; 2] {
                    asked.retry_at = Some(now);
                }
            }
            Held::Outstanding => {
                asked.retry_at = Some(now.after(asked.retry_us));
                asked.retry_us *= 2;
            }
            Held::Unread => self.pass_on_first(place, host),
            Held::Ending => self.give_up_splice(place, ENOTCONN, host),
        }
    }

    /// Has the application pass on what is left, for which both flows go on. It may try again until the time is over.
    fn pass_on_first(&mut self, place: usize, host: &mut dyn Host) {
        let asked = &mut self.asking.asked[place];
        (asked.resting, asked.retry_at) = ([false; 2], None);
        (asked.answered, asked.until) = (true, asked.over_at);
        let (flows, owner, command) = (asked.flows, asked.owner, asked.command);
        // Their answers to this round may be on their way.
        self.step(flows, Splicing::Resume, host);
        host.splice_answered(owner, command, EAGAIN);
    }

    /// Both flows go on as if nothing had been.
    fn give_up_splice(&mut self, place: usize, errno: i32, host: &mut dyn Host) {
        let asked = self.asking.asked.swap_remove(place);
        self.asking.kept -= asked.bytes;
        self.note_splice(asked.flows, SpliceState::No);
        self.step(asked.flows, Splicing::Release, host);
        for (id, port, frame) in asked.kept {
            if let Some(connection) = self.table.get(id) {
                host.send(connection.flow_group, ToFast::Inject(port, frame));
            }
        }
        if !asked.answered {
            host.splice_answered(asked.owner, asked.command, errno);
        }
    }

    /// Goes on with splices that are being made.
    pub(super) fn look_at_asked(&mut self, now: Micros, snapshots: &dyn Snapshots, host: &mut dyn Host) {
        let mut place = 0;
        while let Some(asked) = self.asking.asked.get_mut(place) {
            let due = asked.retry_at.take_if(|at| *at <= now).is_some();
            let (flows, resting, round) = (asked.flows, asked.resting, asked.round);
            if due && resting == [true; 2] {
                self.begin_splice(now, place, snapshots, host);
                continue;
            }
            if asked.over_at <= now {
                // It is not held for ever by an application that asks again and again, or by a peer that takes nothing.
                if asked.answered {
                    self.asking.note_late(now, flows);
                }
                self.give_up_splice(place, ETIMEDOUT, host);
                continue;
            }
            if asked.until <= now {
                self.pass_on_first(place, host);
            } else if due {
                for (id, _) in flows.into_iter().zip(resting).filter(|(_, resting)| !resting) {
                    self.step_one(id, Splicing::Hold(round), host);
                }
            }
            place += 1;
        }
    }

    /// Both flows rest: from now on their segments are translated.
    fn begin_splice(&mut self, now: Micros, place: usize, snapshots: &dyn Snapshots, host: &mut dyn Host) {
        let flows = self.asking.asked[place].flows;
        let ends = self.ends(now, flows, snapshots, host);
        let translations = ends.map(|[a, b]| [translation(&a, &b), translation(&b, &a)]);
        let begun = translations.and_then(|both| host.splice(&both).map(|()| both));
        let translations = match begun {
            Ok(translations) => translations,
            Err(errno) => return self.give_up_splice(place, errno, host),
        };
        let asked = self.asking.asked.swap_remove(place);
        self.asking.kept -= asked.bytes;
        self.note_splice(flows, SpliceState::Begun(flows[0]));
        self.spliced.insert(now, flows, translations);
        self.step(flows, Splicing::Begun, host);
        host.splice_answered(asked.owner, asked.command, 0);
        for (id, port, frame) in asked.kept {
            if let Some(connection) = self.table.get(id) {
                host.translate(connection.flow_group, port, frame);
            }
        }
    }

    /// A segment that a flow has not taken, as it is or is to be spliced.
    pub(super) fn keep_segment(&mut self, id: FlowId, state: SpliceState, arrival: Arrival, host: &mut dyn Host) {
        let Arrival { port, frame, flow_group, .. } = arrival;
        if let SpliceState::Begun(_) = state {
            let flow_group = self.table.get(id).map_or(flow_group, |connection| connection.flow_group);
            return host.translate(flow_group, port, frame);
        }
        let asking = &mut self.asking;
        let Some(asked) = asking.asked.iter_mut().find(|asked| asked.is_of(id)) else { return };
        if asked.bytes + frame.len() > KEPT || asking.kept + frame.len() > KEPT_FOR_ALL {
            return self.counters.drop(Drop::Held);
        }
        asking.kept += frame.len();
        asked.bytes += frame.len();
        asked.kept.push((id, port, frame));
    }

    /// Bytes of segments that are kept.
    #[cfg(test)]
    pub(super) fn kept_bytes(&self) -> usize {
        self.asking.kept
    }

    /// A flow ends. If it was to be spliced, both go on as before.
    pub(super) fn forget_splice(&mut self, id: FlowId, host: &mut dyn Host) {
        self.asking.late.retain(|(flows, _)| !flows.contains(&id));
        let is_asked =
            |phase: &Phase| matches!(phase, Phase::Installed(installed) if installed.splice == SpliceState::Asked);
        if !self.table.get(id).is_some_and(|connection| is_asked(&connection.phase)) {
            return;
        }
        if let Some(place) = self.asking.asked.iter().position(|asked| asked.is_of(id)) {
            self.give_up_splice(place, ENOTCONN, host);
        }
    }
}

/// One end of a splice.
struct End {
    tuple: FourTuple,
    link: Link,
    /// The most payload that the peer may send in one packet.
    largest: u16,
    /// The most payload in one packet that it takes. A router that finds less possible is asked anew by whoever sends then.
    takes: u16,
    /// The timestamp that we would send now.
    stamp: u32,
    snapshot: FlowSnapshot,
}

impl End {
    /// Do its addresses say where they lead?
    fn is_plain(&self) -> bool {
        let scoped = |address: IpAddr| matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
        !scoped(self.tuple.local) && !scoped(self.tuple.remote)
    }
}

/// What `from`'s peer sends becomes what `to`'s peer expects from us.
fn translation(from: &End, to: &End) -> Translation {
    let (a, b) = (&from.snapshot, &to.snapshot);
    let stamps = a.flags & flow_flags::TIMESTAMPS != 0;
    let stamp = |new: u32, old: u32| if stamps { new.wrapping_sub(old) } else { 0 };
    Translation {
        from: from.tuple,
        to: to.tuple,
        link: to.link,
        seq: b.snd_max.bytes_since(a.rcv_nxt),
        ack: b.rcv_nxt.bytes_since(a.snd_max),
        tsval: stamp(to.stamp, a.ts_recent),
        tsecr: stamp(b.ts_recent, from.stamp),
        shift: a.snd_wscale as i8 - b.rcv_wscale as i8,
        acked: a.snd_max,
    }
}
