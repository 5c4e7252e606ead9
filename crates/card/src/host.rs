//! The card as the service sees it: a stack.

use crate::console::Console;
use crate::machine::{self, Kind, Lines, Machine, MachineConfig};
use crate::message::{self, FromCard, ToCard};
use crate::named::Named;
use crate::pieces::Pieces;
use crate::places::{Places, Served, lock};
use crate::{funeral, relay};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use towpath_ring::card::CardMemory;
use towpath_ring::layout::VERSION;
use towpath_ring::{Geometry, wake};
use towpath_stack::status::Tally;
use towpath_stack::{
    ClientId, ClientSetup, Connection, Executed, Files, Ground, Guard, PairHandle, SharedFile, Stack, Status,
};

/// How long the kernel may take to come up: two seconds on an idle machine (six if its processor is imitated), on a busy one as long as
/// it takes.
const BOOT: Duration = Duration::from_secs(120);
/// How long an answer may take.
pub(crate) const ANSWER: Duration = Duration::from_secs(10);
/// How long a program may run in it.
const PROGRAM: Duration = Duration::from_secs(9);
/// How long it may show no life. A machine that is busy with others makes it wait too, so this is generous; a process that has
/// ended is seen at once.
const PATIENCE: Duration = Duration::from_secs(5);

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

/// What the threads share.
pub(crate) struct Inner {
    pub memory: CardMemory,
    memfd: OwnedFd,
    pub places: Places,
    pub lines: Lines,
    config: MachineConfig,
    /// The one that runs, and before the first and between two of them none.
    machine: Mutex<Option<Machine>>,
    messages: Mutex<Outgoing>,
    /// The thread that reads the messages.
    reader: Mutex<Option<JoinHandle<()>>>,
    guard: Mutex<Box<dyn Guard>>,
    /// Held (to read) by whoever tells the card something that it must know in its next life too, and to write while that begins.
    lives: RwLock<()>,
    /// How often it has been started again.
    pub restarts: AtomicU32,
    /// Are the clients the card's? Else they are nobody's affair here ([`crate::standby`]).
    pub serves: AtomicBool,
    /// Connections that come from it.
    pub pieces: Pieces,
    /// What is run in it before it takes over all clients in its next life: each a program and its arguments.
    pub at_revival: Mutex<Vec<Vec<String>>>,
    answers: Mutex<HashMap<u32, SyncSender<FromCard>>>,
    last: AtomicU32,
    /// Rung to end the threads.
    pub stop: OwnedFd,
    pub stopping: AtomicBool,
    /// The card's kernel has ended without being asked to.
    pub dead: AtomicBool,
    pub patience: Duration,
    console: Console,
    scratch: Mutex<Option<PathBuf>>,
    release: Mutex<String>,
}

/// The line on which messages go out. UML never opens again a serial line that was full (4 KiB), so there is never more in it than this.
struct Outgoing {
    /// `None`: there is no card.
    line: Option<File>,
    /// Bytes written, modulo 2^32.
    sent: u32,
}

impl Outgoing {
    const MOST: usize = 1024;

