//! What the program's calls of `splice` have taught, and what it is owed. Positions and times come from the caller.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A socket: the number of its slot, and its generation.
pub type Key = (u32, u32);
/// A pipe: its device and inode.
pub type Pipe = (u64, u64);

/// Events that tell the program of bytes.
const READABLE: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
/// A call for so many bytes looks at none of them. Proxies that look ask for what is left of a message.
pub const ALL: usize = 1 << 30;
/// So many bytes have moved before a pair is worth it.
const WORTH: u64 = 64 << 10;
/// For so long the stack holds the peers back after the first question of an attempt.
const HELD: Duration = Duration::from_secs(1);
/// Attempts for a pair, and the pause after the first one. Each pause is four times the one before.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_secs(1);
/// The first question of an attempt is repeated after this time, then after twice the time, up to the longest.
const AGAIN: Duration = Duration::from_millis(1);
const AGAIN_AT_MOST: Duration = Duration::from_millis(64);
/// How often a socket is called readable so that the program shows how it reads from it, and the pause between.
const PROBES: u32 = 3;
const PROBE_PAUSE: Duration = Duration::from_millis(500);
/// For so long a nudge makes a socket readable. The program may not watch it, or only for room.
const NUDGED: Duration = Duration::from_secs(1);
/// While a nudge is due and not seen, waits look again after this time.
const LOOK: Duration = Duration::from_millis(10);
/// A call that finds the stack being asked about its socket is to come again after this time.
const ASKED: Duration = Duration::from_millis(5);
/// After this time the stack is asked again if it had too many of such questions.
const BUSY: Duration = Duration::from_secs(1);
/// Most pipes with bytes at a time.
const MOST_PIPES: usize = 4096;

/// An attempt to hand a pair over.
#[derive(Clone, Copy)]
struct Attempt {
    begun: Instant,
    number: u32,
    again: Duration,
}

/// A socket that bytes have been spliced from or to.
#[derive(Default)]
struct Source {
    /// Where its bytes have gone, and whose bytes have come to it.
    to: Option<Key>,
    from: Option<Key>,
    /// Bytes that have moved to pipes, and those that are there.
    moved: u64,
    in_pipes: u64,
    /// The receive head after the last call that asked for all.
    asked_at: Option<u32>,
    /// The program does something else with it than passing all on, or the stack has refused.
    never: bool,
    /// Calls under way that may move its bytes to pipes. Other threads make them.
    calls: u32,
    /// The stack is being asked.
    asking: bool,
    attempt: Option<Attempt>,
    /// Until then the stack is not asked.
    busy: Option<Instant>,
    probes: u32,
    probed: Option<Instant>,
    /// When it is called readable although it is not, so that the program calls.
    nudge: Option<Instant>,
    /// It is handed over with this one.
    partner: Option<Key>,
    /// How many bytes of those that have passed the program has been told by `splice`, and by epoll.
    told: u64,
    shown: u64,
}

/// What is in a pipe.
struct Contents {
    source: Key,
    /// Bytes that are there.
    bytes: u64,
    /// Bytes that the program believes to be there before those. They have passed already.
    owed: u64,
}

/// All of it.
pub struct Learned {
    sources: BTreeMap<Key, Source>,
    pipes: BTreeMap<Pipe, Contents>,
    /// Sockets with a nudge.
    nudges: Vec<Key>,
}

/// What a call is to do before it moves bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Plan {
    /// Nothing. The call is under way until [`Learned::moved_in`].
    Move,
    /// Ask the stack to take this socket and that one over.
    Ask(Key),
    /// Look at this socket in the epoll instances: it has a nudge. The call is under way, too.
    Nudge(Key),
    /// Another thread asks the stack about this socket, so nothing is to move.
    Wait,
    /// It is handed over.
    Owe,
}

/// What a call finds in a pipe.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// Bytes, or nothing.
    Bytes,
    /// So many bytes have passed already.
    Owed(usize),
    /// They have passed to another socket than this one.
    Elsewhere,
}

impl Learned {
    /// Nothing.
    pub const fn new() -> Self {
        Self { sources: BTreeMap::new(), pipes: BTreeMap::new(), nudges: Vec::new() }
    }

