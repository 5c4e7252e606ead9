//! The card as the service sees it: a stack.

use crate::inner::{ANSWER, Inner, PROGRAM};
use crate::machine::{self, Machine, MachineConfig};
use crate::message::{FromCard, ToCard};
use crate::named::Named;
use crate::places::{Served, lock};
use crate::{funeral, relay, threads};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use towpath_ring::{Geometry, wake};
use towpath_stack::{
    ClientId, ClientSetup, Connection, Cores, Executed, Files, Ground, Guard, PairHandle, SharedFile, Stack, Status,
};

/// How a card is set up.
#[derive(Debug)]
pub struct CardConfig {
    /// Its kernel.
    pub machine: MachineConfig,
    /// Sizes of every region.
    pub geometry: Geometry,
    /// Most clients at a time, if there is memory for so many.
    pub clients: u32,
}

/// Why there is no card.
#[derive(Debug, thiserror::Error)]
pub enum CardError {
    /// It cannot be started.
    #[error("the card: {0}")]
    Start(#[from] io::Error),
    /// Its memory cannot be made.
    #[error("the card's memory: {0}")]
    Memory(#[from] towpath_ring::MapError),
    /// Not even one client's region fits into its memory.
    #[error(
        "sockets_per_client: a card's memory has {} MiB, and one program with {slots} sockets, their send and receive buffers \
         takes more; write fewer, or smaller send_buffer and receive_buffer",
        .memory >> 20
    )]
    Small {
        /// The memory's bytes.
        memory: u64,
        /// Sockets that were asked for.
        slots: u32,
    },
    /// It was started and says why it cannot serve.
    #[error("the card cannot serve: {0}")]
    Broken(String),
    /// It was started and does not answer.
    #[error("the card's kernel does not come up ({why}). Its last lines:\n{console}")]
    Silent {
        /// What has been seen instead.
        why: &'static str,
        /// What it has said.
        console: String,
    },
}

/// A running card.
pub struct Card {
    pub(crate) inner: Arc<Inner>,
    last_client: AtomicU32,
    threads: Vec<JoinHandle<()>>,
}

impl Card {
    /// Starts it and waits until it serves. If it dies after that it is started again.
    pub fn start(config: CardConfig, guard: Box<dyn Guard>) -> Result<Self, CardError> {
        let inner = Arc::new(Inner::new(config, guard)?);
        // From here on what is dropped ends it.
        let mut card = Self { inner, last_client: AtomicU32::new(0), threads: Vec::new() };
        card.inner.boot()?;
        let relaying = Arc::clone(&card.inner);
        let relay = std::thread::Builder::new().name("card-relay".into()).spawn(move || relay::run(&relaying))?;
        card.threads.push(relay);
        Ok(card)
    }

    /// The number of the next client.
    pub(crate) fn next_client(&self) -> ClientId {
        ClientId(self.last_client.fetch_add(1, Ordering::Relaxed).wrapping_add(1))
    }
    /// The release of its kernel: `6.1.176`.
    pub fn release(&self) -> String {
        lock(&self.inner.release).clone()
    }
    /// The process that is its kernel.
    pub fn pid(&self) -> u32 {
        lock(&self.inner.machine).as_ref().map_or(0, Machine::pid)
    }
    /// Times of round trips through the shared memory, both sides looking all the time, and of round trips by messages: ascending.
    pub fn round_trips(&self, times: u32) -> io::Result<(Vec<Duration>, Vec<Duration>)> {
        let memory = &self.inner.memory;
        let asking = Arc::clone(&self.inner);
        // It goes on as long as there is something new.
        let echo = std::thread::spawn(move || asking.ask(ToCard::Echo { quiet_us: 500_000 }, ANSWER));
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
            self.inner.ask(ToCard::Echo { quiet_us: 0 }, ANSWER).ok_or(io::ErrorKind::TimedOut)?;
            messages.push(since.elapsed());
        }
        spinning.sort();
        messages.sort();
        Ok((spinning, messages))
    }
}

