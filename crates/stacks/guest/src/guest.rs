//! The guest as the service sees it: a stack.

use crate::config::{GuestConfig, GuestError};
use crate::shared::Shared;
use crate::{machine, relay};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use towpath_forward::file_id::FileId;
use towpath_forward::host::calls::{ANSWER, StackCalls};
use towpath_forward::host::clients::HostClient;
use towpath_forward::host::crash_cleanup;
use towpath_forward::lock::lock;
use towpath_forward::message::{ToHost, ToStack};
use towpath_ring::{Geometry, wake};
use towpath_runtime::reservation::Reservation;
use towpath_runtime::{
    AdmissionPolicy, ClientId, ClientMemory, ClientSetup, Executed, Files, PairHandle, SharedFile, SocketStatus, Stack,
    Status, WorkerCount,
};

/// A running guest.
pub struct Guest {
    pub(crate) shared: Arc<Shared>,
    last_client: AtomicU32,
    threads: Vec<JoinHandle<()>>,
}

impl Guest {
    /// Starts a guest and waits until it serves. If it dies later, it is started again. `before_threads` is called
    /// before the first thread. From then on this process need not start programs.
    pub fn start(
        config: GuestConfig,
        guard: Box<dyn AdmissionPolicy>,
        before_threads: impl FnOnce(),
    ) -> Result<Self, GuestError> {
        let shared = Arc::new(Shared::new(config, guard)?);
        before_threads();
        // From here on, dropping the value ends the guest.
        let mut guest = Self { shared, last_client: AtomicU32::new(0), threads: Vec::new() };
        guest.shared.boot()?;
        let relaying = Arc::clone(&guest.shared);
        let relay = std::thread::Builder::new().name("guest-relay".into()).spawn(move || relay::run(&relaying))?;
        guest.threads.push(relay);
        Ok(guest)
    }