    /// A call of `splice` asks `me` for `len` bytes. `head`: how far it has been read, and likewise other sockets;
    /// `is_empty`: the pipe.
    pub fn plan(
        &mut self,
        (me, head): (Key, u32),
        pipe: Pipe,
        (len, is_empty): (usize, bool),
        head_of: impl FnOnce(Key) -> Option<u32>,
        now: Instant,
    ) -> Plan {
        let plan = self.planned((me, head), pipe, (len, is_empty), head_of, now);
        if matches!(plan, Plan::Move | Plan::Nudge(_)) {
            self.change(me, |source| source.calls += 1);
        }
        plan
    }

    fn planned(
        &mut self,
        (me, head): (Key, u32),
        pipe: Pipe,
        (len, is_empty): (usize, bool),
        head_of: impl FnOnce(Key) -> Option<u32>,
        now: Instant,
    ) -> Plan {
        let there = self.pipes.get(&pipe).filter(|contents| contents.source == me).map_or(0, |contents| contents.bytes);
        let source = self.sources.entry(me).or_default();
        if source.partner.is_some() {
            return Plan::Owe;
        }
        if source.asking {
            return Plan::Wait;
        }
        if len as u64 + there < ALL as u64 {
            source.never = true;
        }
        let is_steady = source.asked_at.is_none_or(|at| at == head);
        let Some(other) = source.to.or(source.from).filter(|_| is_empty && is_steady && source.is_open()) else {
            return Plan::Move;
        };
        let (moved, due) = (source.moved, source.is_due(now));
        let Some(theirs) = self.sources.get_mut(&other).filter(|theirs| theirs.is_open()) else { return Plan::Move };
        let alone = [theirs.to, theirs.from].into_iter().flatten().all(|key| key == me);
        if !alone || moved + theirs.moved < WORTH || !due || !theirs.is_due(now) {
            return Plan::Move;
        }
        if theirs.asked_at.is_none() || theirs.asked_at != head_of(other) {
            // How the program reads from it will be seen at the next call. So there is to be one.
            if theirs.probes == PROBES || theirs.probed.is_some_and(|at| now < at + PROBE_PAUSE) {
                return Plan::Move;
            }
            (theirs.probes, theirs.probed) = (theirs.probes + 1, Some(now));
            self.nudge(other, now);
            return Plan::Nudge(other);
        }
        [me, other].iter().for_each(|key| self.change(*key, |source| source.asking = true));
        Plan::Ask(other)
    }

    /// The stack has not taken `me` over: the call that has asked is under way now. False: nothing is to move, see [`Plan::Wait`].
    pub fn begin(&mut self, me: Key) -> bool {
        // Other threads may have been faster since.
        let Some(source) = self.sources.get_mut(&me) else { return true };
        let may = !source.asking && source.partner.is_none();
        source.calls += u32::from(may);
        may
    }

    /// A call for `me` has been told to come again: a nudge has it come.
    pub fn wait(&mut self, me: Key, now: Instant) {
        self.nudge(me, now + ASKED);
    }

    /// The stack has too many questions. That says nothing of these two, so it is no attempt.
    pub fn busy(&mut self, me: Key, other: Key, now: Instant) {
        for key in [me, other] {
            self.change(key, |source| (source.asking, source.busy) = (false, Some(now + BUSY)));
        }
    }

    /// The stack cannot take them over yet: the next question comes soon, or in a while. True: `me` has a nudge for it.
    pub fn not_yet(&mut self, me: Key, other: Key, now: Instant) -> bool {
        let last = self.sources.get(&me).and_then(|source| source.attempt);
        let mut attempt = last.unwrap_or(Attempt { begun: now, number: 0, again: AGAIN });
        if last.is_none_or(|last| now >= last.begun + HELD) {
            attempt = Attempt { begun: now, number: attempt.number + 1, again: AGAIN };
        }
        let is_last = attempt.number > ATTEMPTS;
        let after = attempt.again;
        attempt.again = (after * 2).min(AGAIN_AT_MOST);
        for key in [me, other] {
            self.change(key, |source| {
                (source.asking, source.attempt) = (false, Some(attempt));
                source.never |= is_last;
            });
        }
        if !is_last {
            self.nudge(me, now + after);
        }
        !is_last
    }

