//! Sending and receiving on both sides: updates, messages in parts, the queue of what waits for room, heartbeats.

use crate::link::inbox::Outbox;
use crate::update::{PART, Update};
use crate::{Broken, Link};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use towpath_forward::codec::Codec;
use towpath_forward::message;

/// How often a side sends a heartbeat.
pub const HEARTBEAT: Duration = Duration::from_millis(500);
/// How long the peer may be silent. Generous, because a busy machine delays it.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(10);
/// Most bytes of a message.
const LONGEST: usize = (4 << 20) + 64;
/// Most bytes that wait for room. A peer that lets more wait does not read.
const WAITING: usize = 32 << 20;
/// Bytes of a ring copied at a time.
const CHUNK: u32 = 32 << 10;

/// The sending end, for one thread.
pub struct UpdateSender {
    outbox: Outbox,
    /// Encoded updates that wait for room, by lane.
    waiting: Vec<VecDeque<Vec<u8>>>,
    /// Bytes of all of them.
    waiting_bytes: usize,
    beat: Instant,
    record: Vec<u8>,
    chunk: Vec<u8>,
}

impl UpdateSender {
    /// Sends through an outbox.
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
    /// True if nothing waits on the lane, and there is room for every update of one slot.
    pub fn has_room(&self, lane: u32) -> bool {
        self.waiting.get(lane as usize).is_some_and(VecDeque::is_empty) && self.outbox.has_room(lane, 1024)
    }
    /// Sends an update, after those that wait. A caller with many updates checks for room before each.
    pub fn send(&mut self, lane: u32, record: &Update) -> Result<(), Broken> {
        record.encode(&mut self.record);
        let Some(waiting) = self.waiting.get_mut(lane as usize) else { return Ok(()) };
        if !waiting.is_empty() || !self.outbox.send(lane, &self.record)? {
            self.waiting_bytes += self.record.len();
            waiting.push_back(self.record.clone());
        }
        Ok(())
    }
    /// Queues a message. It is sent in parts, as soon as there is room.
    pub fn post(&mut self, lane: u32, message: &[u8]) {
        let Some(waiting) = self.waiting.get_mut(lane as usize) else { return };
        let parts = message.chunks(PART).count();
        for (number, part) in message.chunks(PART).enumerate() {
            let mut record = Vec::with_capacity(part.len() + 2);
            Update::Part { last: number + 1 == parts, bytes: part.to_vec() }.encode(&mut record);
            self.waiting_bytes += record.len();
            waiting.push_back(record);
        }
    }
    /// Writes bytes of a ring, from position `from`, into the peer's ring at the same position.
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
    /// Sends the waiting updates, acknowledgements and a heartbeat if one is due, and flushes. Returns the number of
    /// waiting updates sent.
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
        if self.beat.elapsed() >= HEARTBEAT && self.has_room(0) {
            self.beat = Instant::now();
            self.send(0, &Update::Beat)?;
        }
        self.outbox.link().flush()?;
        Ok(sent)
    }
    /// True if there is something to send at once.
    pub fn has_work(&self) -> bool {
        let sendable = |(lane, waiting): (u32, &VecDeque<Vec<u8>>)| {
            waiting.front().is_some_and(|record| self.outbox.has_room(lane, record.len()))
        };
        self.outbox.owes() || (0..).zip(&self.waiting).any(sendable)
    }
}

/// Reassembles messages from their parts, by lane.
#[derive(Default)]
pub struct MessageParts(Vec<Vec<u8>>);

impl MessageParts {
    /// Adds a part. Returns the message and its number if the part was the last.
    pub fn message<M: Codec>(&mut self, lane: u32, last: bool, part: &[u8]) -> Result<Option<(u32, M)>, Broken> {
        let Some(whole) = self.take(lane, last, part)? else { return Ok(None) };
        let message = message::receive(&mut whole.as_slice());
        message.map(Some).map_err(|_| Broken::Rules("not a message"))
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

/// Reads until the link has ended, and returns why. `each` gets lane and update; `room` is called when the sending
/// thread should check again.
pub fn receive(
    link: &dyn Link,
    inbox: &mut crate::link::inbox::Inbox,
    mut each: impl FnMut(u32, Update) -> Result<(), Broken>,
    room: impl Fn(),
) -> Broken {
    let (mut arrivals, mut seen) = (Vec::new(), Instant::now());
    loop {
        if let Err(broken) = link.wait(&mut arrivals, HEARTBEAT) {
            return broken;
        }
        if !arrivals.is_empty() {
            seen = Instant::now();
        } else if seen.elapsed() >= SILENCE_LIMIT {
            return Broken::Silent;
        }
        for arrival in arrivals.drain(..) {
            let read = inbox.arrived(arrival, |lane, bytes| {
                let record = Update::decode(bytes).ok_or(Broken::Rules("not an update"))?;
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
