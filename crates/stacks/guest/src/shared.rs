//! State that the threads of a guest share: its kernel and its lives, the messages to it and their answers.

use crate::config::{GuestConfig, GuestError};
use crate::machine::Console;
use crate::machine::starter::{Started, Starter};
use crate::machine::{GuestLines, MachineConfig, MachineKind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use towpath_forward::chunks::RecordChunks;
use towpath_forward::host::calls::{ANSWER, PROGRAM, StackCalls};
use towpath_forward::host::clients::{ClientTable, HostClient};
use towpath_forward::host::crash_cleanup;
use towpath_forward::lock::lock;
use towpath_forward::message::{self, ToHost, ToStack};
use towpath_forward::pending::PendingRequests;
use towpath_ring::guest_memory::GuestMemory;
use towpath_ring::layout::VERSION;
use towpath_ring::wake;
use towpath_runtime::status::Tally;
use towpath_runtime::{AdmissionPolicy, ClientMemory};

/// How long the kernel may take to boot. An idle machine needs two seconds (six if the processor is emulated), a busy
/// one much longer.
const BOOT: Duration = Duration::from_secs(120);
/// How often its process is looked at meanwhile.
const LOOK: Duration = Duration::from_millis(100);
/// How long the guest's heartbeat may stand still. Generous, because a busy machine delays it. The end of its process
/// is seen at once.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(5);

/// State that the threads share.
pub struct Shared {
    pub memory: GuestMemory,
    memfd: OwnedFd,
    pub table: ClientTable,
    /// The user of all clients, from the first on.
    user: OnceLock<u32>,
    pub lines: GuestLines,
    config: MachineConfig,
    /// The machine that runs; `None` before the first one and between two.
    pub machine: Mutex<Option<Started>>,
    starter: Starter,
    messages: Mutex<Outgoing>,
    /// The thread that reads the messages.
    reader: Mutex<Option<JoinHandle<()>>>,
    guard: Mutex<Box<dyn AdmissionPolicy>>,
    /// Read-locked while the guest is told something that its next life must know too; write-locked while that life
    /// begins.
    lives: RwLock<()>,
    /// How often it has been started again.
    pub restarts: AtomicU32,
    /// True if the guest serves the clients. Else another stack does ([`crate::standby`]).
    pub serves: AtomicBool,
    /// Connection records that arrive from the guest.
    pub chunks: RecordChunks,
    /// Number of workers set by the operator, also for the next life; `None` for all.
    pub running: Mutex<Option<u32>>,
    /// Commands to run in the next life before it takes over the clients: programs with their arguments.
    pub at_revival: Mutex<Vec<Vec<String>>>,
    /// Requests that wait for an answer.
    pending: PendingRequests<ToHost>,
    /// Notified to end the threads.
    pub stop: OwnedFd,
    pub stopping: AtomicBool,
    /// The guest's kernel has ended without being asked to.
    pub dead: AtomicBool,
    pub heartbeat_timeout: Duration,
    console: Console,
    pub release: Mutex<String>,
}

/// The line of outgoing messages. UML never reopens a serial line that was full (4 KiB), so less than that is ever in
/// it.
struct Outgoing {
    /// `None` while there is no guest.
    line: Option<File>,
    /// Bytes written, modulo 2^32.
    sent: u32,
}

impl Outgoing {
    const MOST: usize = 1024;

    fn write(&mut self, memory: &GuestMemory, bytes: &[u8]) -> io::Result<()> {
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

impl Shared {
    /// State of a guest that is to be started.
    pub fn new(config: GuestConfig, guard: Box<dyn AdmissionPolicy>) -> Result<Self, GuestError> {
        let GuestConfig { machine: config, geometry, clients } = config;
        let memory = config.kind.memory_bytes();
        let clients = match GuestMemory::fit(geometry, memory)? {
            0 => return Err(GuestError::Small { memory, slots: geometry.slots }),
            fit => clients.min(fit),
        };
        let (memory, memfd) = GuestMemory::create(geometry, clients, config.kind.has_bar())?;
        let lines = GuestLines::new()?;
        Ok(Self {
            starter: Starter::new(&config, &memfd, &lines)?,
            table: ClientTable::new(memory.clients()),
            user: OnceLock::new(),
            memory,
            memfd,
            lines,
            config,
            machine: Mutex::default(),
            messages: Mutex::new(Outgoing { line: None, sent: 0 }),
            reader: Mutex::default(),
            guard: Mutex::new(guard),
            lives: RwLock::default(),
            restarts: AtomicU32::new(0),
            serves: AtomicBool::new(true),
            chunks: RecordChunks::default(),
            running: Mutex::default(),
            at_revival: Mutex::default(),
            pending: PendingRequests::default(),
            stop: wake::doorbell()?,
            stopping: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            heartbeat_timeout: HEARTBEAT_TIMEOUT,
            console: Console::default(),
            release: Mutex::default(),
        })
    }

    /// Boots the kernel and waits until it serves. There must be none, or a dead one.
    pub fn boot(self: &Arc<Self>) -> Result<(), GuestError> {
        self.end_life();
        let since = Instant::now();
        self.memory.restart();
        let machine = self.starter.start()?;
        tracing::info!(pid = machine.pid, sandbox = machine.sandbox, "starting the guest's kernel");
        self.console.follow(File::from(machine.console.try_clone()?))?;
        let line = File::from(machine.messages.try_clone()?);
        let from = line.try_clone()?;
        *lock(&self.messages) = Outgoing { line: Some(line), sent: 0 };
        *lock(&self.machine) = Some(machine);
        if self.stopping.load(Ordering::Acquire) {
            self.kill();
        }
        let release = self.await_hello(from)?;
        tracing::info!(release, after = ?since.elapsed(), "the guest serves");
        *lock(&self.release) = release;
        Ok(())
    }

    /// Ends the kernel, if it has not ended, and everything that belongs to this life alone.
    pub fn end_life(&self) {
        // The guest holds nothing that needs an orderly shutdown.
        if lock(&self.machine).take().is_some() {
            self.starter.end();
        }
        if let Some(line) = lock(&self.messages).line.take() {
            let _ = rustix::net::shutdown(&line, rustix::net::Shutdown::Both);
        }
        let reader = lock(&self.reader).take();
        if reader.is_some_and(|reader| reader.join().is_err()) {
            tracing::error!("a thread of the guest ended by a panic");
        }
    }

    /// Starts the thread that reads messages, and waits for the first.
    fn await_hello(self: &Arc<Self>, from: File) -> Result<String, GuestError> {
        let (first, hello) = sync_channel(1);
        let reading = Arc::clone(self);
        let read = std::thread::Builder::new().name("guest".into()).spawn(move || reading.read(from, &first))?;
        *lock(&self.reader) = Some(read);
        let silent = |why| GuestError::Silent { why, console: self.console.last(8).join("\n") };
        let end = Instant::now() + BOOT;
        let answer = loop {
            match hello.recv_timeout(LOOK) {
                // A helper process that outlives the kernel keeps the way of its messages open.
                Err(RecvTimeoutError::Timeout) if self.has_ended() => break Err(RecvTimeoutError::Disconnected),
                Err(RecvTimeoutError::Timeout) if Instant::now() < end => {}
                answer => break answer,
            }
        };
        match answer {
            Ok(ToHost::Hello { version: VERSION, release }) => Ok(release),
            Ok(ToHost::Hello { .. }) => Err(GuestError::Broken("it is of another version".into())),
            Ok(ToHost::Broken { why }) => Err(GuestError::Broken(why)),
            Ok(_) | Err(RecvTimeoutError::Timeout) => Err(silent("it says nothing")),
            Err(RecvTimeoutError::Disconnected) => {
                // Its last console lines are still on their way.
                std::thread::sleep(Duration::from_millis(100));
                Err(silent("it has ended"))
            }
        }
    }

    /// A new life takes over all clients. Their listeners are restored.
    pub fn revive(&self) {
        let _begins = self.lives.write().unwrap_or_else(PoisonError::into_inner);
        for words in lock(&self.at_revival).clone() {
            let line = words.join(" ");
            match self.ask_now(ToStack::Run { words }, PROGRAM) {
                Some(ToHost::Ran { code: 0, .. }) => {}
                other => tracing::error!(?other, "in the guest: {line}"),
            }
        }
        let running = *lock(&self.running);
        if running.is_some() {
            self.ask_now(ToStack::Workers { running }, ANSWER);
        }
        for (index, client) in self.clients() {
            crash_cleanup::answer_commands(&client);
            let (uid, pid, name) = (client.uid, client.pid, client.name.clone());
            self.ask_now(ToStack::Adopt { index, uid, pid, name, moved: Vec::new() }, ANSWER);
            for (slot, seq) in client.reservations() {
                self.tell(0, &ToStack::Reserve { index, slot, seq });
            }
            for (context, _) in client.contexts() {
                self.ask_now(ToStack::Context { index, context, open: true }, ANSWER);
            }
            self.ask_now(ToStack::Open { index }, ANSWER);
        }
        self.ask_now(ToStack::Policy, ANSWER);
        self.dead.store(false, Ordering::Release);
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    /// The clients that the guest serves.
    pub fn clients(&self) -> Vec<(u32, Arc<HostClient>)> {
        if self.serves.load(Ordering::Acquire) { self.table.all() } else { Vec::new() }
    }

    /// Allocates the next client's memory and doorbells.
    pub fn allocate_client(&self, doorbells: impl Fn() -> io::Result<OwnedFd>) -> io::Result<ClientMemory> {
        let index = self.table.take_free().ok_or_else(|| io::Error::from_raw_os_error(libc::EUSERS))?;
        let make = || -> io::Result<ClientMemory> {
            let region = self.memory.begin(self.memfd.as_fd(), index)?;
            Ok(ClientMemory { region, memfd: self.memfd.try_clone()?, doorbells: vec![doorbells()?, doorbells()?] })
        };
        make().inspect_err(|_| self.table.free(index))
    }

    /// Takes note of the user whose clients are here. All of them can read and write the whole memory, as can those that
    /// have ended while a process of theirs is left. So there is no second user, ever.
    pub fn serve_only(&self, index: u32, uid: u32) -> io::Result<()> {
        if *self.user.get_or_init(|| uid) == uid {
            return Ok(());
        }
        self.table.free(index);
        Err(io::Error::from_raw_os_error(libc::EPERM))
    }

    /// While this is held, no new life of the guest begins.
    pub fn life(&self) -> RwLockReadGuard<'_, ()> {
        self.lives.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its kind of machine.
    pub fn kind(&self) -> MachineKind {
        self.config.kind
    }
    /// Most workers of its stack.
    pub fn most_threads(&self) -> usize {
        self.config.cores
    }
    /// A pidfd of its process.
    pub fn process(&self) -> Option<OwnedFd> {
        lock(&self.machine).as_ref().and_then(|machine| machine.process.try_clone().ok())
    }

    /// Sends a message that has no answer. False if that fails.
    pub fn tell(&self, number: u32, message: &ToStack) -> bool {
        let mut bytes = Vec::new();
        message::send(&mut bytes, number, message).is_ok() && lock(&self.messages).write(&self.memory, &bytes).is_ok()
    }

    /// Sends a request and waits for the answer, also while the guest does not count as alive yet.
    fn ask_now(&self, request: ToStack, timeout: Duration) -> Option<ToHost> {
        self.pending.ask(timeout, |number| self.tell(number, &request))
    }

    /// The body of the thread that reads the guest's messages.
    fn read(&self, from: File, first: &SyncSender<ToHost>) {
        let mut from = io::BufReader::new(from);
        while let Ok((number, message)) = message::receive::<ToHost>(&mut from) {
            match message {
                ToHost::Hello { .. } | ToHost::Broken { .. } => _ = first.try_send(message),
                ToHost::Freed { index, slot, seq } => {
                    if let Some(client) = self.table.get(index) {
                        client.release(slot, seq);
                    }
                }
                ToHost::Left { index } => self.table.forgotten(index),
                ToHost::Record(chunk) => self.chunks.add(chunk),
                ToHost::Ask(question) => {
                    if let Some(answer) = self.table.decide(&mut **lock(&self.guard), question) {
                        self.tell(number, &answer);
                    }
                }
                answer => self.pending.answer(number, answer),
            }
        }
        // The requests that wait will get no answer.
        self.pending.clear();
    }

    /// Restarts, and whether the guest is down now, for the status.
    pub fn restart_counters(&self) -> Tally {
        let down = u64::from(self.dead.load(Ordering::Acquire));
        let restarts = u64::from(self.restarts.load(Ordering::Relaxed));
        let all = [("guest_restarts", restarts), ("guest_down", down)];
        Tally { stages: all.into_iter().filter(|(_, count)| *count > 0).collect(), ..Tally::default() }
    }

    /// True if its process has ended.
    pub fn has_ended(&self) -> bool {
        let Some(process) = self.process() else { return true };
        let mut waiting = [PollFd::new(&process, PollFlags::IN)];
        matches!(poll(&mut waiting, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..))
    }
    /// Kills it.
    pub fn kill(&self) {
        if lock(&self.machine).is_some() {
            self.starter.end();
        }
    }
    /// Reports its death.
    pub fn report_death(&self) {
        self.kill();
        let console = self.console.last(4).join(" | ");
        tracing::error!(
            "the guest has died; its connections are reset, and it is started again. Its last lines: {console}"
        );
        self.pending.clear();
    }
}

impl StackCalls for Shared {
    fn ask(&self, request: ToStack, timeout: Duration) -> Option<ToHost> {
        if self.dead.load(Ordering::Acquire) {
            return None;
        }
        self.ask_now(request, timeout)
    }
    fn table(&self) -> &ClientTable {
        &self.table
    }
}
