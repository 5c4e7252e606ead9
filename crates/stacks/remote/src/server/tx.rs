//! The server's sending thread: sends what the stack writes, which is bytes of receive rings and lines.

use super::shared::{RegionCopy, ServerJob, Shared};
use crate::Broken;
use crate::layout::key;
use crate::transfer::{HEARTBEAT, UpdateSender};
use crate::update::Update;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use towpath_ring::Slot;
use towpath_ring::codec::{CountsLineWords, InfoLineWords, StackLineWords, stack_word};
use towpath_ring::command::Accepted;
use towpath_ring::lines::state;
use towpath_runtime::thread::wait;

/// How often it checks whether a slot has been freed. The stack does not report that.
const CHECK: Duration = Duration::from_millis(1);

/// The stack's words of a slot, as the host has them.
struct SentWords {
    shown: StackLineWords,
    info: InfoLineWords,
    counts: CountsLineWords,
    /// Bytes of the receive ring that were sent.
    tail: u32,
}

struct ClientProgress {
    client: Arc<RegionCopy>,
    slots: HashMap<u32, SentWords>,
}

/// The sending thread of the server.
pub struct ServerTx {
    shared: Arc<Shared>,
    sender: UpdateSender,
    served: Vec<ClientProgress>,
}

impl ServerTx {
    /// Without clients.
    pub fn new(shared: Arc<Shared>, sender: UpdateSender) -> Self {
        Self { shared, sender, served: Vec::new() }
    }

    /// Runs until the link has ended.
    pub fn run(mut self) {
        while !self.shared.over.load(Ordering::Acquire) {
            match self.turn() {
                Ok(0) => self.sleep(),
                Ok(_) => {}
                // The receiving thread sees that, and cleans up.
                Err(_) => return self.shared.link.close(),
            }
        }
    }

    /// Sends everything that is there now. Returns how much it was.
    fn turn(&mut self) -> Result<usize, Broken> {
        let mut work = 0;
        while let Some(job) = self.shared.jobs.pop() {
            match job {
                ServerJob::Message(lane, message) => self.sender.post(lane, &message),
                ServerJob::Serve(client) => self.served.push(ClientProgress { client, slots: HashMap::new() }),
                ServerJob::Left(index) => self.served.retain(|served| served.client.index != index),
            }
            work += 1;
        }
        for served in &mut self.served {
            work += served.send_dirty(&mut self.sender)?;
        }
        Ok(work + self.sender.push()?)
    }

    fn sleep(&mut self) {
        self.shared.doorbell.arm();
        let pending = self.shared.over.load(Ordering::Acquire)
            || !self.shared.jobs.is_empty()
            || self.sender.has_work()
            || self.served.iter().any(|served| served.client.is_dirty() && self.sender.has_room(served.client.lane));
        if !pending {
            let closing = self.served.iter().any(|served| !served.client.closing().is_empty());
            wait(&self.shared.epoll, Some(if closing { CHECK } else { HEARTBEAT }.as_micros() as u64));
        }
        self.shared.doorbell.disarm();
    }
}

impl ClientProgress {
    fn send_dirty(&mut self, sender: &mut UpdateSender) -> Result<usize, Broken> {
        let client = Arc::clone(&self.client);
        let mut work = 0;
        for slot in client.closing() {
            if client.region.stack(slot).state.load(Ordering::Acquire) == state::FREE {
                client.closed(slot);
                client.mark_dirty(slot);
            }
        }
        for slot in client.take_dirty() {
            if sender.has_room(client.lane) && self.send_slot(sender, slot)? {
                work += 1;
            } else {
                client.mark_dirty(slot);
            }
        }
        Ok(work)
    }

    /// Sends what the stack has written for a slot: new bytes of its receive ring, then its lines. False if there was
    /// no room for all of it.
    fn send_slot(&mut self, sender: &mut UpdateSender, slot: Slot) -> Result<bool, Broken> {
        let client = Arc::clone(&self.client);
        let (region, raw) = (&client.region, slot.raw());
        client.watch_slot(slot);
        let mut words = region.stack(slot).load();
        let bytes = region.geometry().rx_bytes;
        let known = self.slots.get(&raw);
        let same = known.is_some_and(|known| known.shown[stack_word::GENERATION] == words[stack_word::GENERATION]);
        let sent = known.filter(|_| same).map_or(0, |known| known.tail);
        let (listens, mut whole) = (words[stack_word::STATE] == state::LISTENING, true);
        let mut fresh = words[stack_word::RX_TAIL].wrapping_sub(sent);
        if listens && fresh <= bytes {
            let accepted = self.send_accepted(sender, slot, sent, fresh)?;
            whole = accepted == fresh;
            fresh = accepted;
            words[stack_word::RX_TAIL] = sent.wrapping_add(accepted);
        }
        if fresh <= bytes {
            let at = (key(client.index), u64::from(raw) * u64::from(bytes));
            sender.copy(client.lane, at, region.rx(slot), (sent, fresh))?;
        }
        // Loaded after the line, so at least as new.
        let (info, counts) = (region.info(slot).load(), region.counts(slot).load());
        let (index, known) = (client.index, self.slots.get(&raw));
        if known.is_none_or(|known| known.info != info || known.counts != counts) {
            let (info, counts) = (Box::new(info), Box::new(counts));
            sender.send(client.lane, &Update::Info { index, slot: raw, info, counts })?;
        }
        // A listener's line is also a signal to check again.
        if listens || known.is_none_or(|known| known.shown != words) {
            sender.send(client.lane, &Update::Stack { index, slot: raw, shown: words })?;
        }
        let tail = words[stack_word::RX_TAIL];
        self.slots.insert(raw, SentWords { shown: words, info, counts, tail });
        Ok(whole)
    }

    /// Sends the connections of a listener's records before the records. Returns how many bytes of records may be
    /// sent.
    fn send_accepted(&mut self, sender: &mut UpdateSender, slot: Slot, from: u32, fresh: u32) -> Result<u32, Broken> {
        let client = Arc::clone(&self.client);
        let mut done = 0;
        while done + Accepted::BYTES as u32 <= fresh && sender.has_room(client.lane) {
            let mut record = [0; Accepted::BYTES];
            client.region.rx(slot).read(from.wrapping_add(done), &mut record);
            if let Some(child) = client.region.slot(Accepted::from_bytes(&record).slot).filter(|child| *child != slot)
                && !self.send_slot(sender, child)?
            {
                break;
            }
            done += Accepted::BYTES as u32;
        }
        Ok(done)
    }
}