    /// Is an attempt for it under way, so that the stack holds the peers back?
    pub fn is_held(&self, me: Key, now: Instant) -> bool {
        let attempt = self.sources.get(&me).and_then(|source| source.attempt);
        attempt.is_some_and(|attempt| now < attempt.begun + HELD)
    }

    /// The stack does not take them over.
    pub fn refused(&mut self, me: Key, other: Key) {
        for key in [me, other] {
            self.change(key, |source| (source.asking, source.never) = (false, true));
        }
    }

    /// The stack has taken them over.
    pub fn handed_over(&mut self, me: Key, other: Key) {
        for (key, partner) in [(me, other), (other, me)] {
            self.nudges.retain(|nudged| *nudged != key);
            self.change(key, |source| *source = Source { partner: Some(partner), ..Source::default() });
        }
    }

    /// Is it clear that it is not handed over?
    pub fn stays(&self, me: Key) -> bool {
        self.sources.get(&me).is_some_and(|source| source.never)
    }

    /// How many pipes have something.
    pub fn pipes(&self) -> usize {
        self.pipes.len()
    }

    /// Its partner, if it is handed over.
    pub fn partner(&self, me: Key) -> Option<Key> {
        self.sources.get(&me)?.partner
    }

    /// A call has moved so many bytes of `me` to a pipe. `heads`: how far it was and is read.
    pub fn moved_in(&mut self, me: Key, pipe: Pipe, heads: [u32; 2], moved: usize) {
        // It may have been closed meanwhile.
        let Some(source) = self.sources.get_mut(&me) else { return };
        source.calls = source.calls.saturating_sub(1);
        // Somebody else reads, too.
        source.never |= heads[1].wrapping_sub(heads[0]) as usize != moved;
        source.asked_at = Some(heads[1]);
        source.moved += moved as u64;
        source.in_pipes += moved as u64;
        if moved == 0 {
            return;
        }
        if self.pipes.len() >= MOST_PIPES && !self.pipes.contains_key(&pipe) {
            source.never = true;
            return;
        }
        let contents = self.pipes.entry(pipe).or_insert(Contents { source: me, bytes: 0, owed: 0 });
        contents.bytes += moved as u64;
        if contents.source != me {
            let theirs = contents.source;
            [me, theirs].iter().for_each(|key| self.change(*key, |source| source.never = true));
        }
    }

    /// What is in a pipe for this socket? Of owed bytes at most `len` are taken.
    pub fn taken(&mut self, pipe: Pipe, to: Key, len: usize) -> Found {
        let Some(contents) = self.pipes.get_mut(&pipe).filter(|contents| contents.owed > 0) else {
            return Found::Bytes;
        };
        if self.sources.get(&contents.source).and_then(|source| source.partner) != Some(to) {
            return Found::Elsewhere;
        }
        let count = contents.owed.min(len as u64);
        contents.owed -= count;
        self.forget_if_empty(pipe);
        Found::Owed(count as usize)
    }

    /// So many bytes have moved from a pipe to this socket. True: it is known here from now on, until it is closed.
    pub fn moved_out(&mut self, pipe: Pipe, to: Key, moved: usize) -> bool {
        let Some(contents) = self.pipes.get_mut(&pipe) else { return false };
        let (source, count) = (contents.source, contents.bytes.min(moved as u64));
        // More than is known: somebody else writes to the pipe.
        let strange = contents.bytes < moved as u64;
        contents.bytes -= count;
        self.forget_if_empty(pipe);
        self.change(source, |source| {
            source.in_pipes = source.in_pipes.saturating_sub(count);
            source.never |= strange || *source.to.get_or_insert(to) != to;
        });
        let target = self.sources.entry(to).or_default();
        target.never |= *target.from.get_or_insert(source) != source;
        true
    }