impl Stack for Card {
    fn name(&self) -> &'static str {
        self.inner.kind().name()
    }
    fn geometry(&self) -> Option<Geometry> {
        Some(self.inner.memory.geometry())
    }
    fn ground(&self, _: Geometry) -> io::Result<Ground> {
        let _life = self.inner.life();
        if self.inner.dead.load(Ordering::Acquire) {
            return Err(io::Error::from_raw_os_error(libc::ENETDOWN));
        }
        // One line of the card's for both; what somebody does to the flags of his concerns nobody else.
        self.inner.begin(|| machine::bell(&self.inner.lines.doorbells))
    }
    fn add_client(&self, setup: ClientSetup) -> io::Result<ClientId> {
        let _life = self.inner.life();
        let place = self.inner.memory.place(setup.region.offset());
        let place = place.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        let id = self.next_client();
        let (uid, pid, name) = (setup.uid, setup.pid, setup.name);
        self.inner.places.give(place, Arc::new(Served::new(id, setup.region, (uid, pid, name.clone()))));
        match self.inner.ask(ToCard::Add { place, uid, pid, name }, ANSWER) {
            Some(FromCard::Done) => Ok(id),
            Some(FromCard::Failed { errno }) => {
                self.inner.places.free(place);
                Err(io::Error::from_raw_os_error(errno))
            }
            // If it comes to it after all, the place must stay as it is.
            _ => Err(io::Error::from_raw_os_error(libc::ENETDOWN)),
        }
    }
    fn add_context(&self, client: ClientId, context: u32, bell: OwnedFd) {
        let _life = self.inner.life();
        let Some((place, client)) = self.inner.places.find(client) else { return };
        client.set_context(context, Some(bell));
        self.inner.ask(ToCard::Context { place, context, open: true }, ANSWER);
    }
    fn drop_context(&self, client: ClientId, context: u32) {
        let _life = self.inner.life();
        let Some((place, client)) = self.inner.places.find(client) else { return };
        self.inner.ask(ToCard::Context { place, context, open: false }, ANSWER);
        client.set_context(context, None);
    }
    fn reserve(&self, client: ClientId, slot: u32, seq: u32, socket: OwnedFd) {
        let _life = self.inner.life();
        let Some((place, client)) = self.inner.places.find(client) else { return };
        if self.inner.dead.load(Ordering::Acquire) {
            return;
        }
        client.reserve(slot, seq, socket);
        self.inner.tell(0, &ToCard::Reserve { place, slot, seq });
    }
    fn hangup(&self, client: ClientId, slot: u32, generation: u32) {
        let _life = self.inner.life();
        let Some((place, client)) = self.inner.places.find(client) else { return };
        if self.inner.dead.load(Ordering::Acquire) {
            return funeral::hang_up(&client, slot, generation);
        }
        self.inner.tell(0, &ToCard::Hangup { place, slot, generation });
    }
    fn departed(&self, client: ClientId, process: u32) {
        let _life = self.inner.life();
        if let Some((place, _)) = self.inner.places.find(client) {
            self.inner.tell(0, &ToCard::Departed { place, process });
        }
    }
    fn remove_client(&self, client: ClientId) {
        let _life = self.inner.life();
        let Some((place, _)) = self.inner.places.find(client) else { return };
        if self.inner.dead.load(Ordering::Acquire) {
            return self.inner.places.free(place);
        }
        // Its place is free when the card has said so.
        self.inner.tell(0, &ToCard::Remove { place });
    }
    fn files(&self) -> Files {
        Files::Any
    }
    fn add_file(&self, client: ClientId, shared: SharedFile) -> io::Result<u32> {
        let (place, _) = self.inner.places.find(client).ok_or(io::ErrorKind::NotFound)?;
        let SharedFile { process, replaces, file } = shared;
        let named = Named::of(&file)?;
        match self.inner.ask(ToCard::File { place, process, replaces, named }, ANSWER) {
            Some(FromCard::File { file }) => Ok(file),
            Some(FromCard::Failed { errno }) => Err(io::Error::from_raw_os_error(errno)),
            _ => Err(io::Error::from_raw_os_error(libc::ENETDOWN)),
        }
    }
    fn pair(&self, _: ClientId, _: u32, _: u32) -> Option<PairHandle> {
        None
    }
    fn connections(&self) -> Vec<Connection> {
        match self.inner.ask(ToCard::Connections, ANSWER) {
            Some(FromCard::Connections(all)) => self.inner.places.connections(all),
            _ => Vec::new(),
        }
    }
    fn status(&self) -> Status {
        let status = match self.inner.ask(ToCard::Status, ANSWER) {
            Some(FromCard::Status(status)) => self.inner.places.status(*status),
            _ => Status::default(),
        };
        Status { slow: self.inner.lives_so_far(), ..status }
    }
    fn cores(&self) -> Cores {
        let nobody = Cores { running: 0, most: self.inner.most_threads() };
        threads::answered(self.inner.ask(ToCard::Cores { running: None }, ANSWER)).unwrap_or(nobody)
    }
    fn set_cores(&self, running: usize) -> io::Result<()> {
        let _life = self.inner.life();
        let running = Some(u32::try_from(running).unwrap_or(u32::MAX));
        threads::answered(self.inner.ask(ToCard::Cores { running }, ANSWER))?;
        *lock(&self.inner.running) = running;
        Ok(())
    }
    /// Its kernel knows its routes itself.
    fn network_changed(&self) {}
    fn policy_changed(&self) {
        self.inner.ask(ToCard::Policy, ANSWER);
    }
    fn execute(&self, words: &[String]) -> io::Result<Executed> {
        match self.inner.ask(ToCard::Run { words: words.to_vec() }, PROGRAM) {
            Some(FromCard::Ran { code, out, err }) => Ok(Executed { code, out, err }),
            Some(FromCard::Failed { errno }) => Err(io::Error::from_raw_os_error(errno)),
            _ => Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer in time")),
        }
    }
    fn stop(self: Box<Self>) {
        drop(self);
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        self.inner.stopping.store(true, Ordering::Release);
        wake::ring(self.inner.stop.as_fd());
        // Whoever waits for an answer of it, or for its first word, waits no more.
        self.inner.kill();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the card ended by a panic");
            }
        }
        self.inner.end_life();
    }
}
