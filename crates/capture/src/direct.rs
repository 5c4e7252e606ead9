//! Watches direct connections. Nobody tells of their bytes: a watcher looks at both sides' words, and copies what has
//! come since it last looked. So the two programs do nothing more than without a capture. A [`Sink`] takes the frames that are
//! made of it.
//!
//! A writer may use the place of bytes that the reader has taken. Bytes that nobody has taken are shown at once. Others
//! wait for the writer's next step, because a write begun before the copy ends with it. They are shown if that write
//! cannot have reached them, and counted as dropped if it can. A writer that takes no step for [`REST`] is believed
//! not to be writing. The programs' words only choose which bytes are shown: all are payload.

use crate::conversation::{Conversation, MOST_BYTES};
use crate::record::{DIRECT, Name};
use crate::tap::{Tap, now_ns};
use rustix::fd::BorrowedFd;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use towpath_ring::lines::app_flags;
use towpath_ring::{AppLine, PairGeometry, PairRegion};

/// How long a watcher waits before it believes that a writer is not writing.
const REST: Duration = Duration::from_millis(10);

/// How long a writer's held bytes are not sent (`TCP_CORK`), ms.
const HELD_MS: u32 = 200;

/// Takes the frames that are made of direct connections.
pub trait Sink {
    /// A frame, made at this time. The connection is one that these selectors choose ([`Place::selectors`]).
    fn frame(&mut self, selectors: u32, time_ns: u64, bytes: &[u8]);
    /// So many frames with headers like these are lost.
    fn lost(&mut self, selectors: u32, frames: u64, like: &[u8]);
    /// Is there room for more? Without it bytes are lost without a copy, so that a look does not last.
    fn has_room(&self) -> bool {
        true
    }
    /// There is a first connection.
    fn has_first(&mut self) {}
}

/// A capture.
impl Sink for Tap {
    fn frame(&mut self, _: u32, time_ns: u64, bytes: &[u8]) {
        Tap::frame(self, DIRECT, false, time_ns, bytes);
    }
    fn lost(&mut self, _: u32, frames: u64, like: &[u8]) {
        Tap::lost(self, frames, like);
    }
    fn has_first(&mut self) {
        self.call();
    }
}

/// Where a direct connection lies.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Number of its pair.
    pub pair: u32,
    /// The pair's memory.
    pub memory: BorrowedFd<'a>,
    /// The pair's sizes.
    pub geometry: PairGeometry,
    /// Its slot.
    pub slot: u32,
    /// The side of the end that is named first.
    pub side: usize,
    /// The selectors of modules that choose a program at one of its ends. A capture has no use for them.
    pub selectors: u32,
}

/// The direct connections of a service.
pub struct Watch<S> {
    sink: S,
    regions: BTreeMap<u32, Weak<PairRegion>>,
    /// By pair and slot.
    open: BTreeMap<(u32, u32), Watched>,
    buffer: Vec<u8>,
}

struct Watched {
    region: Arc<PairRegion>,
    slot: u32,
    /// The pair's side of the conversation's side 0.
    first: usize,
    /// See [`Place`].
    selectors: u32,
    /// By the conversation's side: the position up to which its bytes are taken.
    taken: [u32; 2],
    /// By the conversation's side.
    waiting: [VecDeque<Piece>; 2],
    talk: Conversation,
}

/// Bytes of a side that are not shown yet.
struct Piece {
    /// Their position.
    begin: u32,
    /// When they were copied.
    time_ns: u64,
    /// How many.
    count: u32,
    /// `None` = they are lost.
    bytes: Option<Vec<u8>>,
    /// The writer's tail after the copy; `None` = the copy is right.
    tail: Option<u32>,
    /// When it is believed to be right.
    settled: Instant,
}

impl Watch<Tap> {
    /// Tells whose a connection is.
    pub fn name(&mut self, name: &Name) {
        self.sink.name(name);
    }

    /// A frame has been received that no port has shown: the kernel has handed it over.
    pub fn received(&mut self, place: u16, frame: &[u8]) {
        self.sink.frame(place, false, now_ns(), frame);
    }

    /// A frame was sent at this time that no port has shown: the kernel has sent it.
    pub fn sent(&mut self, place: u16, time: u64, frame: &[u8]) {
        self.sink.frame(place, true, time, frame);
    }
}

