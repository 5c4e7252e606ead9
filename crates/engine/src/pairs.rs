//! Pair regions: which two clients share one, and which connections are in it.

use crate::client::SlowClient;
use crate::host::SlowHost;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use towpath_ring::lines::{app_flags, pair_slot};
use towpath_ring::pair::{PLACES, PairLines, release};
use towpath_ring::wake::futex_wake;
use towpath_ring::{AppLine, OptionsLine, PairGeometry, PairRegion, Slot};
use towpath_stack::{ClientId, PairHandle};
use towpath_tcp::slow::State;
use towpath_tcp::time::Micros;

/// How long the rings of a pair without connections keep their memory, µs: programs that open one connection after the other do not
/// have to fault it in each time.
const IDLE_US: u64 = 1_000_000;

/// One end of a direct connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectEnd {
    /// Index of the pair.
    pub pair: usize,
    /// Number of the pair.
    pub number: u32,
    /// Its slot in the pair's region.
    pub slot: u32,
    /// Which side it is.
    pub side: usize,
    /// The pair's place among the client's.
    pub place: u32,
}

impl DirectEnd {
    /// `StackLine::pair_slot`.
    pub fn word(&self) -> u32 {
        pair_slot::of(self.slot, self.side as u32, self.place)
    }
}

/// A region that two clients share (or one with itself).
struct Pair {
    number: u32,
    clients: [ClientId; 2],
    places: [u32; 2],
    region: PairRegion,
    memfd: OwnedFd,
    /// Client index and slot of both ends of each connection.
    ends: HashMap<u32, [Option<(u32, Slot)>; 2]>,
    free: Vec<u32>,
    fresh: u32,
    /// Since when there is no connection, until its memory is given back.
    idle_since: Option<Micros>,
}

impl Pair {
    fn side_of(&self, client: ClientId) -> Option<usize> {
        self.clients.iter().position(|c| *c == client)
    }
}

/// All of them.
#[derive(Default)]
pub struct Pairs {
    all: Vec<Option<Pair>>,
    last: u32,
    /// Are connections within this host to be joined without the stack?
    pub enabled: bool,
}

/// Makes a side's line ready for a new connection. Its event word goes on.
fn reset(lines: &PairLines) {
    let line = &lines.line;
    for word in [&line.tx_tail, &line.rx_head, &line.flags, &line.want, &line.sleepers, &line.urgent] {
        word.store(0, Ordering::Relaxed);
    }
    for word in [&line.urgent_bell, &line.held_tail, &line.held_ms] {
        word.store(0, Ordering::Relaxed);
    }
    line.ctx_mask.store(0, Ordering::Relaxed);
    line.exclusive.store(0, Ordering::Relaxed);
    for word in [&lines.send_withheld, &lines.receive_withheld] {
        word.store(0, Ordering::Relaxed);
    }
}

impl Pairs {
    /// When the next memory is to be given back.
    pub fn next_deadline(&self) -> Option<Micros> {
        self.all.iter().flatten().filter_map(|pair| pair.idle_since).min().map(|since| since.after(IDLE_US))
    }

    /// Gives back the rings of pairs that have had no connection for long.
    pub fn expire(&mut self, now: Micros) {
        for pair in self.all.iter_mut().flatten() {
            if pair.idle_since.is_some_and(|since| now >= since.after(IDLE_US)) {
                release(pair.memfd.as_fd(), pair.region.geometry(), true);
                pair.idle_since = None;
            }
        }
    }

    /// Client index and slot of the other end, if its application has not closed it yet.
    pub fn other(&self, end: &DirectEnd) -> Option<(u32, Slot)> {
        self.pair(end)?.ends.get(&end.slot)?[1 - end.side]
    }

    /// The line that this end's application writes for the other.
    pub fn line(&self, end: &DirectEnd) -> Option<&AppLine> {
        Some(&self.pair(end)?.region.lines(end.slot, end.side).line)
    }

