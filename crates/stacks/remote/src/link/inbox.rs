//! Ordered entries over a link. For each lane there is a ring in the peer's memory. An entry is written there with its
//! length before it. The immediate says how many bytes were written or, in the other direction, how many were read.

use crate::link::{Arrival, Broken, Link};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use towpath_ring::span::Span;

/// Bytes of a ring.
const RING: u32 = 256 << 10;
/// Most bytes of an entry.
pub const LONGEST: usize = 32 << 10;
/// The first key that is free for the user of the link.
pub const KEYS: u32 = 64;
/// Marks an immediate that counts bytes read.
const READ: u32 = 1 << 31;
/// After this many bytes have been read, the sender is told.
const TELL: u32 = RING / 8;

/// State of a lane that the sending and the receiving thread share.
#[derive(Default)]
struct Lane {
    /// Bytes ever read by the peer.
    taken: AtomicU32,
    /// Bytes read here that have not been acknowledged.
    owed: AtomicU32,
}

/// The sending end, for the thread that writes.
pub struct Outbox {
    link: Arc<dyn Link>,
    lanes: Arc<[Lane]>,
    /// Bytes ever written, by lane.
    tails: Vec<u32>,
    scratch: Vec<u8>,
}

/// The receiving end, for the thread that waits.
pub struct Inbox {
    lanes: Arc<[Lane]>,
    rings: Vec<Span>,
    /// Bytes ever read, by lane.
    heads: Vec<u32>,
    record: Vec<u8>,
}

/// Opens both ends and registers their rings. Both sides must do this before either writes.
pub fn open(link: &Arc<dyn Link>) -> io::Result<(Outbox, Inbox)> {
    let count = link.lanes().clamp(1, KEYS);
    let lanes: Arc<[Lane]> = (0..count).map(|_| Lane::default()).collect();
    let rings = (0..count).map(|_| Span::fresh(RING as usize)).collect::<io::Result<Vec<_>>>()?;
    for (key, ring) in (0..).zip(&rings) {
        link.register(key, ring.clone())?;
    }
    let zeros = || vec![0; count as usize];
    let outbox = Outbox { link: Arc::clone(link), lanes: Arc::clone(&lanes), tails: zeros(), scratch: Vec::new() };
    Ok((outbox, Inbox { lanes, rings, heads: zeros(), record: Vec::new() }))
}

impl Outbox {
    /// The link.
    pub fn link(&self) -> &Arc<dyn Link> {
        &self.link
    }
    /// True if there is room for an entry of this length.
    pub fn has_room(&self, lane: u32, length: usize) -> bool {
        let Some((tail, shared)) = self.lane(lane) else { return false };
        let used = tail.wrapping_sub(shared.taken.load(Ordering::Acquire));
        length <= LONGEST && used as usize + 4 + length <= RING as usize
    }
    fn lane(&self, lane: u32) -> Option<(u32, &Lane)> {
        Some((*self.tails.get(lane as usize)?, self.lanes.get(lane as usize)?))
    }
    /// Sends an entry. False if there is no room for it now.
    pub fn send(&mut self, lane: u32, record: &[u8]) -> Result<bool, Broken> {
        if !self.has_room(lane, record.len()) {
            return Ok(false);
        }
        let bytes = &mut self.scratch;
        bytes.clear();
        bytes.extend((record.len() as u32).to_le_bytes());
        bytes.extend_from_slice(record);
        let tail = &mut self.tails[lane as usize];
        let at = *tail % RING;
        let (first, second) = bytes.split_at(bytes.len().min((RING - at) as usize));
        let count = bytes.len() as u32;
        *tail = tail.wrapping_add(count);
        if second.is_empty() {
            self.link.write_with_immediate(lane, lane, at.into(), first, count)?;
        } else {
            self.link.write(lane, lane, at.into(), first)?;
            self.link.write_with_immediate(lane, lane, 0, second, count)?;
        }
        Ok(true)
    }
    /// Acknowledges the bytes read here.
    pub fn acknowledge(&mut self) -> Result<(), Broken> {
        for (lane, shared) in (0..).zip(self.lanes.iter()) {
            if shared.owed.load(Ordering::Relaxed) >= TELL {
                let owed = shared.owed.swap(0, Ordering::Relaxed);
                self.link.write_with_immediate(lane, lane, 0, &[], READ | owed)?;
            }
        }
        Ok(())
    }
    /// True if enough has been read to acknowledge it.
    pub fn owes(&self) -> bool {
        self.lanes.iter().any(|lane| lane.owed.load(Ordering::Relaxed) >= TELL)
    }
}

impl Inbox {
    /// Reads the entries of an arrival. True if the sending thread should check again: there is room, or something to
    /// acknowledge.
    pub fn arrived(
        &mut self,
        arrival: Arrival,
        mut each: impl FnMut(u32, &[u8]) -> Result<(), Broken>,
    ) -> Result<bool, Broken> {
        let at = arrival.lane as usize;
        let (Some(shared), Some(ring)) = (self.lanes.get(at), self.rings.get(at)) else {
            return Err(Broken::Rules("there is no such lane"));
        };
        if arrival.immediate & READ != 0 {
            // A peer that claims to have read more than was written harms only its own ring.
            shared.taken.fetch_add(arrival.immediate & !READ, Ordering::Release);
            return Ok(true);
        }
        if arrival.immediate > RING {
            return Err(Broken::Rules("more has come than there is room for"));
        }
        let head = &mut self.heads[at];
        let mut left = arrival.immediate;
        while left > 0 {
            let mut length = [0; 4];
            copy_out(ring, *head, &mut length);
            let length = u32::from_le_bytes(length);
            let whole = length.saturating_add(4);
            if length as usize > LONGEST || whole > left {
                return Err(Broken::Rules("a record is longer than what has come"));
            }
            self.record.resize(length as usize, 0);
            copy_out(ring, head.wrapping_add(4), &mut self.record);
            *head = head.wrapping_add(whole);
            left -= whole;
            each(arrival.lane, &self.record)?;
        }
        let owed = shared.owed.fetch_add(arrival.immediate, Ordering::Relaxed);
        Ok(owed.wrapping_add(arrival.immediate) >= TELL)
    }
}

/// Copies bytes out of a ring, across its end.
fn copy_out(ring: &Span, position: u32, to: &mut [u8]) {
    let at = position % RING;
    let first = to.len().min((RING - at) as usize);
    let (first, second) = to.split_at_mut(first);
    // Both parts lie in the ring, because no entry is longer than it.
    ring.read(at.into(), first);
    ring.read(0, second);
}