impl<S: Sink> Watch<S> {
    /// A watch that gives frames to this.
    pub fn new(sink: S) -> Self {
        Self { sink, regions: BTreeMap::new(), open: BTreeMap::new(), buffer: vec![0; MOST_BYTES] }
    }
    /// What takes the frames.
    pub fn sink(&mut self) -> &mut S {
        &mut self.sink
    }
    /// Is there no connection?
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// A connection begins; `ends[0]` has opened it. If its memory cannot be mapped it is not shown.
    pub fn opens(&mut self, place: &Place<'_>, ends: [SocketAddr; 2]) {
        let Some(region) = self.region(place) else { return };
        let (sink, time) = (&mut self.sink, now_ns());
        let talk = Conversation::opens(ends, |frame| sink.frame(place.selectors, time, frame));
        self.insert(place, Watched::new(region, place, [0; 2], talk));
    }

    /// A connection is there already. It may be named from either end. If it is known, these selectors choose it from now on.
    pub fn is_open(&mut self, place: &Place<'_>, ends: [SocketAddr; 2]) {
        if let Some(watched) = self.open.get_mut(&(place.pair, place.slot)) {
            watched.selectors = place.selectors;
            return;
        }
        let Some(region) = self.region(place) else { return };
        let sent = |side: usize| region.lines(place.slot, side).line.tx_tail.load(Ordering::Acquire);
        let taken = [sent(place.side), sent(1 - place.side)];
        let talk = Conversation::open(ends, taken);
        self.insert(place, Watched::new(region, place, taken, talk));
    }

    fn insert(&mut self, place: &Place<'_>, watched: Watched) {
        if self.open.is_empty() {
            self.sink.has_first();
        }
        self.open.insert((place.pair, place.slot), watched);
    }

    /// A side of a connection is done with it. Call it before the slot can be used again.
    pub fn ends(&mut self, pair: u32, slot: u32, side: usize, reset: bool) {
        let Some(watched) = self.open.get_mut(&(pair, slot)) else { return };
        watched.look(&mut self.sink, &mut self.buffer, Some(side ^ watched.first));
        watched.settle(side ^ watched.first, None, &mut self.sink);
        watched.end(side ^ watched.first, reset, &mut self.sink);
    }

    /// Both sides of a connection are done with it.
    pub fn forget(&mut self, pair: u32, slot: u32) {
        if let Some(mut watched) = self.open.remove(&(pair, slot)) {
            watched.settle_both(&mut self.sink);
        }
        self.regions.retain(|_, region| region.strong_count() > 0);
    }

    /// Nobody wants the frames of a connection any more, nor what it has sent already.
    pub fn leave(&mut self, pair: u32, slot: u32) {
        self.open.remove(&(pair, slot));
        self.regions.retain(|_, region| region.strong_count() > 0);
    }

    /// The same of all connections.
    pub fn leave_all(&mut self) {
        self.open.clear();
        self.regions.clear();
    }

    /// Shows what has passed since the last call. True: on some connection so much that it may soon be written over.
    pub fn look(&mut self) -> bool {
        let mut much = false;
        for watched in self.open.values_mut() {
            much |= watched.look(&mut self.sink, &mut self.buffer, None);
        }
        much
    }

    /// The same at the end of a capture: nothing waits any more.
    pub fn finish(&mut self) {
        self.look();
        for watched in self.open.values_mut() {
            watched.settle_both(&mut self.sink);
        }
    }

    fn region(&mut self, place: &Place<'_>) -> Option<Arc<PairRegion>> {
        if let Some(region) = self.regions.get(&place.pair).and_then(Weak::upgrade) {
            return Some(region);
        }
        let region = Arc::new(PairRegion::map(place.memory, place.geometry, place.pair).ok()?);
        self.regions.insert(place.pair, Arc::downgrade(&region));
        Some(region)
    }
}

impl Watched {
    fn new(region: Arc<PairRegion>, place: &Place<'_>, taken: [u32; 2], talk: Conversation) -> Self {
        let Place { slot, side: first, selectors, .. } = *place;
        Self { region, slot, first, selectors, taken, waiting: Default::default(), talk }
    }

    /// `ended`: this side is done with it.
    /// True: an eighth of a ring or more has come.
    fn look(&mut self, sink: &mut impl Sink, buffer: &mut [u8], ended: Option<usize>) -> bool {
        let now = Instant::now();
        let (mut much, most) = (false, self.region.geometry().ring_bytes / 8);
        for side in [0, 1] {
            let lines = self.region.lines(self.slot, side ^ self.first);
            // The flags first: what was sent before the end is there when the end is seen.
            let flags = lines.line.flags.load(Ordering::Acquire);
            let ends = flags & (app_flags::SHUT_WR | app_flags::CLOSED) != 0 || ended == Some(side);
            let tail = sent(&lines.line, ends);
            self.settle(side, Some(now), sink);
            much |= tail.wrapping_sub(self.taken[side]) >= most;
            if tail != self.taken[side] {
                self.take(side, tail, now, buffer, sink.has_room());
                self.settle(side, Some(now), sink);
            }
            if flags & app_flags::SHUT_WR != 0 {
                // It writes no more.
                self.settle(side, None, sink);
                self.end(side, false, sink);
            }
        }
        much
    }