    /// What the options of an end's socket keep of its rings from being used, until its application says so itself.
    pub fn withhold(&self, end: &DirectEnd, options: &OptionsLine) {
        let Some(pair) = self.pair(end) else { return };
        let (lines, geometry) = (pair.region.lines(end.slot, end.side), pair.region.geometry());
        let (_, options) = options.read();
        lines.send_withheld.store(geometry.send_withheld(options.send_buffer), Ordering::Relaxed);
        lines.receive_withheld.store(geometry.receive_withheld(options.receive_buffer), Ordering::Relaxed);
    }

    /// Wakes who sleeps on this end's event word.
    pub fn wake(&self, end: &DirectEnd) {
        let Some(pair) = self.pair(end) else { return };
        let word = &pair.region.lines(end.slot, end.side).event_seq;
        fence(Ordering::SeqCst);
        word.fetch_add(1, Ordering::SeqCst);
        futex_wake(word);
    }

    /// Forgets an end; with the other its slot is free.
    pub fn part(&mut self, end: &DirectEnd, now: Micros) {
        let Some(Some(pair)) =
            self.all.get_mut(end.pair).filter(|p| p.as_ref().is_some_and(|p| p.number == end.number))
        else {
            return;
        };
        let Some(ends) = pair.ends.get_mut(&end.slot) else { return };
        ends[end.side] = None;
        if *ends == [None, None] {
            pair.ends.remove(&end.slot);
            pair.free.push(end.slot);
            pair.idle_since = pair.ends.is_empty().then_some(now);
        }
    }

    fn pair(&self, end: &DirectEnd) -> Option<&Pair> {
        self.all.get(end.pair)?.as_ref().filter(|pair| pair.number == end.number)
    }
}

impl SlowHost {
    /// A slot in the region of these two clients, for a connection of theirs: its two ends. `None` = there is no room.
    pub fn pair_up(&mut self, ends: [(u32, Slot); 2]) -> Option<[DirectEnd; 2]> {
        let at = self.pair_between(ends[0].0, ends[1].0)?;
        let first = self.client(ends[0].0)?.shared.id;
        let pair = self.pairs.all.get_mut(at)?.as_mut()?;
        let slot = match pair.free.pop() {
            Some(slot) => slot,
            None if pair.fresh < pair.region.geometry().slots => {
                pair.fresh += 1;
                pair.fresh - 1
            }
            None => return None,
        };
        let side = pair.side_of(first)?;
        pair.idle_since = None;
        for side in [0, 1] {
            reset(pair.region.lines(slot, side));
        }
        let mut sides = [None; 2];
        (sides[side], sides[1 - side]) = (Some(ends[0]), Some(ends[1]));
        pair.ends.insert(slot, sides);
        let number = pair.number;
        Some([side, 1 - side].map(|side| DirectEnd { pair: at, number, slot, side, place: pair.places[side] }))
    }

    /// The pair of two clients, made if there is none yet.
    fn pair_between(&mut self, a: u32, b: u32) -> Option<usize> {
        let ids = [self.client(a)?.shared.id, self.client(b)?.shared.id];
        let known = self.clients.get(a as usize)?.as_ref()?.own.pairs.iter().flatten().copied().find(|at| {
            let pair = self.pairs.all.get(*at).and_then(Option::as_ref);
            pair.is_some_and(|pair| pair.clients == ids || pair.clients == [ids[1], ids[0]])
        });
        if known.is_some() {
            return known;
        }
        let places = [self.free_place(a)?, self.free_place(b)?];
        let geometry = PairGeometry::of(&self.client(a)?.shared.region.geometry());
        self.pairs.last = self.pairs.last.wrapping_add(1).max(1);
        let number = self.pairs.last;
        let (region, memfd) = PairRegion::create(geometry, number)
            .inspect_err(|error| tracing::warn!(%error, "no region for two clients; the stack carries what they say"))
            .ok()?;
        let (ends, free) = (HashMap::new(), Vec::new());
        let pair = Pair { number, clients: ids, places, region, memfd, ends, free, fresh: 0, idle_since: None };
        let at = self.pairs.all.iter().position(Option::is_none).unwrap_or(self.pairs.all.len());
        if at == self.pairs.all.len() {
            self.pairs.all.push(None);
        }
        self.pairs.all[at] = Some(pair);
        for (index, place) in [(a, places[0]), (b, places[1])] {
            self.client(index)?.own.pairs[place as usize] = Some(at);
        }
        Some(at)
    }

