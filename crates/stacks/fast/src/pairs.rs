//! Pair regions, their clients, and their connections.

use crate::direct_end::DirectEnd;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use towpath_ring::pair::{PairLines, release};
use towpath_ring::wake::futex_wake;
use towpath_ring::{AppLine, OptionsLine, PairGeometry, PairRegion, Slot};
use towpath_runtime::clients::DescriptorShare;
use towpath_runtime::{ClientId, memory_return};
use towpath_tcp::time::Micros;

/// How long the rings of a pair without connections keep their memory, µs. A program that opens one connection after
/// the other does not fault it in each time.
const IDLE_US: u64 = 1_000_000;

/// A region that two clients share, or that one client shares with itself.
pub struct Pair {
    pub number: u32,
    pub clients: [ClientId; 2],
    pub places: [u32; 2],
    pub region: PairRegion,
    pub memfd: Arc<OwnedFd>,
    /// The memfd's part of a user's share of descriptors.
    pub share: Arc<DescriptorShare>,
    /// Its memory is being given back. It takes no connection meanwhile.
    pub returning: Arc<AtomicBool>,
    /// Client index and slot of both ends of each connection.
    pub ends: HashMap<u32, [Option<(u32, Slot)>; 2]>,
    pub free: Vec<u32>,
    pub fresh: u32,
    /// Since when there has been no connection. `None` again when its memory has been given back.
    pub idle_since: Option<Micros>,
}

impl Pair {
    pub fn side_of(&self, client: ClientId) -> Option<usize> {
        self.clients.iter().position(|c| *c == client)
    }

    /// Gives memory back by a thread that may wait: both clients have the memfd. It counts to its user until then.
    pub fn give_back(&self, how: impl FnOnce(BorrowedFd<'_>, PairGeometry) + Send + 'static) {
        let (memfd, share, geometry) = (Arc::clone(&self.memfd), Arc::clone(&self.share), self.region.geometry());
        memory_return::later(move || {
            how(memfd.as_fd(), geometry);
            drop((memfd, share));
        });
    }
}

/// All pairs.
#[derive(Default)]
pub struct Pairs {
    pub all: Vec<Option<Pair>>,
    pub last: u32,
    /// Are connections within this host to be joined without the stack?
    pub enabled: bool,
}

/// Makes a side's line ready for a new connection. Its event word goes on.
pub fn reset(lines: &PairLines) {
    let line = &lines.line;
    for word in [&line.tx_tail, &line.rx_head, &line.flags, &line.want, &line.sleepers, &line.urgent] {
        word.store(0, Ordering::Relaxed);
    }
    for word in [&line.urgent_doorbell, &line.held_tail, &line.held_ms] {
        word.store(0, Ordering::Relaxed);
    }
    line.ctx_mask.store(0, Ordering::Relaxed);
    line.exclusive.store(0, Ordering::Relaxed);
    for word in [&lines.send_withheld, &lines.receive_withheld] {
        word.store(0, Ordering::Relaxed);
    }
}

impl Pairs {
    /// The next time that memory is to be given back.
    pub fn next_deadline(&self) -> Option<Micros> {
        self.all.iter().flatten().filter_map(|pair| pair.idle_since).min().map(|since| since.after(IDLE_US))
    }

    /// The pairs that have had no connection for [`IDLE_US`], and still have their memory.
    pub fn idle(&self, now: Micros) -> Vec<usize> {
        let idle = |pair: &Pair| pair.idle_since.is_some_and(|since| now >= since.after(IDLE_US));
        let pairs = self.all.iter().enumerate();
        pairs.filter(|(_, pair)| pair.as_ref().is_some_and(idle)).map(|(at, _)| at).collect()
    }

    /// Gives back the rings of a pair without connections.
    pub fn give_back_rings(&mut self, at: usize) {
        if let Some(Some(pair)) = self.all.get_mut(at) {
            pair.idle_since = None;
            pair.returning.store(true, Ordering::Relaxed);
            let returning = Arc::clone(&pair.returning);
            pair.give_back(move |memfd, geometry| {
                release(memfd, geometry, true);
                returning.store(false, Ordering::Release);
            });
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

    /// Sets the bytes of the rings that an end's buffer options keep it from using, until its application sets them
    /// itself.
    pub fn withhold(&self, end: &DirectEnd, options: &OptionsLine) {
        let Some(pair) = self.pair(end) else { return };
        let (lines, geometry) = (pair.region.lines(end.slot, end.side), pair.region.geometry());
        let (_, options) = options.read();
        lines.send_withheld.store(geometry.send_withheld(options.send_buffer), Ordering::Relaxed);
        lines.receive_withheld.store(geometry.receive_withheld(options.receive_buffer), Ordering::Relaxed);
    }

    /// Wakes threads that sleep on this end's event word.
    pub fn wake(&self, end: &DirectEnd) {
        let Some(pair) = self.pair(end) else { return };
        let word = &pair.region.lines(end.slot, end.side).event_seq;
        fence(Ordering::SeqCst);
        word.fetch_add(1, Ordering::SeqCst);
        futex_wake(word);
    }

    /// Forgets an end. The slot is free when both ends are forgotten.
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

    pub fn pair(&self, end: &DirectEnd) -> Option<&Pair> {
        self.all.get(end.pair)?.as_ref().filter(|pair| pair.number == end.number)
    }
}