    fn write(&mut self, memory: &CardMemory, bytes: &[u8]) -> io::Result<()> {
        for part in bytes.chunks(Self::MOST) {
            let until = Instant::now() + ANSWER;
            while self.sent.wrapping_sub(memory.consumed()) as usize + part.len() > 2 * Self::MOST {
                if Instant::now() >= until {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                std::thread::sleep(Duration::from_micros(50));
            }
            let line = self.line.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
            io::Write::write_all(line, part)?;
            self.sent = self.sent.wrapping_add(part.len() as u32);
        }
        Ok(())
    }
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
        let CardConfig { machine: config, geometry, clients } = config;
        let clients = clients.min(CardMemory::fit(geometry, config.kind.memory_bytes())?);
        let (memory, memfd) = CardMemory::create(geometry, clients, config.kind.has_bar())?;
        let inner = Arc::new(Inner {
            places: Places::new(memory.clients()),
            memory,
            memfd,
            lines: Lines::new()?,
            config,
            machine: Mutex::default(),
            messages: Mutex::new(Outgoing { line: None, sent: 0 }),
            reader: Mutex::default(),
            guard: Mutex::new(guard),
            lives: RwLock::default(),
            restarts: AtomicU32::new(0),
            serves: AtomicBool::new(true),
            pieces: Pieces::default(),
            at_revival: Mutex::default(),
            answers: Mutex::default(),
            last: AtomicU32::new(0),
            stop: wake::doorbell()?,
            stopping: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            patience: PATIENCE,
            console: Console::default(),
            scratch: Mutex::default(),
            release: Mutex::default(),
        });
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

impl Inner {
    /// Starts its kernel and waits until that serves. There is none, or a dead one.
    pub fn boot(self: &Arc<Self>) -> Result<(), CardError> {
        self.end_life();
        let (scratch, since) = (scratch()?, Instant::now());
        *lock(&self.scratch) = Some(scratch.clone());
        self.memory.restart();
        let machine = machine::start(&self.config, &self.memfd, &self.lines, (&scratch, &self.console))?;
        tracing::info!(pid = machine.pid(), "starting the card's kernel");
        let line = File::from(machine.messages.try_clone()?);
        let from = line.try_clone()?;
        *lock(&self.messages) = Outgoing { line: Some(line), sent: 0 };
        *lock(&self.machine) = Some(machine);
        if self.stopping.load(Ordering::Acquire) {
            self.kill();
        }
        let release = self.await_hello(from)?;
        tracing::info!(release, after = ?since.elapsed(), "the card serves");
        *lock(&self.release) = release;
        Ok(())
    }

    /// Ends its kernel, if it has not ended, and everything that was for that alone.
    fn end_life(&self) {
        let machine = lock(&self.machine).take();
        // There is nothing in it that is worth a shutdown.
        drop(machine);
        if let Some(line) = lock(&self.messages).line.take() {
            let _ = rustix::net::shutdown(&line, rustix::net::Shutdown::Both);
        }
        let reader = lock(&self.reader).take();
        if reader.is_some_and(|reader| reader.join().is_err()) {
            tracing::error!("a thread of the card ended by a panic");
        }
        if let Some(scratch) = lock(&self.scratch).take() {
            remove(&scratch);
        }
    }

    /// Starts the thread that reads its messages, and waits for the first.
    fn await_hello(self: &Arc<Self>, from: File) -> Result<String, CardError> {
        let (first, hello) = sync_channel(1);
        let reading = Arc::clone(self);
        let read = std::thread::Builder::new().name("card".into()).spawn(move || reading.read(from, &first))?;
        *lock(&self.reader) = Some(read);
        let silent = |why| CardError::Silent { why, console: self.console.last(8).join("\n") };
        match hello.recv_timeout(BOOT) {
            Ok(FromCard::Hello { version: VERSION, release }) => Ok(release),
            Ok(FromCard::Hello { .. }) => Err(CardError::Broken("it is of another version".into())),
            Ok(FromCard::Broken { why }) => Err(CardError::Broken(why)),
            Ok(_) | Err(RecvTimeoutError::Timeout) => Err(silent("it says nothing")),
            Err(RecvTimeoutError::Disconnected) => {
                // What it had to say is on its way.
                std::thread::sleep(Duration::from_millis(100));
                Err(silent("it has ended"))
            }
        }
    }

    /// The card lives again: it takes over all clients. Their listeners listen again.
    pub fn revive(&self) {
        let _begins = self.lives.write().unwrap_or_else(PoisonError::into_inner);
        for words in lock(&self.at_revival).clone() {
            let line = words.join(" ");
            match self.ask_now(ToCard::Run { words }, PROGRAM) {
                Some(FromCard::Ran { code: 0, .. }) => {}
                other => tracing::error!(?other, "in the card: {line}"),
            }
        }
        for (place, client) in self.clients() {
            funeral::answer(&client);
            let (uid, pid, name) = (client.uid, client.pid, client.name.clone());
            self.ask_now(ToCard::Adopt { place, uid, pid, name, moved: Vec::new() }, ANSWER);
            for (slot, seq) in client.reservations() {
                self.tell(0, &ToCard::Reserve { place, slot, seq });
            }
            for (context, _) in client.contexts() {
                self.ask_now(ToCard::Context { place, context, open: true }, ANSWER);
            }
            self.ask_now(ToCard::Open { place }, ANSWER);
        }
        self.ask_now(ToCard::Policy, ANSWER);
        self.dead.store(false, Ordering::Release);
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    /// The clients that are the card's.
    pub fn clients(&self) -> Vec<(u32, Arc<Served>)> {
        if self.serves.load(Ordering::Acquire) { self.places.all() } else { Vec::new() }
    }

    /// Memory for the next client, and what it rings.
    pub fn begin(&self, doorbells: impl Fn() -> io::Result<OwnedFd>) -> io::Result<Ground> {
        let place = self.places.take().ok_or_else(|| io::Error::from_raw_os_error(libc::EUSERS))?;
        let make = || -> io::Result<Ground> {
            let region = self.memory.begin(self.memfd.as_fd(), place).map_err(io::Error::other)?;
            Ok(Ground { region, memfd: self.memfd.try_clone()?, doorbells: vec![doorbells()?, doorbells()?] })
        };
        make().inspect_err(|_| self.places.free(place))
    }

    /// For as long as this is held, no other life of the card begins.
    pub fn life(&self) -> RwLockReadGuard<'_, ()> {
        self.lives.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it runs on.
    pub fn kind(&self) -> Kind {
        self.config.kind
    }
    /// A descriptor of its process.
    pub fn process(&self) -> Option<OwnedFd> {
        lock(&self.machine).as_ref().and_then(|machine| machine.process.try_clone().ok())
    }

    /// Sends; nobody waits.
    pub fn tell(&self, number: u32, message: &ToCard) -> bool {
        let mut bytes = Vec::new();
        message::send(&mut bytes, number, message).is_ok() && lock(&self.messages).write(&self.memory, &bytes).is_ok()
    }

    /// Sends and waits for the answer; `None` = the card is dead or hangs.
    pub fn ask(&self, message: ToCard, patience: Duration) -> Option<FromCard> {
        if self.dead.load(Ordering::Acquire) {
            return None;
        }
        self.ask_now(message, patience)
    }

    /// The same of a card that is not said to live yet.
    fn ask_now(&self, message: ToCard, patience: Duration) -> Option<FromCard> {
        let number = self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        let (reply, answer) = sync_channel(1);
        lock(&self.answers).insert(number, reply);
        let sent = self.tell(number, &message);
        let answer = sent.then(|| answer.recv_timeout(patience).ok()).flatten();
        lock(&self.answers).remove(&number);
        answer
    }

    /// The body of the thread that reads what the card says.
    fn read(&self, from: File, first: &SyncSender<FromCard>) {
        let mut from = io::BufReader::new(from);
        while let Ok((number, message)) = message::receive::<FromCard>(&mut from) {
            match message {
                FromCard::Hello { .. } | FromCard::Broken { .. } => _ = first.try_send(message),
                FromCard::Freed { place, slot, seq } => {
                    if let Some(client) = self.places.of(place) {
                        client.free(slot, seq);
                    }
                }
                FromCard::Left { place } => self.places.left(place),
                FromCard::Record(piece) => self.pieces.add(piece),
                FromCard::Ask(question) => {
                    if let Some(answer) = self.places.decide(&mut **lock(&self.guard), question) {
                        self.tell(number, &answer);
                    }
                }
                answer => {
                    if let Some(reply) = lock(&self.answers).remove(&number) {
                        let _ = reply.try_send(answer);
                    }
                }
            }
        }
        // Nobody waits for what will not come.
        lock(&self.answers).clear();
    }

    /// How often it has been started again, and whether there is none now: for people.
    pub fn lives_so_far(&self) -> Tally {
        let down = u64::from(self.dead.load(Ordering::Acquire));
        let restarts = u64::from(self.restarts.load(Ordering::Relaxed));
        let all = [("card_restarts", restarts), ("card_down", down)];
        Tally { stages: all.into_iter().filter(|(_, count)| *count > 0).collect(), ..Tally::default() }
    }

    /// Has its process ended?
    pub fn has_ended(&self) -> bool {
        lock(&self.machine).as_ref().is_none_or(Machine::has_ended)
    }
    /// Ends it.
    pub fn kill(&self) {
        if let Some(machine) = &mut *lock(&self.machine) {
            machine.kill();
        }
    }
    /// Says that it has died.
    pub fn died(&self) {
        self.kill();
        let console = self.console.last(4).join(" | ");
        tracing::error!(
            "the card has died; its connections are reset, and it is started again. Its last lines: {console}"
        );
        lock(&self.answers).clear();
    }
}

impl Stack for Card {
    fn name(&self) -> &'static str {
        self.inner.config.kind.name()
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

/// A directory of its own.
fn scratch() -> io::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("towpath-card-{}-{count}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&path)?;
    Ok(path)
}

fn remove(scratch: &PathBuf) {
    let _ = std::fs::remove_dir_all(scratch);
}
