//! What the threads of a card share: its kernel and its lives, the messages to it and their answers.

use crate::console::Console;
use crate::funeral;
use crate::host::{CardConfig, CardError};
use crate::machine::{self, Kind, Lines, Machine, MachineConfig};
use crate::message::{self, FromCard, ToCard};
use crate::pieces::Pieces;
use crate::places::{Places, Served, lock};
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
use towpath_ring::wake;
use towpath_stack::status::Tally;
use towpath_stack::{Ground, Guard};

/// How long the kernel may take to come up: two seconds on an idle machine (six if its processor is imitated), on a busy one as long as
/// it takes.
const BOOT: Duration = Duration::from_secs(120);
/// How long an answer may take.
pub const ANSWER: Duration = Duration::from_secs(10);
/// How long a program may run in it.
pub const PROGRAM: Duration = Duration::from_secs(9);
/// How long it may show no life. A machine that is busy with others makes it wait too, so this is generous; a process that has
/// ended is seen at once.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the threads share.
pub struct Inner {
    pub memory: CardMemory,
    memfd: OwnedFd,
    pub places: Places,
    pub lines: Lines,
    config: MachineConfig,
    /// The one that runs, and before the first and between two of them none.
    pub machine: Mutex<Option<Machine>>,
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
    /// So many of its threads run, in its next life too; none: all.
    pub running: Mutex<Option<u32>>,
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
    pub release: Mutex<String>,
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

impl Inner {
    /// Of a card that is to be started.
    pub fn new(config: CardConfig, guard: Box<dyn Guard>) -> Result<Self, CardError> {
        let CardConfig { machine: config, geometry, clients } = config;
        let memory = config.kind.memory_bytes();
        let clients = match CardMemory::fit(geometry, memory)? {
            0 => return Err(CardError::Small { memory, slots: geometry.slots }),
            fit => clients.min(fit),
        };
        let (memory, memfd) = CardMemory::create(geometry, clients, config.kind.has_bar())?;
        Ok(Self {
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
            running: Mutex::default(),
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
        })
    }

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
    pub fn end_life(&self) {
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
        let running = *lock(&self.running);
        if running.is_some() {
            self.ask_now(ToCard::Cores { running }, ANSWER);
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
    /// Most threads of its stack.
    pub fn most_threads(&self) -> usize {
        self.config.cores
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
