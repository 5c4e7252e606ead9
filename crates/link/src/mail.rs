//! Records over a link: a ring in the other side's memory for each lane, into which a record is written with its length before it. The
//! immediate says how many bytes that was, and in the other direction how many have been read.

use crate::link::{Arrival, Broken, Link};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use towpath_ring::span::Span;

/// Bytes of a ring.
const RING: u32 = 256 << 10;
/// Most bytes of a record.
pub const LONGEST: usize = 32 << 10;
/// The first key that is not mail's.
pub const KEYS: u32 = 64;
/// Marks an immediate that says how much has been read.
const READ: u32 = 1 << 31;
/// As soon as so much has been read, the sender is told.
const TELL: u32 = RING / 8;

/// What the two ends of a lane on this side share.
#[derive(Default)]
struct Lane {
    /// Bytes that the other side has read, ever.
    taken: AtomicU32,
    /// Bytes read here of which the other side does not know.
    owed: AtomicU32,
}

/// Sends; for the thread that writes.
pub struct Outbox {
    link: Arc<dyn Link>,
    lanes: Arc<[Lane]>,
    /// Bytes written, ever, by lane.
    tails: Vec<u32>,
    scratch: Vec<u8>,
}

/// Receives; for the thread that waits.
pub struct Inbox {
    lanes: Arc<[Lane]>,
    rings: Vec<Span>,
    /// Bytes read, ever, by lane.
    heads: Vec<u32>,
    record: Vec<u8>,
}

/// Both ends, with their rings registered. Both sides must do this before either writes.
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
    /// Is there room for a record of so many bytes?
    pub fn has_room(&self, lane: u32, length: usize) -> bool {
        let Some((tail, shared)) = self.lane(lane) else { return false };
        let used = tail.wrapping_sub(shared.taken.load(Ordering::Acquire));
        length <= LONGEST && used as usize + 4 + length <= RING as usize
    }
    fn lane(&self, lane: u32) -> Option<(u32, &Lane)> {
        Some((*self.tails.get(lane as usize)?, self.lanes.get(lane as usize)?))
    }
    /// Sends a record; false = there is no room for it now.
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
    /// Tells the other side how much has been read here.
    pub fn acknowledge(&mut self) -> Result<(), Broken> {
        for (lane, shared) in (0..).zip(self.lanes.iter()) {
            if shared.owed.load(Ordering::Relaxed) >= TELL {
                let owed = shared.owed.swap(0, Ordering::Relaxed);
                self.link.write_with_immediate(lane, lane, 0, &[], READ | owed)?;
            }
        }
        Ok(())
    }
    /// Is there something to tell?
    pub fn owes(&self) -> bool {
        self.lanes.iter().any(|lane| lane.owed.load(Ordering::Relaxed) >= TELL)
    }
}

impl Inbox {
    /// Reads what an arrival has brought. True if the sender on this side must have a look: there is room again, or something to tell.
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
            // Who has read more than was written has room for it: a lie harms its ring only.
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

/// Copies out of a ring, around its end.
fn copy_out(ring: &Span, position: u32, to: &mut [u8]) {
    let at = position % RING;
    let first = to.len().min((RING - at) as usize);
    let (first, second) = to.split_at_mut(first);
    // Both lie in the ring: no record is longer than it.
    ring.read(at.into(), first);
    ring.read(0, second);
}