    /// A side has sent all, or resets the connection.
    fn end(&mut self, side: usize, reset: bool, sink: &mut impl Sink) {
        let time = now_ns();
        self.talk.ends(side, reset, |frame| sink.frame(self.selectors, time, frame));
    }

    /// Copies a side's bytes up to `tail`, if there is room.
    fn take(&mut self, side: usize, tail: u32, now: Instant, buffer: &mut [u8], has_room: bool) {
        let Self { region, slot, first, taken, waiting, .. } = self;
        let Some(ring) = region.ring(*slot, side ^ *first) else { return };
        let (own, peer) = (region.lines(*slot, side ^ *first), region.lines(*slot, 1 - (side ^ *first)));
        let (begin, time_ns) = (taken[side], now_ns());
        let count = tail.wrapping_sub(begin);
        if count > ring.capacity() || !has_room {
            // So much cannot be in the ring. The rest of it may be written over at any moment.
            waiting[side].push_back(Piece { begin, time_ns, count, bytes: None, tail: None, settled: now });
            taken[side] = tail;
        }
        while taken[side] != tail {
            let begin = taken[side];
            let count = tail.wrapping_sub(begin).min(MOST_BYTES as u32);
            let bytes = &mut buffer[..count as usize];
            ring.read(begin, bytes);
            let tail = written(&own.line);
            let unread = begin.wrapping_sub(peer.line.rx_head.load(Ordering::Acquire)).cast_signed() >= 0;
            let right = unread && tail.wrapping_sub(begin) <= ring.capacity();
            let (bytes, tail) = (Some(bytes.to_vec()), Some(tail).filter(|_| !right));
            waiting[side].push_back(Piece { begin, time_ns, count, bytes, tail, settled: now + REST });
            taken[side] = begin.wrapping_add(count);
        }
    }

    /// Shows all that is right, of both sides.
    fn settle_both(&mut self, sink: &mut impl Sink) {
        self.settle(0, None, sink);
        self.settle(1, None, sink);
    }

    /// Shows what of a side's bytes is right. `now` is when the watcher looked; `None` = the writer is not writing.
    fn settle(&mut self, side: usize, now: Option<Instant>, sink: &mut impl Sink) {
        let tail = written(&self.region.lines(self.slot, side ^ self.first).line);
        let ring_bytes = self.region.geometry().ring_bytes;
        while let Some(piece) = self.waiting[side].front() {
            if piece.tail == Some(tail) && now.is_some_and(|now| now < piece.settled) {
                return;
            }
            let Some(Piece { begin, time_ns, count, bytes, tail: copied_at, .. }) = self.waiting[side].pop_front()
            else {
                return;
            };
            let written_over = copied_at.is_some() && tail.wrapping_sub(begin) > ring_bytes;
            match bytes {
                Some(bytes) if !written_over => {
                    self.talk.data(side, &bytes, |frame| sink.frame(self.selectors, time_ns, frame));
                }
                _ => self.talk.lost(side, count, |like, frames| sink.lost(self.selectors, frames, like)),
            }
        }
    }
}

/// Up to where a writer has written: beyond its tail there may be held bytes.
fn written(line: &AppLine) -> u32 {
    let tail = line.tx_tail.load(Ordering::Acquire);
    let held = line.held_tail.load(Ordering::Acquire);
    let holds = line.held_ms.load(Ordering::Acquire) != 0 && held.wrapping_sub(tail).cast_signed() > 0;
    if holds { held } else { tail }
}

/// Up to where a writer's bytes count as sent, as its reader counts them. `ended`: it writes no more.
fn sent(line: &AppLine, ended: bool) -> u32 {
    // The lowest bit of the time only tells it from 0.
    let since = line.held_ms.load(Ordering::Acquire) & !1;
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    let now_ms = (now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000) as u32;
    if ended || now_ms.wrapping_sub(since) >= HELD_MS { written(line) } else { line.tx_tail.load(Ordering::Acquire) }
}
