//! The host's receiving thread. It publishes what the stack has written, passes answers on, and asks the policy. When
//! the link has ended, it resets the clients' sockets.

use super::shared::{RemoteClient, Shared};
use crate::Broken;
use crate::link::inbox::Inbox;
use crate::transfer::{HEARTBEAT, MessageParts, receive};
use crate::update::Update;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use towpath_forward::host::crash_cleanup::{self, Listeners};
use towpath_forward::lock::lock;
use towpath_forward::message::ToHost;
use towpath_ring::Slot;
use towpath_ring::codec::{StackLineWords, app_word, stack_word};
use towpath_ring::lines::{state, status};
use towpath_ring::wake::asks_for_room;
use towpath_runtime::AdmissionPolicy;
use towpath_runtime::thread::wait;

/// The receiving thread of the host's side.
pub struct ClientRx {
    shared: Arc<Shared>,
    guard: Box<dyn AdmissionPolicy>,
    /// Gets the server's first message, or why there is none.
    first: Option<SyncSender<Result<ToHost, Broken>>>,
    parts: MessageParts,
}

impl ClientRx {
    /// `first` gets the server's first message, or why there is none.
    pub fn new(
        shared: Arc<Shared>,
        guard: Box<dyn AdmissionPolicy>,
        first: SyncSender<Result<ToHost, Broken>>,
    ) -> Self {
        Self { shared, guard, first: Some(first), parts: MessageParts::default() }
    }

    /// Runs until the stack is stopped.
    pub fn run(mut self, mut inbox: Inbox) {
        let shared = Arc::clone(&self.shared);
        let why =
            receive(&*shared.link, &mut inbox, |lane, record| self.record(lane, record), || shared.doorbell.notify());
        if let Some(first) = self.first.take() {
            let _ = first.try_send(Err(why));
        } else if !shared.stopping.load(Ordering::Acquire) {
            tracing::error!("the remote stack is lost: {why}; its sockets are reset, and new ones fail");
        }
        clean_up(&shared);
    }

    fn record(&mut self, lane: u32, record: Update) -> Result<(), Broken> {
        match record {
            Update::Beat => {}
            Update::Part { last, bytes } => {
                if let Some((number, message)) = self.parts.message(lane, last, &bytes)? {
                    self.message(number, message);
                }
            }
            Update::Stack { shown, .. } if shown[stack_word::STATE] > state::CLOSED => {
                return Err(Broken::Rules("there is no such state"));
            }
            Update::Stack { index, slot, shown } => {
                if let Some((client, slot)) = self.find(index, slot)? {
                    self.publish(&client, slot, &shown);
                }
            }
            Update::Info { index, slot, info, counts } => {
                if let Some((client, slot)) = self.find(index, slot)? {
                    client.shared.region.counts(slot).store(&counts);
                    client.shared.region.info(slot).store(&info);
                }
            }
            Update::Greeting { .. } | Update::App { .. } | Update::Command { .. } => {
                return Err(Broken::Rules("that is for the other side to hear"));
            }
        }
        Ok(())
    }

    /// The client of an index and its slot; `None` if the client is gone.
    fn find(&self, index: u32, raw: u32) -> Result<Option<(Arc<RemoteClient>, Slot)>, Broken> {
        let Some(client) = self.shared.client(index) else { return Ok(None) };
        let slot = client.shared.region.slot(raw).ok_or(Broken::Rules("there is no such slot"))?;
        Ok(Some((client, slot)))
    }

    /// Publishes the stack's line, and raises the events that follow from it.
    fn publish(&self, client: &RemoteClient, slot: Slot, words: &StackLineWords) {
        let shared = &client.shared;
        let (line, app) = (shared.region.stack(slot), shared.region.app(slot));
        let before = line.load();
        shared.words(slot).generation.store(words[stack_word::GENERATION], Ordering::Relaxed);
        line.store(words);
        let listens = words[stack_word::STATE] == state::LISTENING;
        let mut out = lock(&client.out);
        let urgent = |words: &StackLineWords| words[stack_word::STATUS] & status::URGENT != 0;
        if before[stack_word::URGENT] != words[stack_word::URGENT] || urgent(words) && !urgent(&before) {
            out.announce(shared, slot);
        }
        let differ = |table: std::ops::Range<usize>| before[table.clone()] != words[table];
        let (news, answered) =
            (differ(stack_word::RX_TAIL..stack_word::RESULT), differ(stack_word::RESULT..words.len()));
        if listens && before[stack_word::RX_TAIL] != words[stack_word::RX_TAIL] {
            out.offer(shared, slot);
            let mut watched = lock(&self.shared.watched);
            if !watched.contains(&(client.index, slot.raw())) {
                watched.push((client.index, slot.raw()));
                self.shared.doorbell.notify();
            }
        } else if news || listens || wants_room(shared, slot, app) {
            out.raise(shared, slot);
        } else if answered {
            // An answer is no event: only sleeping calls are woken.
            out.wake(shared, slot);
        }
        out.notify(shared);
    }

    fn message(&mut self, number: u32, message: ToHost) {
        let shared = &self.shared;
        match message {
            ToHost::Hello { .. } | ToHost::Broken { .. } => {
                if let Some(first) = self.first.take() {
                    let _ = first.try_send(Ok(message));
                }
            }
            ToHost::Freed { index, slot, seq } => {
                if let Some(client) = shared.table.get(index) {
                    client.release(slot, seq);
                }
            }
            ToHost::Left { index } => shared.forget(index),
            ToHost::Ask(question) => {
                if let Some(answer) = shared.table.decide(&mut *self.guard, question) {
                    shared.tell(number, &answer);
                }
            }
            answer => shared.pending.answer(number, answer),
        }
    }
}

/// True if the application waits for room, and a third of its send ring is free.
fn wants_room(client: &towpath_runtime::clients::ClientShared, slot: Slot, line: &towpath_ring::AppLine) -> bool {
    let asks = asks_for_room(&line.want);
    let bytes = client.region.geometry().tx_bytes;
    let queued = line.load()[app_word::TX_TAIL].wrapping_sub(client.region.stack(slot).tx_head.load(Ordering::Relaxed));
    asks && bytes.saturating_sub(queued) >= bytes / 3
}

/// The server is gone: resets its sockets, then answers commands.
fn clean_up(shared: &Arc<Shared>) {
    shared.dead.store(true, Ordering::SeqCst);
    shared.link.close();
    shared.doorbell.notify_always();
    let every = || {
        shared.clients.read().unwrap_or_else(std::sync::PoisonError::into_inner).values().cloned().collect::<Vec<_>>()
    };
    every().iter().for_each(|client| crash_cleanup::reset_all(&client.served, Listeners::End));
    shared.pending.clear();
    while !shared.stopping.load(Ordering::Acquire) {
        for client in every() {
            client.shared.region.data_queue(0).arm();
            crash_cleanup::answer_commands(&client.served);
        }
        wait(&shared.epoll, Some(HEARTBEAT.as_micros() as u64));
    }
}