    /// A place of a client that has no pair; where all have, one whose pair has no connections loses it.
    fn free_place(&mut self, index: u32) -> Option<u32> {
        let places = &self.client(index)?.own.pairs;
        if let Some(place) = places.iter().position(Option::is_none) {
            return Some(place as u32);
        }
        let idle = |at: &usize| self.pairs.all.get(*at).and_then(Option::as_ref).is_none_or(|p| p.ends.is_empty());
        let at = self.clients.get(index as usize)?.as_ref()?.own.pairs.iter().flatten().copied().find(|at| idle(at))?;
        self.drop_pair(at);
        self.client(index)?.own.pairs.iter().position(Option::is_none).map(|place| place as u32)
    }

    /// Forgets a pair without connections; its memory goes, wherever it is still mapped.
    fn drop_pair(&mut self, at: usize) {
        let Some(pair) = self.pairs.all.get_mut(at).and_then(Option::take) else { return };
        release(pair.memfd.as_fd(), pair.region.geometry(), false);
        for client in self.clients.iter_mut().flatten() {
            for place in client.own.pairs.iter_mut().filter(|place| **place == Some(at)) {
                *place = None;
            }
        }
    }

    /// A client is forgotten; all its ends are gone. Those of others may still have something to read.
    pub fn drop_pairs_of(&mut self, id: ClientId) {
        let gone = |pair: &Pair| pair.ends.is_empty() && pair.side_of(id).is_some();
        for at in 0..self.pairs.all.len() {
            if self.pairs.all[at].as_ref().is_some_and(gone) {
                self.drop_pair(at);
            }
        }
    }

    /// What a client needs to use the pair in one of its places.
    pub fn pair_handle(&mut self, index: u32, place: u32, number: u32) -> Option<PairHandle> {
        let client = self.client(index)?;
        let (id, at) = (client.shared.id, *client.own.pairs.get(place as usize)?);
        let pair = self.pairs.all.get(at?)?.as_ref().filter(|pair| pair.number == number)?;
        let peer = pair.clients[1 - pair.side_of(id)?];
        Some(PairHandle { memfd: pair.memfd.try_clone().ok()?, geometry: pair.region.geometry(), peer })
    }
}

/// What a listing shows of a direct connection.
pub struct DirectView {
    /// Bytes under way to the other side, and from it.
    pub queues: (u32, u32),
    /// Its state.
    pub state: State,
}

impl SlowHost {
    /// How things stand at one end, as far as the two applications' words can be believed.
    pub fn direct_view(&self, client: &SlowClient, raw: u32, end: &DirectEnd) -> Option<DirectView> {
        let own = client.shared.region.app(client.shared.region.slot(raw)?);
        let pair = self.pairs.pair(end)?;
        let peer = &pair.region.lines(end.slot, 1 - end.side).line;
        let most = pair.region.geometry().ring_bytes;
        let unread = peer.tx_tail.load(Ordering::Acquire).wrapping_sub(own.rx_head.load(Ordering::Acquire));
        let shut = |line: &AppLine| line.flags.load(Ordering::Acquire) & (app_flags::SHUT_WR | app_flags::CLOSED) != 0;
        let state = match (shut(own), shut(peer)) {
            (false, false) => State::Established,
            (true, false) => State::FinWait2,
            (false, true) => State::CloseWait,
            (true, true) => State::Closed,
        };
        // What has been sent is in the other side's hands: nothing is unacknowledged.
        Some(DirectView { queues: (0, if unread > most { 0 } else { unread }), state })
    }
}

/// A client's places without pairs.
pub fn places() -> Vec<Option<usize>> {
    vec![None; PLACES]
}
