//! The host's side: a stack to the service.

mod rx;
mod shared;
mod tx;

use self::rx::ClientRx;
use self::shared::{ClientJob, RemoteClient, Shared, written};
use self::tx::ClientTx;
use crate::jobs::JobQueue;
use crate::layout::{CLIENTS, key, lane};
use crate::link::{Broken, Link, inbox};
use crate::transfer::UpdateSender;
use crate::update::Update;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;
use towpath_forward::host::calls::{ANSWER, StackCalls};
use towpath_forward::host::clients::{ClientTable, HostClient};
use towpath_forward::host::crash_cleanup;
use towpath_forward::lock::lock;
use towpath_forward::message::{ToHost, ToStack};
use towpath_forward::pending::PendingRequests;
use towpath_ring::Geometry;
use towpath_ring::layout::VERSION;
use towpath_ring::span::Span;
use towpath_runtime::clients::ClientShared;
use towpath_runtime::events::EventOut;
use towpath_runtime::mailbox::Doorbell;
use towpath_runtime::reservation::Reservation;
use towpath_runtime::thread::{epoll_with, watch};
use towpath_runtime::{
    AdmissionPolicy, ClientId, ClientMemory, ClientSetup, Executed, PairHandle, SocketStatus, Stack, Status,
    WorkerCount,
};

