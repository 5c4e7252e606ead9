//! The thread that reads what comes from the other side: it shows applications what their stack has written, answers those who have asked, and
//! asks the policy. When the link is broken it ends what the other side has served.

use super::near::{Client, Inner};
use super::record::Record;
use super::wire::{BEAT, Parts, receive};
use crate::funeral::{self, Listeners};
use crate::message::FromCard;
use crate::places::lock;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::SyncSender;
use towpath_link::Broken;
use towpath_link::mail::Inbox;
use towpath_ring::Slot;
use towpath_ring::carry::{Shown, Told, app, shown};
use towpath_ring::lines::{state, status, want};
use towpath_stack::Guard;
use towpath_stack::thread::wait;

/// The thread.
pub struct Shower {
    inner: Arc<Inner>,
    guard: Box<dyn Guard>,
    /// Gets the other side's first word.
    first: Option<SyncSender<FromCard>>,
    parts: Parts,
}

impl Shower {
    /// `first` is given the other side's first word.
    pub fn new(inner: Arc<Inner>, guard: Box<dyn Guard>, first: SyncSender<FromCard>) -> Self {
        Self { inner, guard, first: Some(first), parts: Parts::default() }
    }

    /// Until the end.
    pub fn run(mut self, mut inbox: Inbox) {
        let inner = Arc::clone(&self.inner);
        let why = receive(&*inner.link, &mut inbox, |lane, record| self.record(lane, record), || inner.bell.ring());
        self.first = None;
        if !inner.stopping.load(Ordering::Acquire) {
            tracing::error!("the far stack is lost: {why}; its sockets are reset, and new ones fail");
        }
        mourn(&inner);
    }

    fn record(&mut self, lane: u32, record: Record) -> Result<(), Broken> {
        match record {
            Record::Beat => {}
            Record::Part { last, bytes } => {
                if let Some((number, message)) = self.parts.message(lane, last, &bytes)? {
                    self.message(number, message);
                }
            }
            Record::Stack { shown, .. } if shown[shown::STATE] > state::CLOSED => {
                return Err(Broken::Rules("there is no such state"));
            }
            Record::Stack { place, slot, shown } => {
                if let Some((client, slot)) = self.find(place, slot)? {
                    self.show(&client, slot, &shown);
                }
            }
            Record::Info { place, slot, told } => {
                if let Some((client, slot)) = self.find(place, slot)? {
                    tell(&client, slot, &told);
                }
            }
            Record::Greeting { .. } | Record::App { .. } | Record::Command { .. } => {
                return Err(Broken::Rules("that is for the other side to hear"));
            }
        }
        Ok(())
    }

    /// A client and its slot; `None` = the client is gone.
    fn find(&self, place: u32, raw: u32) -> Result<Option<(Arc<Client>, Slot)>, Broken> {
        let Some(client) = self.inner.client(place) else { return Ok(None) };
        let slot = client.shared.region.slot(raw).ok_or(Broken::Rules("there is no such slot"))?;
        Ok(Some((client, slot)))
    }

    /// Shows the stack's line, and raises the events of what is new in it.
    fn show(&self, client: &Client, slot: Slot, words: &Shown) {
        let shared = &client.shared;
        let (line, app) = (shared.region.stack(slot), shared.region.app(slot));
        let before = line.take_along();
        shared.words(slot).generation.store(words[shown::GENERATION], Ordering::Relaxed);
        line.bring(words);
        let listens = words[shown::STATE] == state::LISTENING;
        let mut out = lock(&client.out);
        let urgent = |words: &Shown| words[shown::STATUS] & status::URGENT != 0;
        if before[shown::URGENT] != words[shown::URGENT] || urgent(words) && !urgent(&before) {
            out.announce(shared, slot);
        }
        let differ = |places: std::ops::Range<usize>| before[places.clone()] != words[places];
        let (news, answered) = (differ(shown::RX_TAIL..shown::RESULT), differ(shown::RESULT..words.len()));
        if listens && before[shown::RX_TAIL] != words[shown::RX_TAIL] {
            out.offer(shared, slot);
            let mut watched = lock(&self.inner.watched);
            if !watched.contains(&(client.place, slot.raw())) {
                watched.push((client.place, slot.raw()));
                self.inner.bell.ring();
            }
        } else if news || listens || wants_room(shared, slot, app) {
            out.raise(shared, slot);
        } else if answered {
            // No edge to who watches the slot.
            out.wake(shared, slot);
        }
        out.ring(shared);
    }

    fn message(&mut self, number: u32, message: FromCard) {
        let inner = &self.inner;
        match message {
            FromCard::Hello { .. } | FromCard::Broken { .. } => {
                if let Some(first) = self.first.take() {
                    let _ = first.try_send(message);
                }
            }
            FromCard::Freed { place, slot, seq } => {
                if let Some(client) = inner.places.of(place) {
                    client.free(slot, seq);
                }
            }
            FromCard::Left { place } => inner.forget(place),
            FromCard::Ask(question) => {
                if let Some(answer) = inner.places.decide(&mut *self.guard, question) {
                    inner.tell(number, &answer);
                }
            }
            answer => {
                if let Some(reply) = lock(&inner.answers).remove(&number) {
                    let _ = reply.try_send(answer);
                }
            }
        }
    }
}

fn tell(client: &Client, slot: Slot, told: &Told) {
    client.shared.region.info(slot).bring(told);
}

/// Does the application wait for room, and is a third of its send ring free?
fn wants_room(client: &towpath_stack::clients::ClientShared, slot: Slot, line: &towpath_ring::AppLine) -> bool {
    // Against the application's "ask, then look again": either it sees the new `tx_head` or we see that it asks.
    fence(Ordering::SeqCst);
    let bytes = client.region.geometry().tx_bytes;
    let queued =
        line.take_along()[app::TX_TAIL].wrapping_sub(client.region.stack(slot).tx_head.load(Ordering::Relaxed));
    line.want.load(Ordering::Relaxed) & want::WRITABLE != 0 && bytes.saturating_sub(queued) >= bytes / 3
}

/// The other side is gone: ends its sockets, then answers what applications ask for.
fn mourn(inner: &Arc<Inner>) {
    inner.dead.store(true, Ordering::SeqCst);
    inner.link.close();
    inner.bell.strike();
    let every = || {
        inner.clients.read().unwrap_or_else(std::sync::PoisonError::into_inner).values().cloned().collect::<Vec<_>>()
    };
    every().iter().for_each(|client| funeral::bury(&client.served, Listeners::End));
    lock(&inner.answers).clear();
    while !inner.stopping.load(Ordering::Acquire) {
        for client in every() {
            client.shared.region.doors(0).arm();
            funeral::answer(&client.served);
        }
        wait(&inner.epoll, Some(BEAT.as_micros() as u64));
    }
}
