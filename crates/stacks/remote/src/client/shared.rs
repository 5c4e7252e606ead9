//! State that the threads of the host's side share.

use crate::jobs::JobQueue;
use crate::layout::key;
use crate::link::Link;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use towpath_forward::host::calls::StackCalls;
use towpath_forward::host::clients::{ClientTable, HostClient};
use towpath_forward::message::{self, ToHost, ToStack};
use towpath_forward::pending::PendingRequests;
use towpath_runtime::ClientId;
use towpath_runtime::clients::ClientShared;
use towpath_runtime::events::EventOut;
use towpath_runtime::mailbox::Doorbell;

/// A client as the host's side knows it.
pub struct RemoteClient {
    /// The host's state of it.
    pub served: Arc<HostClient>,
    /// The state that every stack has of it.
    pub shared: ClientShared,
    /// Raises its events.
    pub out: Mutex<EventOut>,
    /// Its lane.
    pub lane: u32,
    /// Its index.
    pub index: u32,
}

/// A job for the sending thread.
pub enum ClientJob {
    /// Send a message.
    Message(u32, Vec<u8>),
    /// Send for this client from now on.
    Serve(Arc<RemoteClient>),
    /// Send the slot's state, then the message.
    Hangup(Arc<RemoteClient>, u32, Vec<u8>),
    /// Send the slots that a process has let go, then the message.
    Departed(Arc<RemoteClient>, u32, Vec<u8>),
    /// Send all slots, then the message, and stop sending for the client.
    Remove(Arc<RemoteClient>, Vec<u8>),
}

/// State that the threads share.
pub struct Shared {
    /// The link to the server.
    pub link: Arc<dyn Link>,
    /// The clients, by index.
    pub table: ClientTable,
    /// The same clients with the state of this stack.
    pub clients: RwLock<HashMap<u32, Arc<RemoteClient>>>,
    /// Jobs for the sending thread.
    pub jobs: JobQueue<ClientJob>,
    /// Notified for jobs.
    pub doorbell: Arc<Doorbell>,
    /// Watches the doorbell and the clients' doorbells.
    pub epoll: OwnedFd,
    /// Listeners with connections that were not accepted yet. Applications accept without a notification.
    pub watched: Mutex<Vec<(u32, u32)>>,
    /// Requests that wait for an answer.
    pub pending: PendingRequests<ToHost>,
    /// The stack is to end.
    pub stopping: AtomicBool,
    /// The server is gone.
    pub dead: AtomicBool,
}

impl Shared {
    /// The client of an index.
    pub fn client(&self, index: u32) -> Option<Arc<RemoteClient>> {
        self.clients.read().unwrap_or_else(PoisonError::into_inner).get(&index).cloned()
    }
    /// Forgets the client of an index.
    pub fn forget(&self, index: u32) {
        self.clients.write().unwrap_or_else(PoisonError::into_inner).remove(&index);
        self.link.deregister(key(index));
        self.table.free(index);
    }
    pub fn queue_job(&self, job: ClientJob) {
        if self.jobs.push(job) {
            self.doorbell.notify();
        } else {
            // The receiving thread sees that, and cleans up.
            self.link.close();
        }
    }
    /// Sends a message on the lane of messages that concern no client.
    pub fn tell(&self, number: u32, message: &ToStack) {
        self.queue_job(ClientJob::Message(0, written(number, message)));
    }
    pub fn find(&self, id: ClientId) -> Option<Arc<RemoteClient>> {
        self.table.find(id).and_then(|(index, _)| self.client(index))
    }
}

impl StackCalls for Shared {
    fn ask(&self, request: ToStack, timeout: Duration) -> Option<ToHost> {
        self.pending.ask(timeout, |number| {
            // `dead` is set before the waiting requests are cleared, and this one waits already.
            let alive = !self.dead.load(Ordering::SeqCst);
            if alive {
                self.tell(number, &request);
            }
            alive
        })
    }
    fn table(&self) -> &ClientTable {
        &self.table
    }
}

pub fn written(number: u32, message: &ToStack) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Only a message that is too long fails, and no request is.
    let _ = message::send(&mut bytes, number, message);
    bytes
}