    /// The number of the next client.
    pub(crate) fn next_client(&self) -> ClientId {
        ClientId(self.last_client.fetch_add(1, Ordering::Relaxed).wrapping_add(1))
    }
    /// The release of its kernel: `6.1.176`.
    pub fn release(&self) -> String {
        lock(&self.shared.release).clone()
    }
    /// Process id of its kernel.
    pub fn pid(&self) -> u32 {
        lock(&self.shared.machine).as_ref().map_or(0, |machine| machine.pid)
    }
    /// Times of round trips, ascending: through shared memory while both sides spin, and by messages.
    pub fn round_trips(&self, times: u32) -> io::Result<(Vec<Duration>, Vec<Duration>)> {
        let memory = &self.shared.memory;
        let asking = Arc::clone(&self.shared);
        // The guest echoes as long as the word keeps changing.
        let echo = std::thread::spawn(move || asking.ask(ToStack::Echo { quiet_us: 500_000 }, ANSWER));
        let mut spinning = Vec::new();
        for value in 1..=times {
            let since = Instant::now();
            memory.ping(value);
            while memory.pong() != value {
                if since.elapsed() > ANSWER {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                std::hint::spin_loop();
            }
            spinning.push(since.elapsed());
        }
        let _ = echo.join();
        let mut messages = Vec::new();
        for _ in 0..times {
            let since = Instant::now();
            self.shared.ask(ToStack::Echo { quiet_us: 0 }, ANSWER).ok_or(io::ErrorKind::TimedOut)?;
            messages.push(since.elapsed());
        }
        spinning.sort();
        messages.sort();
        Ok((spinning, messages))
    }
}

impl Stack for Guest {
    fn name(&self) -> &'static str {
        self.shared.kind().name()
    }
    fn geometry(&self) -> Option<Geometry> {
        Some(self.shared.memory.geometry())
    }
    fn client_memory(&self, _: Geometry) -> io::Result<ClientMemory> {
        let _life = self.shared.life();
        if self.shared.dead.load(Ordering::Acquire) {
            return Err(io::Error::from_raw_os_error(libc::ENETDOWN));
        }
        // One line of the guest for both. The handle is an open file description of its own, so flags that its holder
        // sets concern no other.
        self.shared.allocate_client(|| machine::doorbell(&self.shared.lines.doorbells))
    }
    fn add_client(&self, setup: ClientSetup) -> io::Result<ClientId> {
        let _life = self.shared.life();
        let index = self.shared.memory.place(setup.region.offset());
        let index = index.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        self.shared.serve_only(index, setup.uid)?;
        let id = self.next_client();
        let (uid, pid, name) = (setup.uid, setup.pid, setup.name);
        let client = HostClient::new(id, setup.region, (uid, pid, name.clone()), setup.lease);
        self.shared.table.assign(index, Arc::new(client));
        match self.shared.ask(ToStack::Add { index, uid, pid, name }, ANSWER) {
            Some(ToHost::Done) => Ok(id),
            Some(ToHost::Failed { errno }) => {
                self.shared.table.free(index);
                Err(io::Error::from_raw_os_error(errno))
            }
            // The guest may still add the client later, so the index stays in use.
            _ => Err(io::Error::from_raw_os_error(libc::ENETDOWN)),
        }
    }
    fn add_context(&self, client: ClientId, context: u32, doorbell: OwnedFd) {
        let _life = self.shared.life();
        let Some((index, client)) = self.shared.table.find(client) else { return };
        client.set_context(context, Some(doorbell));
        self.shared.ask(ToStack::Context { index, context, open: true }, ANSWER);
    }
    fn drop_context(&self, client: ClientId, context: u32) {
        let _life = self.shared.life();
        let Some((index, client)) = self.shared.table.find(client) else { return };
        self.shared.ask(ToStack::Context { index, context, open: false }, ANSWER);
        client.set_context(context, None);
    }
    fn reserve(&self, client: ClientId, slot: u32, seq: u32, reservation: Reservation) {
        let _life = self.shared.life();
        let Some((index, client)) = self.shared.table.find(client) else { return };
        if self.shared.dead.load(Ordering::Acquire) {
            return;
        }
        client.reserve(slot, seq, reservation.held);
        self.shared.tell(0, &ToStack::Reserve { index, slot, seq });
    }
    fn hangup(&self, client: ClientId, slot: u32, generation: u32) {
        let _life = self.shared.life();
        let Some((index, client)) = self.shared.table.find(client) else { return };
        if self.shared.dead.load(Ordering::Acquire) {
            return crash_cleanup::close_slot(&client, slot, generation);
        }
        self.shared.tell(0, &ToStack::Hangup { index, slot, generation });
    }
    fn departed(&self, client: ClientId, process: u32) {
        let _life = self.shared.life();
        if let Some((index, _)) = self.shared.table.find(client) {
            self.shared.tell(0, &ToStack::Departed { index, process });
        }
    }
    fn remove_client(&self, client: ClientId) {
        let _life = self.shared.life();
        let Some((index, client)) = self.shared.table.find(client) else { return };
        if self.shared.dead.load(Ordering::Acquire) {
            return self.shared.table.free(index);
        }
        client.vacate();
        // The index is free when the guest says so.
        self.shared.tell(0, &ToStack::Remove { index });
    }
    fn files(&self) -> Files {
        Files::Any
    }
    fn add_file(&self, client: ClientId, shared: SharedFile) -> io::Result<u32> {
        let (index, _) = self.shared.table.find(client).ok_or(io::ErrorKind::NotFound)?;
        let SharedFile { process, replaces, file } = shared;
        let named = FileId::of(&file)?;
        match self.shared.ask(ToStack::File { index, process, replaces, named }, ANSWER) {
            Some(ToHost::File { file }) => Ok(file),
            Some(ToHost::Failed { errno }) => Err(io::Error::from_raw_os_error(errno)),
            _ => Err(io::Error::from_raw_os_error(libc::ENETDOWN)),
        }
    }
    fn pair(&self, _: ClientId, _: u32, _: u32) -> Option<PairHandle> {
        None
    }
    fn connections(&self) -> Vec<SocketStatus> {
        self.shared.connections()
    }
    fn status(&self) -> Status {
        Status { slow: self.shared.restart_counters(), ..self.shared.status() }
    }
    fn workers(&self) -> WorkerCount {
        self.shared.workers().unwrap_or(WorkerCount { running: 0, most: self.shared.most_threads() })
    }
    fn set_workers(&self, running: usize) -> io::Result<()> {
        let _life = self.shared.life();
        let running = u32::try_from(running).unwrap_or(u32::MAX);
        self.shared.set_workers(running)?;
        *lock(&self.shared.running) = Some(running);
        Ok(())
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

impl Drop for Guest {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        wake::notify(self.shared.stop.as_fd());
        // Threads that wait for an answer or for the first message wait no longer.
        self.shared.kill();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the guest ended by a panic");
            }
        }
        self.shared.end_life();
    }
}
