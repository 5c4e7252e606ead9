//! This host's side of clients that can be served here and in the card.

use crate::inner::Inner;
use crate::places::{Served, lock};
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use towpath_ring::Slot;
use towpath_ring::wake::{doorbell, futex_wake, futex_wake_one, ring};
use towpath_stack::{ClientId, Exceeded, Far, Guard, Limit, Verdict};

/// Wakes a client while this host serves it, and sees when that has forgotten it.
pub struct Near {
    /// The client.
    pub client: Arc<Served>,
    /// The card, in whose memory its region is.
    pub inner: Arc<Inner>,
    /// Its place there.
    pub place: u32,
}

impl Far for Near {
    fn wake(&self, slot: Slot, first: bool) {
        let word = &self.client.region.stack(slot).event_seq;
        if first { futex_wake_one(word) } else { futex_wake(word) }
    }
    fn ring(&self, context: u32) {
        if let Some(bell) = self.client.bell(context) {
            ring(bell.as_fd());
        }
    }
}

impl Drop for Near {
    fn drop(&mut self) {
        self.inner.places.left(self.place);
    }
}

/// The policy, which knows clients by the numbers that they have wherever they are.
pub struct Renamed {
    /// The policy.
    pub guard: Box<dyn Guard>,
    /// Those numbers, by the ones on this host.
    pub names: Arc<Mutex<HashMap<ClientId, ClientId>>>,
}

impl Renamed {
    fn name(&self, near: ClientId) -> Option<ClientId> {
        lock(&self.names).get(&near).copied()
    }
}

/// Who is not known may nothing.
const UNKNOWN: Verdict = Verdict::Refuse(libc::EACCES);

impl Guard for Renamed {
    fn connect(&mut self, client: ClientId, remote: SocketAddr) -> Verdict {
        self.name(client).map_or(UNKNOWN, |client| self.guard.connect(client, remote))
    }
    fn listen(&mut self, client: ClientId, local: SocketAddr, dual: bool) -> Verdict {
        self.name(client).map_or(UNKNOWN, |client| self.guard.listen(client, local, dual))
    }
    fn accept(&mut self, client: ClientId, local: SocketAddr, remote: SocketAddr) -> Verdict {
        self.name(client).map_or(UNKNOWN, |client| self.guard.accept(client, local, remote))
    }
    fn limit(&mut self, client: ClientId) -> Option<Limit> {
        self.name(client).and_then(|client| self.guard.limit(client))
    }
    fn exceeded(&mut self, client: ClientId, limit: &Limit, what: Exceeded) {
        if let Some(client) = self.name(client) {
            self.guard.exceeded(client, limit, what);
        }
    }
}

/// Passes on to the card what clients ring, while it serves: their doorbells are this host's.
pub struct Bells {
    epoll: Arc<OwnedFd>,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Bells {
    /// Watches nobody yet.
    pub fn start(inner: Arc<Inner>) -> io::Result<Self> {
        let (epoll, stop) = (Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?), doorbell()?);
        epoll::add(&*epoll, &stop, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
        let watched = Arc::clone(&epoll);
        let pass_on = move || {
            let mut events = Vec::with_capacity(64);
            loop {
                events.clear();
                let woken = epoll::wait(&*watched, rustix::buffer::spare_capacity(&mut events), None);
                let ended = woken.is_err_and(|error| error != rustix::io::Errno::INTR);
                if ended || events.iter().any(|event| event.data.u64() == 1) {
                    return;
                }
                if inner.serves.load(Ordering::Acquire) {
                    ring(inner.lines.doorbells.as_fd());
                }
            }
        };
        let thread = std::thread::Builder::new().name("card-bells".into()).spawn(pass_on)?;
        Ok(Self { epoll, stop, thread: Some(thread) })
    }
    /// One more doorbell; it is forgotten when nobody has it open any more.
    pub fn watch(&self, doorbell: BorrowedFd<'_>) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(&*self.epoll, doorbell, epoll::EventData::new_u64(0), flags)?)
    }
}

impl Drop for Bells {
    fn drop(&mut self) {
        ring(self.stop.as_fd());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("a thread of the card ended by a panic");
        }
    }
}
