//! Reads the host's messages, and has the kernel stack carry them out.

use super::wakes::{GuestWaker, MessageLine, WakeLine};
use super::{devices, mounts};
use crate::machine::MachineKind;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use towpath_forward::message::{self, ToHost, ToStack};
use towpath_forward::server::commands::{self, Environment, Server};
use towpath_forward::server::policy::{ClientIndexes, RemotePolicy};
use towpath_forward::server::sender::MessageSender;
use towpath_kernel::{Kernel, KernelConfig};
use towpath_ring::guest_memory::GuestMemory;
use towpath_ring::layout::VERSION;
use towpath_runtime::OrphanLimits;

/// How long the stack's worker spins without work, µs. Reading the clock costs about as much here.
const SPIN_US: u64 = 20;
/// How often the guest's heartbeat is counted up.
const BEAT: Duration = Duration::from_millis(50);
/// How long the host's heartbeat may stand still.
const HOST_TIMEOUT: Duration = Duration::from_secs(15);

/// Serves until the host is gone or sends `Stop`. The error says why it cannot. `at` is address and gateway.
pub fn serve(
    messages: MessageLine,
    kind: MachineKind,
    cores: usize,
    at: (Option<&str>, Option<&str>),
) -> Result<(), String> {
    let messages = Arc::new(messages);
    let started = start(&messages, kind, cores, at);
    let (mut server, asker, memory) = started.inspect_err(|why| {
        let _ = messages.send(0, &ToHost::Broken { why: why.clone() });
    })?;
    let from = messages.reader(memory).map_err(|error| error.to_string())?;
    let (post, work) = channel();
    let reading = move || {
        let mut from = io::BufReader::new(from);
        // The reader must not wait for the stack, which may be waiting for an answer of the policy.
        while let Ok((number, message)) = message::receive::<ToStack>(&mut from) {
            match message {
                ToStack::Verdict(_) | ToStack::Limit(_) => asker.answered(number, message),
                other => {
                    if post.send((number, other)).is_err() {
                        break;
                    }
                }
            }
        }
    };
    let spawn = std::thread::Builder::new().name("messages".into()).spawn(reading);
    spawn.map_err(|error| error.to_string())?;
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
    messages.send(0, &ToHost::Hello { version: VERSION, release }).map_err(|error| error.to_string())?;
    server.work(&work);
    Ok(())
}

/// Sets everything up that must be ready before the host is greeted.
fn start(
    messages: &Arc<MessageLine>,
    kind: MachineKind,
    cores: usize,
    (address, gateway): (Option<&str>, Option<&str>),
) -> Result<(Server, RemotePolicy, Arc<GuestMemory>), String> {
    let at = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    devices::modules(kind);
    mounts::network(devices::interface(kind), address, gateway)?;
    let device = devices::memory(kind).map_err(at("the memory with the rings"))?;
    let memory = GuestMemory::map(device.as_fd()).map_err(|error| error.to_string())?;
    let memory = Arc::new(memory);
    let line = devices::wake_line(kind).map_err(at("the line of the wake_line"))?;
    let wake_line = Arc::new(WakeLine::new(Arc::clone(&memory), line).map_err(at("an eventfd"))?);
    let indexes = ClientIndexes::default();
    let messages = Arc::clone(messages) as Arc<dyn MessageSender>;
    let asker = RemotePolicy::new(Arc::clone(&messages), Arc::clone(&indexes));
    let config = KernelConfig { cores, spin_us: SPIN_US, cpus: Vec::new(), orphans: OrphanLimits::default() };
    let stack = Kernel::start(&config, || Box::new(asker.clone())).map_err(at("starting the stack"))?;
    let living = Arc::clone(&memory);
    let forwarding = Arc::clone(&wake_line);
    let spawn = |name: &str| std::thread::Builder::new().name(name.into());
    spawn("wakes").spawn(move || forwarding.forward_notifications()).map_err(at("starting the stack"))?;
    spawn("heart").spawn(move || live(&living)).map_err(at("starting the stack"))?;
    let environment = GuestEnvironment {
        memory: Arc::clone(&memory),
        wake_line,
        messages: Arc::clone(&messages),
        files: mounts::root(),
    };
    let server =
        Server::new(messages, Box::new(environment), Arc::new(stack), indexes).map_err(at("starting the stack"))?;
    Ok((server, asker, memory))
}

/// Counts the heartbeat up until the host's stands still. (UML may miss that the host's end of the line is closed.)
fn live(memory: &GuestMemory) {
    let mut heart = (memory.heartbeat_of_host(), Instant::now());
    while heart.1.elapsed() < HOST_TIMEOUT {
        std::thread::sleep(BEAT);
        memory.beat();
        let beat = memory.heartbeat_of_host();
        if beat != heart.0 {
            heart = (beat, Instant::now());
        }
    }
    mounts::say("the host's heartbeat has stopped");
    mounts::power_off();
}

/// The guest's memory and lines.
struct GuestEnvironment {
    memory: Arc<GuestMemory>,
    wake_line: Arc<WakeLine>,
    messages: Arc<dyn MessageSender>,
    /// The root file system, which is the host's, without the mounts on top of it.
    files: Option<OwnedFd>,
}

impl Environment for GuestEnvironment {
    fn report(&self, why: &str) {
        mounts::say(why);
    }
    fn host_files(&self) -> Option<BorrowedFd<'_>> {
        self.files.as_ref().map(AsFd::as_fd)
    }
    fn client(&self, index: u32) -> io::Result<commands::ServerClient> {
        let region = Arc::new(self.memory.region(index)?);
        // Both doorbells are notified together.
        let doorbells =
            vec![self.wake_line.doorbell().try_clone_to_owned()?, self.wake_line.doorbell().try_clone_to_owned()?];
        let (wake_line, messages) = (Arc::clone(&self.wake_line), Arc::clone(&self.messages));
        Ok(commands::ServerClient { region, doorbells, waker: Arc::new(GuestWaker { wake_line, messages, index }) })
    }

    fn echo(&self, quiet: Duration) {
        let (mut last, mut since) = (self.memory.echo(), Instant::now());
        loop {
            // Reading the clock is a system call here, as slow as hundreds of loads.
            for _ in 0..2_000 {
                let now = self.memory.echo();
                if now != last {
                    (last, since) = (now, Instant::now());
                }
                std::hint::spin_loop();
            }
            if since.elapsed() >= quiet {
                return;
            }
        }
    }
}
