//! The host's sending thread: sends what applications write, which is bytes of send rings, lines and commands. It
//! reads their dirty sets as a stack would.

use super::shared::{ClientJob, RemoteClient, Shared};
use crate::Broken;
use crate::layout::key;
use crate::transfer::{HEARTBEAT, UpdateSender};
use crate::update::Update;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use towpath_forward::lock::lock;
use towpath_ring::Slot;
use towpath_ring::codec::app_word;
use towpath_ring::lines::state;
use towpath_runtime::thread::wait;

/// Slots and commands of one client in a turn.
const PER_CLIENT: usize = 64;
/// How often it checks listeners whose applications may have accepted.
const CHECK: Duration = Duration::from_millis(1);

/// The application's words of a slot, as the server has them.
#[derive(Default)]
struct SentWords {
    /// Generation of the application's line.
    generation: u32,
    /// Bytes of the send ring that were sent.
    tail: u32,
    /// Bytes of the receive ring that the server knows to be read.
    head: u32,
    /// See `CommandLine::holder`.
    holder: u32,
}

/// A client, with the positions in its queues.
struct ClientProgress {
    client: Arc<RemoteClient>,
    data_head: u32,
    command_head: u32,
    slots: HashMap<u32, SentWords>,
}

/// The sending thread of the host's side.
pub struct ClientTx {
    shared: Arc<Shared>,
    sender: UpdateSender,
    served: Vec<ClientProgress>,
}

impl ClientTx {
    /// Without clients.
    pub fn new(shared: Arc<Shared>, sender: UpdateSender) -> Self {
        Self { shared, sender, served: Vec::new() }
    }

    /// Runs until the link has ended.
    pub fn run(mut self) {
        while !self.shared.stopping.load(Ordering::Acquire) && !self.shared.dead.load(Ordering::Acquire) {
            let turn = self.turn();
            match turn {
                Ok(0) => self.sleep(),
                Ok(_) => {}
                Err(error) => {
                    tracing::error!(%error, "the remote stack");
                    // The receiving thread sees that, and cleans up.
                    return self.shared.link.close();
                }
            }
        }
    }

    /// Sends everything that is there now. Returns how much it was.
    fn turn(&mut self) -> Result<usize, Broken> {
        let mut work = 0;
        while let Some(job) = self.shared.jobs.pop() {
            self.job(job)?;
            work += 1;
        }
        for served in &mut self.served {
            work += served.commands(&mut self.sender)? + served.updates(&mut self.sender)?;
        }
        work += self.check_listeners()?;
        Ok(work + self.sender.push()?)
    }

    fn job(&mut self, job: ClientJob) -> Result<(), Broken> {
        let (client, message) = match job {
            ClientJob::Message(lane, message) => {
                self.sender.post(lane, &message);
                return Ok(());
            }
            ClientJob::Serve(client) => {
                self.served.push(ClientProgress { client, data_head: 0, command_head: 0, slots: HashMap::new() });
                return Ok(());
            }
            ClientJob::Hangup(client, raw, message) => {
                let slot = client.shared.region.slot(raw);
                if let (Some(served), Some(slot)) = (find(&mut self.served, &client), slot) {
                    served.send_slot(&mut self.sender, slot, false)?;
                }
                (client, message)
            }
            ClientJob::Departed(client, process, message) => {
                if let Some(served) = find(&mut self.served, &client) {
                    served.send_released(&mut self.sender, process)?;
                }
                (client, message)
            }
            ClientJob::Remove(client, message) => {
                if let Some(served) = find(&mut self.served, &client) {
                    served.send_all(&mut self.sender)?;
                    // The server has all that is still to be sent.
                    client.served.vacate_all();
                }
                self.served.retain(|served| served.client.index != client.index);
                lock(&self.shared.watched).retain(|(index, _)| *index != client.index);
                (client, message)
            }
        };
        self.sender.post(client.lane, &message);
        Ok(())
    }

    /// Applications accept without a notification, but the stack must know how much room their listeners have.
    fn check_listeners(&mut self) -> Result<usize, Broken> {
        let watched = std::mem::take(&mut *lock(&self.shared.watched));
        let (mut work, mut left) = (0, Vec::new());
        for (index, raw) in watched {
            let Some(served) = self.served.iter_mut().find(|served| served.client.index == index) else { continue };
            let region = Arc::clone(&served.client.shared.region);
            let Some(slot) = region.slot(raw) else { continue };
            let head = region.app(slot).rx_head.load(Ordering::Acquire);
            if served.slots.get(&raw).is_none_or(|sent| sent.head != head) && self.sender.has_room(served.client.lane) {
                served.send_slot(&mut self.sender, slot, false)?;
                work += 1;
            }
            let line = region.stack(slot);
            let listens = line.state.load(Ordering::Acquire) == state::LISTENING;
            if listens && line.rx_tail.load(Ordering::Acquire) != head {
                left.push((index, raw));
            }
        }
        let mut watched = lock(&self.shared.watched);
        left.retain(|one| !watched.contains(one));
        watched.extend(left);
        Ok(work)
    }

