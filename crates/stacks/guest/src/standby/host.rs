//! The host's side of clients that can be served by this host and by the guest.

use crate::shared::Shared;
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use towpath_forward::host::clients::HostClient;
use towpath_forward::lock::lock;
use towpath_ring::Slot;
use towpath_ring::wake::{doorbell, notify};
use towpath_runtime::{AdmissionPolicy, ClientId, Exceeded, Limit, RemoteWaker, Verdict};

/// Wakes a client while this host serves it. Dropped when the host's stack has forgotten the client.
pub struct HostWaker {
    /// The client.
    pub client: Arc<HostClient>,
    /// The guest whose memory holds the client's region.
    pub shared: Arc<Shared>,
    /// Index of the region.
    pub index: u32,
}

impl RemoteWaker for HostWaker {
    fn wake(&self, slot: Slot, first: bool) {
        self.client.wake(slot, first);
    }
    fn notify(&self, context: u32) {
        self.client.notify_context(context);
    }
}

impl Drop for HostWaker {
    fn drop(&mut self) {
        self.shared.table.forgotten(self.index);
    }
}

/// The policy, asked under the numbers that clients keep wherever they are.
pub struct TranslatingGuard {
    /// The policy.
    pub guard: Box<dyn AdmissionPolicy>,
    /// These numbers, by the numbers of this host's stack.
    pub ids: Arc<Mutex<HashMap<ClientId, ClientId>>>,
}

impl TranslatingGuard {
    fn service_id(&self, host_id: ClientId) -> Option<ClientId> {
        lock(&self.ids).get(&host_id).copied()
    }
}

/// A client that is not known may do nothing.
const UNKNOWN: Verdict = Verdict::Refuse(libc::EACCES);

impl AdmissionPolicy for TranslatingGuard {
    fn connect(&mut self, client: ClientId, remote: SocketAddr) -> Verdict {
        self.service_id(client).map_or(UNKNOWN, |client| self.guard.connect(client, remote))
    }
    fn listen(&mut self, client: ClientId, local: SocketAddr, dual: bool) -> Verdict {
        self.service_id(client).map_or(UNKNOWN, |client| self.guard.listen(client, local, dual))
    }
    fn accept(&mut self, client: ClientId, local: SocketAddr, remote: SocketAddr) -> Verdict {
        self.service_id(client).map_or(UNKNOWN, |client| self.guard.accept(client, local, remote))
    }
    fn limit(&mut self, client: ClientId) -> Option<Limit> {
        self.service_id(client).and_then(|client| self.guard.limit(client))
    }
    fn exceeded(&mut self, client: ClientId, limit: &Limit, what: Exceeded) {
        if let Some(client) = self.service_id(client) {
            self.guard.exceeded(client, limit, what);
        }
    }
}

/// Forwards notifications of clients to the guest while it serves. Their doorbells belong to this host.
pub struct DoorbellForwarder {
    epoll: Arc<OwnedFd>,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl DoorbellForwarder {
    /// Starts without any doorbell.
    pub fn start(shared: Arc<Shared>) -> io::Result<Self> {
        let (epoll, stop) = (Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?), doorbell()?);
        epoll::add(&*epoll, &stop, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
        let watched = Arc::clone(&epoll);
        let forward = move || {
            let mut events = Vec::with_capacity(64);
            loop {
                events.clear();
                let woken = epoll::wait(&*watched, rustix::buffer::spare_capacity(&mut events), None);
                let ended = woken.is_err_and(|error| error != rustix::io::Errno::INTR);
                if ended || events.iter().any(|event| event.data.u64() == 1) {
                    return;
                }
                if shared.serves.load(Ordering::Acquire) {
                    notify(shared.lines.doorbells.as_fd());
                }
            }
        };
        let thread = std::thread::Builder::new().name("guest-doorbells".into()).spawn(forward)?;
        Ok(Self { epoll, stop, thread: Some(thread) })
    }
    /// Adds a doorbell. It is removed when no process has it open any more.
    pub fn watch(&self, doorbell: BorrowedFd<'_>) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(&*self.epoll, doorbell, epoll::EventData::new_u64(0), flags)?)
    }
}

impl Drop for DoorbellForwarder {
    fn drop(&mut self) {
        notify(self.stop.as_fd());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("a thread of the guest ended by a panic");
        }
    }
}
