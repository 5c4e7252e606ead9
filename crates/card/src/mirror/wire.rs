//! What both sides do to send and to receive: messages as records, in parts; what waits for room; signs of life.

use super::record::{PART, Record};
use crate::message;
use crate::part::Part;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use towpath_link::mail::Outbox;
use towpath_link::{Broken, Link};

/// How often a side shows that it lives.
pub const BEAT: Duration = Duration::from_millis(500);
/// How long the other side may show no life. A machine that is busy with others makes it wait too, so this is generous.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Most bytes of a message.
const LONGEST: usize = (4 << 20) + 64;
/// Most bytes that wait for room: who lets more wait does not read.
const WAITING: usize = 32 << 20;
/// Bytes of the ring copied in one go.
const CHUNK: u32 = 32 << 10;

/// The sending end, of one thread.
pub struct Wire {
    outbox: Outbox,
    /// Parts of messages that wait for room, by lane.
    waiting: Vec<VecDeque<Vec<u8>>>,
    /// How many bytes those are.
    waiting_bytes: usize,
    beat: Instant,
    record: Vec<u8>,
    chunk: Vec<u8>,
}

impl Wire {
    /// Over an outbox.
    pub fn new(outbox: Outbox) -> Self {
        let waiting = (0..outbox.link().lanes()).map(|_| VecDeque::new()).collect();
        Self {
            outbox,
            waiting,
            waiting_bytes: 0,
            beat: Instant::now(),
            record: Vec::new(),
            chunk: vec![0; CHUNK as usize],
        }
    }
    /// Is there room for everything that can be said of one slot, and nothing that waits before it?
    pub fn has_room(&self, lane: u32) -> bool {
        self.waiting.get(lane as usize).is_some_and(VecDeque::is_empty) && self.outbox.has_room(lane, 1024)
    }
    /// Sends a record, after those that wait. Whoever sends many looks for room before each.
    pub fn send(&mut self, lane: u32, record: &Record) -> Result<(), Broken> {
        record.encode(&mut self.record);
        let Some(waiting) = self.waiting.get_mut(lane as usize) else { return Ok(()) };
        if !waiting.is_empty() || !self.outbox.send(lane, &self.record)? {
            self.waiting_bytes += self.record.len();
            waiting.push_back(self.record.clone());
        }
        Ok(())
    }
    /// Sends a message as soon as there is room.
    pub fn post(&mut self, lane: u32, message: &[u8]) {
        let Some(waiting) = self.waiting.get_mut(lane as usize) else { return };
        let parts = message.chunks(PART).count();
        for (number, part) in message.chunks(PART).enumerate() {
            let mut record = Vec::with_capacity(part.len() + 2);
            Record::Part { last: number + 1 == parts, bytes: part.to_vec() }.encode(&mut record);
            self.waiting_bytes += record.len();
            waiting.push_back(record);
        }
    }
    /// Has the bytes of a ring from position `from` on written into the other side's ring of the same place.
    pub fn copy(
        &mut self,
        lane: u32,
        (key, ring_at): (u32, u64),
        ring: towpath_ring::ByteRing<'_>,
        (mut from, mut count): (u32, u32),
    ) -> Result<(), Broken> {
        while count > 0 {
            let at = from & (ring.capacity() - 1);
            let part = count.min(CHUNK).min(ring.capacity() - at);
            let bytes = &mut self.chunk[..part as usize];
            ring.read(from, bytes);
            self.outbox.link().write(lane, key, ring_at + u64::from(at), bytes)?;
            (from, count) = (from.wrapping_add(part), count - part);
        }
        Ok(())
    }
    /// Sends what has waited for room, what the other side must know of this one, and everything that is underway. How much it was.
    pub fn push(&mut self) -> Result<usize, Broken> {
        let mut sent = 0;
        if self.waiting_bytes > WAITING {
            return Err(Broken::Stuck);
        }
        for (lane, waiting) in (0..).zip(&mut self.waiting) {
            while let Some(record) = waiting.front()
                && self.outbox.send(lane, record)?
            {
                self.waiting_bytes -= record.len();
                waiting.pop_front();
                sent += 1;
            }
        }
        self.outbox.acknowledge()?;
        if self.beat.elapsed() >= BEAT && self.has_room(0) {
            self.beat = Instant::now();
            self.send(0, &Record::Beat)?;
        }
        self.outbox.link().flush()?;
        Ok(sent)
    }
    /// Is there something to do at once?
    pub fn is_pressed(&self) -> bool {
        let sendable = |(lane, waiting): (u32, &VecDeque<Vec<u8>>)| {
            waiting.front().is_some_and(|record| self.outbox.has_room(lane, record.len()))
        };
        self.outbox.owes() || (0..).zip(&self.waiting).any(sendable)
    }
}

/// Messages that come in parts, by lane.
#[derive(Default)]
pub struct Parts(Vec<Vec<u8>>);

impl Parts {
    /// Takes a part; the message and its number if it is whole.
    pub fn message<M: Part>(&mut self, lane: u32, last: bool, part: &[u8]) -> Result<Option<(u32, M)>, Broken> {
        let Some(whole) = self.take(lane, last, part)? else { return Ok(None) };
        let message = message::receive(&mut whole.as_slice());
        message.map(Some).map_err(|_| Broken::Rules("no message looks so"))
    }
    fn take(&mut self, lane: u32, last: bool, part: &[u8]) -> Result<Option<Vec<u8>>, Broken> {
        let lane = lane as usize;
        if self.0.len() <= lane {
            self.0.resize_with(lane + 1, Vec::new);
        }
        let whole = &mut self.0[lane];
        if whole.len() + part.len() > LONGEST {
            return Err(Broken::Rules("a message is too long"));
        }
        whole.extend_from_slice(part);
        Ok(last.then(|| std::mem::take(whole)))
    }
}

/// Reads what comes until the link is broken; why it is. `each` is given lane and record, `room` is called when the sender is to have a look.
pub fn receive(
    link: &dyn Link,
    inbox: &mut towpath_link::mail::Inbox,
    mut each: impl FnMut(u32, Record) -> Result<(), Broken>,
    room: impl Fn(),
) -> Broken {
    let (mut arrivals, mut seen) = (Vec::new(), Instant::now());
    loop {
        if let Err(broken) = link.wait(&mut arrivals, BEAT) {
            return broken;
        }
        if !arrivals.is_empty() {
            seen = Instant::now();
        } else if seen.elapsed() >= PATIENCE {
            return Broken::Silent;
        }
        for arrival in arrivals.drain(..) {
            let read = inbox.arrived(arrival, |lane, bytes| {
                let record = Record::decode(bytes).ok_or(Broken::Rules("no record looks so"))?;
                each(lane, record)
            });
            match read {
                Ok(true) => room(),
                Ok(false) => {}
                Err(broken) => return broken,
            }
        }
    }
}
