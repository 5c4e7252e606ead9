//! The slow path's work on pairs: it makes and drops them, and reads the state of direct connections.

use crate::client::SlowClient;
use crate::direct_end::DirectEnd;
use crate::host::SlowHost;
use crate::pairs::{Pair, reset};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use towpath_ring::lines::app_flags;
use towpath_ring::pair::{Unread, release, release_all_but};
use towpath_ring::{AppLine, PairGeometry, PairRegion, Slot};
use towpath_runtime::log_throttle::LogThrottle;
use towpath_runtime::{ClientId, PairHandle};
use towpath_tcp::slow::TcpState;
use towpath_tcp::time::Micros;

/// Of pairs that cannot be made: clients decide how often it is tried.
static LINES: LogThrottle = LogThrottle::new();

impl SlowHost {
    /// Takes a slot in the pair region of these two clients for a connection, and returns its two ends. `None` = there
    /// is no room.
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
        match known {
            Some(at) if self.is_returning(at) => self.drop_pair(at),
            Some(at) => return Some(at),
            None => {}
        }
        let places = [self.free_place(a)?, self.free_place(b)?];
        let client = self.client(a)?;
        // Its user asks for the pair.
        let share = Arc::new(client.shared.take_descriptor()?);
        let geometry = PairGeometry::of(&client.shared.region.geometry());
        self.pairs.last = self.pairs.last.wrapping_add(1).max(1);
        let number = self.pairs.last;
        let (region, memfd) = PairRegion::create(geometry, number)
            .inspect_err(|error| {
                if LINES.allows() {
                    tracing::warn!(%error, "no region for two clients; the stack carries what they say");
                }
            })
            .ok()?;
        let pair = Pair {
            number,
            clients: ids,
            places,
            region,
            memfd: Arc::new(memfd),
            share,
            returning: Arc::default(),
            ends: HashMap::new(),
            free: Vec::new(),
            fresh: 0,
            idle_since: None,
        };
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

    /// Is memory of the pair being given back? A thread that waits for its clients may take for ever.
    fn is_returning(&self, at: usize) -> bool {
        let pair = self.pairs.all.get(at).and_then(Option::as_ref);
        pair.is_some_and(|pair| pair.returning.load(Ordering::Acquire))
    }

    /// A free place of a client. If there is none, a pair without connections is dropped.
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

    /// Forgets a pair without connections. Its memory is freed even where it is still mapped.
    fn drop_pair(&mut self, at: usize) {
        let Some(pair) = self.pairs.all.get_mut(at).and_then(Option::take) else { return };
        pair.give_back(|memfd, geometry| release(memfd, geometry, false));
        for client in self.clients.iter_mut().flatten() {
            for place in client.own.pairs.iter_mut().filter(|place| **place == Some(at)) {
                *place = None;
            }
        }
    }

    /// A client has ended, and its ends are gone. Its pairs keep only what the other ends still have to read.
    pub fn vacate_pairs_of(&mut self, index: u32) {
        let Some(client) = self.client(index) else { return };
        let (id, pairs) = (client.shared.id, client.own.pairs.clone());
        for pair in pairs.into_iter().flatten().filter_map(|at| self.pairs.all.get(at)?.as_ref()) {
            let Some(side) = pair.side_of(id) else { continue };
            let unread = pair.ends.iter().filter_map(|(slot, ends)| {
                let (reader, at) = ends[1 - side]?;
                let reader = self.clients.get(reader as usize)?.as_ref()?;
                let from = reader.shared.region.app(at).rx_head.load(Ordering::Acquire);
                let line = &pair.region.lines(*slot, side).line;
                let held = line.held_ms.load(Ordering::Acquire) != 0;
                let [held_to, to] = [&line.held_tail, &line.tx_tail].map(|word| word.load(Ordering::Acquire));
                // Held bytes count as sent when their sender has ended.
                let to = if held && held_to.wrapping_sub(to).cast_signed() > 0 { held_to } else { to };
                Some(Unread { slot: *slot, side, from, len: to.wrapping_sub(from) })
            });
            let unread: Vec<Unread> = unread.collect();
            pair.give_back(move |memfd, geometry| release_all_but(memfd, geometry, &unread));
        }
    }

    /// A client is forgotten, and all its ends are gone. The other ends may still have something to read.
    pub fn drop_pairs_of(&mut self, id: ClientId) {
        let gone = |pair: &Pair| pair.ends.is_empty() && pair.side_of(id).is_some();
        for at in 0..self.pairs.all.len() {
            if self.pairs.all[at].as_ref().is_some_and(gone) {
                self.drop_pair(at);
            }
        }
    }

    /// Gives back the memory of pairs that have had no connection for a while: the rings, or all if one of the clients
    /// is gone.
    pub fn expire_pairs(&mut self, now: Micros) {
        for at in self.pairs.idle(now) {
            let is_here = |id: &ClientId| self.clients.iter().flatten().any(|client| client.shared.id == *id);
            let both = self.pairs.all[at].as_ref().is_some_and(|pair| pair.clients.iter().all(is_here));
            if both { self.pairs.give_back_rings(at) } else { self.drop_pair(at) }
        }
    }

    /// The pair in one of a client's places, for the client to map.
    pub fn pair_handle(&mut self, index: u32, place: u32, number: u32) -> Option<PairHandle> {
        let client = self.client(index)?;
        let (id, at) = (client.shared.id, *client.own.pairs.get(place as usize)?);
        let pair = self.pairs.all.get(at?)?.as_ref().filter(|pair| pair.number == number)?;
        let peer = pair.clients[1 - pair.side_of(id)?];
        Some(PairHandle { memfd: pair.memfd.try_clone().ok()?, geometry: pair.region.geometry(), peer })
    }
}

/// The state of a direct connection for a listing.
pub struct DirectView {
    /// Bytes under way to the other side, and from it.
    pub queues: (u32, u32),
    /// Its state.
    pub state: TcpState,
}

impl SlowHost {
    /// The state at one end, as far as the two applications' words keep the contract.
    pub fn direct_view(&self, client: &SlowClient, raw: u32, end: &DirectEnd) -> Option<DirectView> {
        let own = client.shared.region.app(client.shared.region.slot(raw)?);
        let pair = self.pairs.pair(end)?;
        let peer = &pair.region.lines(end.slot, 1 - end.side).line;
        let most = pair.region.geometry().ring_bytes;
        let unread = peer.tx_tail.load(Ordering::Acquire).wrapping_sub(own.rx_head.load(Ordering::Acquire));
        let shut = |line: &AppLine| line.flags.load(Ordering::Acquire) & (app_flags::SHUT_WR | app_flags::CLOSED) != 0;
        let state = match (shut(own), shut(peer)) {
            (false, false) => TcpState::Established,
            (true, false) => TcpState::FinWait2,
            (false, true) => TcpState::CloseWait,
            (true, true) => TcpState::Closed,
        };
        // Sent bytes are in the other side's ring at once, so nothing is unacknowledged.
        Some(DirectView { queues: (0, if unread > most { 0 } else { unread }), state })
    }
}