/// Why a server cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The host's side cannot be set up.
    #[error("the remote stack: {0}")]
    Start(#[from] io::Error),
    /// The server cannot be reached, or is not the one that is meant.
    #[error("the remote stack: {0}: {1}")]
    Connect(String, Broken),
    /// The link has ended.
    #[error("the remote stack: {0}")]
    Broken(#[from] Broken),
    /// The server does not serve.
    #[error("the remote stack does not serve: {0}")]
    Refused(String),
}

/// The kernel stack on another host, as the service sees it.
pub struct Remote {
    shared: Arc<Shared>,
    last_client: AtomicU32,
    threads: Vec<JoinHandle<()>>,
    release: String,
}

impl Remote {
    /// Greets the server, and waits until it serves.
    pub fn start(
        link: Arc<dyn Link>,
        geometry: Geometry,
        guard: Box<dyn AdmissionPolicy>,
    ) -> Result<Self, RemoteError> {
        let (outbox, inbox) = inbox::open(&link)?;
        let doorbell = Doorbell::new()?;
        let shared = Arc::new(Shared {
            table: ClientTable::new(CLIENTS),
            clients: RwLock::default(),
            jobs: JobQueue::default(),
            epoll: epoll_with(&doorbell)?,
            doorbell,
            watched: Mutex::default(),
            pending: PendingRequests::default(),
            stopping: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            link,
        });
        let (first, hello) = sync_channel(1);
        let receiver = ClientRx::new(Arc::clone(&shared), guard, first);
        // From here on, dropping the value ends the stack.
        let mut stack = Self { shared, last_client: AtomicU32::new(0), threads: Vec::new(), release: String::new() };
        let spawn = |name: &str| std::thread::Builder::new().name(name.into());
        stack.threads.push(spawn("remote-rx").spawn(move || receiver.run(inbox))?);
        let mut sender = UpdateSender::new(outbox);
        sender.send(0, &Update::Greeting { version: VERSION, geometry })?;
        let transmitter = ClientTx::new(Arc::clone(&stack.shared), sender);
        stack.threads.push(spawn("remote-tx").spawn(move || transmitter.run())?);
        stack.release = match hello.recv_timeout(ANSWER) {
            Ok(Ok(ToHost::Hello { version: VERSION, release })) => release,
            Ok(Ok(ToHost::Hello { .. })) => return Err(RemoteError::Refused("it is of another version".into())),
            Ok(Ok(ToHost::Broken { why })) => return Err(RemoteError::Refused(why)),
            Ok(Err(why)) => return Err(why.into()),
            Ok(Ok(_)) | Err(RecvTimeoutError::Timeout) => return Err(RemoteError::Refused("it says nothing".into())),
            Err(RecvTimeoutError::Disconnected) => return Err(Broken::Ended.into()),
        };
        tracing::info!(release = stack.release, "the remote stack serves");
        Ok(stack)
    }

    /// The release of the server's kernel.
    pub fn release(&self) -> &str {
        &self.release
    }

    fn set_context(&self, client: ClientId, context: u32, doorbell: Option<OwnedFd>) {
        let Some(client) = self.shared.find(client) else { return };
        let mut out = lock(&client.out);
        client.served.set_context(context, doorbell);
        out.set_context(context as usize, client.served.doorbell(context));
    }
    fn is_dead(&self) -> bool {
        self.shared.dead.load(Ordering::Acquire)
    }
    /// Takes a client in. The server does not know it yet.
    fn enter(&self, setup: ClientSetup, index: u32) -> io::Result<Arc<RemoteClient>> {
        let id = ClientId(self.last_client.fetch_add(1, Ordering::Relaxed).wrapping_add(1));
        let of = (setup.uid, setup.pid, setup.name.clone());
        let served = Arc::new(HostClient::new(id, Arc::clone(&setup.region), of, None));
        self.shared.link.register(key(index), Span::of_receives(&setup.region))?;
        for doorbell in &setup.doorbells {
            watch(&self.shared.epoll, doorbell.as_fd(), true)?;
        }
        let lane = lane(index, self.shared.link.lanes());
        let shared = ClientShared::new(id, index, setup);
        let client = Arc::new(RemoteClient { served, shared, out: Mutex::new(EventOut::new(0)), lane, index });
        self.shared.table.assign(index, Arc::clone(&client.served));
        let mut clients = self.shared.clients.write().unwrap_or_else(PoisonError::into_inner);
        clients.insert(index, Arc::clone(&client));
        Ok(client)
    }
}

impl Stack for Remote {
    fn name(&self) -> &'static str {
        "remote"
    }
    /// The server may be in this very network namespace.
    fn shares_ports(&self) -> bool {
        true
    }
    fn client_memory(&self, geometry: Geometry) -> io::Result<ClientMemory> {
        if self.is_dead() {
            return Err(io::Error::from_raw_os_error(libc::ENETDOWN));
        }
        ClientMemory::new(geometry)
    }
    fn add_client(&self, setup: ClientSetup) -> io::Result<ClientId> {
        let full = || io::Error::from_raw_os_error(libc::EUSERS);
        let index = self.shared.table.take_free().ok_or_else(full)?;
        let (uid, pid, name) = (setup.uid, setup.pid, setup.name.clone());
        let client = self.enter(setup, index).inspect_err(|_| self.shared.forget(index))?;
        let errno = match self.shared.ask(ToStack::Add { index, uid, pid, name }, ANSWER) {
            Some(ToHost::Done) => {
                let id = client.served.id;
                self.shared.queue_job(ClientJob::Serve(client));
                return Ok(id);
            }
            Some(ToHost::Failed { errno }) => errno,
            // The server may still add the client later, so the index stays in use.
            _ => return Err(io::Error::from_raw_os_error(libc::ENETDOWN)),
        };
        self.shared.forget(index);
        Err(io::Error::from_raw_os_error(errno))
    }
    fn add_context(&self, client: ClientId, context: u32, doorbell: OwnedFd) {
        self.set_context(client, context, Some(doorbell));
    }
    fn drop_context(&self, client: ClientId, context: u32) {
        self.set_context(client, context, None);
    }
    fn reserve(&self, client: ClientId, slot: u32, seq: u32, reservation: Reservation) {
        let Some(client) = self.shared.find(client) else { return };
        if self.is_dead() {
            return;
        }
        client.served.reserve(slot, seq, reservation.held);
        self.shared.queue_job(ClientJob::Message(
            client.lane,
            written(0, &ToStack::Reserve { index: client.index, slot, seq }),
        ));
    }
    fn hangup(&self, client: ClientId, slot: u32, generation: u32) {
        let Some(client) = self.shared.find(client) else { return };
        if self.is_dead() {
            return crash_cleanup::close_slot(&client.served, slot, generation);
        }
        let message = written(0, &ToStack::Hangup { index: client.index, slot, generation });
        self.shared.queue_job(ClientJob::Hangup(client, slot, message));
    }
    fn departed(&self, client: ClientId, process: u32) {
        if let Some(client) = self.shared.find(client) {
            let message = written(0, &ToStack::Departed { index: client.index, process });
            self.shared.queue_job(ClientJob::Departed(client, process, message));
        }
    }
    fn remove_client(&self, client: ClientId) {
        let Some(client) = self.shared.find(client) else { return };
        if self.is_dead() {
            return self.shared.forget(client.index);
        }
        // The index is free when the server says so.
        let message = written(0, &ToStack::Remove { index: client.index });
        self.shared.queue_job(ClientJob::Remove(client, message));
    }
    fn pair(&self, _: ClientId, _: u32, _: u32) -> Option<PairHandle> {
        None
    }
    fn connections(&self) -> Vec<SocketStatus> {
        self.shared.connections()
    }
    fn status(&self) -> Status {
        self.shared.status()
    }
    fn workers(&self) -> WorkerCount {
        self.shared.workers().unwrap_or(WorkerCount { running: 0, most: 0 })
    }
    fn set_workers(&self, running: usize) -> io::Result<()> {
        self.shared.set_workers(u32::try_from(running).unwrap_or(u32::MAX))
    }
    /// Its kernel knows its routes itself.
    fn network_changed(&self) {}
    fn policy_changed(&self) {
        self.shared.policy_changed();
    }
    fn execute(&self, words: &[String]) -> io::Result<Executed> {
        self.shared.execute(words)
    }
    fn stop(self: Box<Self>) {
        drop(self);
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.link.close();
        for thread in self.threads.drain(..) {
            // When the server is gone, both threads sleep on the same doorbell, which wakes one at a time.
            while !thread.is_finished() {
                self.shared.doorbell.notify_always();
                std::thread::sleep(Duration::from_millis(1));
            }
            if thread.join().is_err() {
                tracing::error!("a thread of the remote stack's host side ended by a panic");
            }
        }
    }
}