    /// Sleeps until it is notified.
    fn sleep(&mut self) {
        self.shared.doorbell.arm();
        let mut pending = !self.shared.jobs.is_empty() || self.sender.has_work();
        pending |= self.shared.dead.load(Ordering::Acquire) || self.shared.stopping.load(Ordering::Acquire);
        for served in &self.served {
            let region = &served.client.shared.region;
            region.data_queue(0).arm();
            region.commands().arm();
            let waits =
                !region.data_queue(0).is_empty(served.data_head) || !region.commands().is_empty(served.command_head);
            pending |= waits && self.sender.has_room(served.client.lane);
        }
        if !pending {
            let check = !lock(&self.shared.watched).is_empty();
            wait(&self.shared.epoll, Some(if check { CHECK } else { HEARTBEAT }.as_micros() as u64));
        }
        self.shared.doorbell.disarm();
        for served in &self.served {
            served.client.shared.region.data_queue(0).disarm();
            served.client.shared.region.commands().disarm();
        }
    }
}

fn find<'a>(all: &'a mut [ClientProgress], client: &Arc<RemoteClient>) -> Option<&'a mut ClientProgress> {
    all.iter_mut().find(|served| Arc::ptr_eq(&served.client, client))
}

impl ClientProgress {
    fn commands(&mut self, sender: &mut UpdateSender) -> Result<usize, Broken> {
        let mut work = 0;
        while work < PER_CLIENT && sender.has_room(self.client.lane) {
            let Some(slot) = self.client.shared.next_command(&mut self.command_head) else { break };
            work += 1;
            if let Some(slot) = slot {
                self.send_slot(sender, slot, true)?;
            }
        }
        Ok(work)
    }

    fn updates(&mut self, sender: &mut UpdateSender) -> Result<usize, Broken> {
        let mut work = 0;
        while work < PER_CLIENT && sender.has_room(self.client.lane) {
            let Some(slot) = self.client.shared.next_data(0, &mut self.data_head) else { break };
            work += 1;
            if let Some(slot) = slot {
                self.send_slot(sender, slot, false)?;
            }
        }
        Ok(work)
    }

    /// Sends what an application has written for a slot: new bytes of its send ring, then its lines.
    fn send_slot(&mut self, sender: &mut UpdateSender, slot: Slot, command: bool) -> Result<(), Broken> {
        let (client, raw) = (&self.client, slot.raw());
        let region = &client.shared.region;
        // Loads the words in the order in which a stack would.
        let line = region.command(slot).load();
        let options = region.options(slot).load();
        let words = region.app(slot).load();
        let sent = self.slots.entry(raw).or_default();
        if sent.generation != words[app_word::GENERATION] {
            (sent.generation, sent.tail) = (words[app_word::GENERATION], 0);
        }
        let (tail, bytes) = (words[app_word::TX_TAIL], region.geometry().tx_bytes);
        let fresh = tail.wrapping_sub(sent.tail);
        // An impossible tail is sent unchanged. The stack validates it.
        if fresh <= bytes {
            let at = (key(client.index), u64::from(raw) * u64::from(bytes));
            sender.copy(client.lane, at, region.tx(slot), (sent.tail, fresh))?;
        }
        (sent.tail, sent.head) = (tail, words[app_word::RX_HEAD]);
        let index = client.index;
        if command {
            sent.holder = line[0];
            return sender.send(client.lane, &Update::Command { index, slot: raw, app: words, options, command: line });
        }
        sender.send(client.lane, &Update::App { index, slot: raw, app: words })
    }

    /// A process has ended: the server must know which commands do not depend on it any more.
    fn send_released(&mut self, sender: &mut UpdateSender, process: u32) -> Result<(), Broken> {
        let region = Arc::clone(&self.client.shared.region);
        let held = self.slots.iter().filter(|(_, sent)| sent.holder == process).map(|(raw, _)| *raw);
        for slot in held.collect::<Vec<_>>().into_iter().filter_map(|raw| region.slot(raw)) {
            if region.command(slot).holder.load(Ordering::Relaxed) != process {
                self.send_slot(sender, slot, true)?;
            }
        }
        Ok(())
    }

    /// The last process has ended: sends what was written last.
    fn send_all(&mut self, sender: &mut UpdateSender) -> Result<(), Broken> {
        let client = Arc::clone(&self.client);
        let in_use = |slot: &Slot| client.shared.region.stack(*slot).state.load(Ordering::Acquire) != state::FREE;
        for slot in client.served.slots().filter(in_use) {
            self.send_slot(sender, slot, false)?;
        }
        Ok(())
    }
}