    /// So many bytes have passed from `me`'s peer. The pipe now owes those of which the program has not been told, at most
    /// `len`. Returns how many.
    pub fn owe(&mut self, me: Key, pipe: Pipe, passed: u64, len: usize) -> usize {
        let Some(source) = self.sources.get_mut(&me) else { return 0 };
        let count = passed.saturating_sub(source.told).min(len as u64);
        let has_room = self.pipes.len() < MOST_PIPES || self.pipes.contains_key(&pipe);
        if count == 0 || !has_room || self.pipes.get(&pipe).is_some_and(|contents| contents.source != me) {
            return 0;
        }
        let contents = self.pipes.entry(pipe).or_insert(Contents { source: me, bytes: 0, owed: 0 });
        let count = count.min((ALL as u64).saturating_sub(contents.owed));
        contents.owed += count;
        source.told += count;
        // What this call has left is told by the next one.
        source.shown = if source.told < passed { source.told } else { source.shown.max(source.told) };
        count as usize
    }

    /// Is it called readable, although it has no bytes?
    pub fn is_readable(&self, me: Key, passed: impl FnOnce() -> u64, now: Instant) -> bool {
        let Some(source) = self.sources.get(&me) else { return false };
        match source.partner {
            Some(_) => passed() > source.shown,
            None => source.nudge.is_some_and(|at| at <= now && now < at + NUDGED),
        }
    }

    /// The program has been told of these events of it.
    pub fn shown(&mut self, me: Key, events: u32, passed: impl FnOnce() -> u64, now: Instant) {
        if events & READABLE == 0 {
            return;
        }
        let Some(source) = self.sources.get_mut(&me) else { return };
        if source.partner.is_some() {
            source.shown = passed();
        } else if source.nudge.is_some_and(|at| at <= now) {
            source.nudge = None;
            self.nudges.retain(|key| *key != me);
        }
    }

    /// Has it a nudge that is not due yet?
    pub fn waits(&self, me: Key, now: Instant) -> bool {
        self.sources.get(&me).and_then(|source| source.nudge).is_some_and(|at| at > now)
    }

    /// When a wait is to look for nudges. A nudge that nobody sees ends.
    pub fn next(&mut self, now: Instant) -> Option<Instant> {
        let Self { sources, nudges, .. } = self;
        let mut next = None;
        nudges.retain(|key| {
            let Some(source) = sources.get_mut(key) else { return false };
            source.nudge = source.nudge.filter(|at| now < *at + NUDGED);
            let Some(at) = source.nudge else { return false };
            // It may have become due after the last look.
            let look = if at > now { at } else { now + LOOK };
            next = Some(next.map_or(look, |next: Instant| next.min(look)));
            true
        });
        next
    }

    /// How many sockets have a nudge.
    pub fn nudges(&self) -> usize {
        self.nudges.len()
    }

    /// The socket is closed. What is in pipes of it is the program's.
    pub fn closed(&mut self, me: Key) {
        self.sources.remove(&me);
        self.nudges.retain(|key| *key != me);
        self.pipes.retain(|_, contents| contents.source != me);
    }

    fn nudge(&mut self, key: Key, at: Instant) {
        self.change(key, |source| source.nudge = Some(at));
        if !self.nudges.contains(&key) {
            self.nudges.push(key);
        }
    }

    fn change(&mut self, key: Key, change: impl FnOnce(&mut Source)) {
        if let Some(source) = self.sources.get_mut(&key) {
            change(source);
        }
    }

    fn forget_if_empty(&mut self, pipe: Pipe) {
        if self.pipes.get(&pipe).is_some_and(|contents| contents.bytes == 0 && contents.owed == 0) {
            self.pipes.remove(&pipe);
        }
    }
}

impl Source {
    /// May it be handed over, as far as is known, and is nothing of it on its way?
    fn is_open(&self) -> bool {
        let one = self.to.is_none() || self.from.is_none() || self.to == self.from;
        one && !self.never && !self.asking && self.calls == 0 && self.in_pipes == 0 && self.partner.is_none()
    }

    /// Is it time to ask?
    fn is_due(&self, now: Instant) -> bool {
        let is_busy = self.busy.is_some_and(|until| now < until);
        let is_due = self.attempt.is_none_or(|Attempt { begun, number, .. }| {
            now < begun + HELD || now >= begun + HELD + PAUSE * 4u32.pow(number.saturating_sub(1).min(8))
        });
        is_due && !is_busy
    }
}

#[cfg(test)]
mod tests;
