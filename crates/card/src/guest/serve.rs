//! Serving: reads the host's messages and has the kernel stack do what they say.

use super::ask::{Asker, Places};
use super::bells::{Bells, Client, Line};
use super::orders::{self, Server, Shared};
use super::post::Post;
use super::{init, machine};
use crate::machine::Kind;
use crate::message::{self, FromCard, ToCard};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use towpath_kernel::{Kernel, KernelConfig};
use towpath_ring::card::CardMemory;
use towpath_ring::layout::VERSION;

/// How long the stack's thread spins without work, µs. A look at the clock costs as much here.
const SPIN_US: u64 = 20;
/// How often it shows that it lives.
const BEAT: Duration = Duration::from_millis(50);
/// How long the host may show no life.
const PATIENCE: Duration = Duration::from_secs(15);

/// Serves, with so many threads, until the host is gone or says stop; the error is why it could not. `at`: address and router.
pub fn serve(messages: Line, kind: Kind, cores: usize, at: (Option<&str>, Option<&str>)) -> Result<(), String> {
    let messages = Arc::new(messages);
    let started = start(&messages, kind, cores, at);
    let (mut server, asker, memory) = started.inspect_err(|why| {
        let _ = messages.send(0, &FromCard::Broken { why: why.clone() });
    })?;
    let from = messages.reader(memory).map_err(|error| error.to_string())?;
    let (post, work) = channel();
    let reading = move || {
        let mut from = io::BufReader::new(from);
        // The reader must never wait for the stack, which may be waiting for an answer of the policy.
        while let Ok((number, message)) = message::receive::<ToCard>(&mut from) {
            match message {
                ToCard::Verdict(_) | ToCard::Limit(_) => asker.answered(number, message),
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
    messages.send(0, &FromCard::Hello { version: VERSION, release }).map_err(|error| error.to_string())?;
    server.work(&work);
    Ok(())
}

/// Everything that is needed before the host is greeted.
fn start(
    messages: &Arc<Line>,
    kind: Kind,
    cores: usize,
    (address, gateway): (Option<&str>, Option<&str>),
) -> Result<(Server, Asker, Arc<CardMemory>), String> {
    let at = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    machine::modules(kind);
    init::network(machine::interface(kind), address, gateway)?;
    let device = machine::memory(kind).map_err(at("the memory with the rings"))?;
    let memory = CardMemory::map(device.as_fd()).map_err(|error| error.to_string())?;
    let memory = Arc::new(memory);
    let line = machine::bells(kind).map_err(at("the line of the bells"))?;
    let bells = Arc::new(Bells::new(Arc::clone(&memory), line).map_err(at("an eventfd"))?);
    let places = Places::default();
    let messages = Arc::clone(messages) as Arc<dyn Post>;
    let asker = Asker::new(Arc::clone(&messages), Arc::clone(&places));
    let config = KernelConfig { cores, spin_us: SPIN_US, cpus: Vec::new() };
    let stack = Kernel::start(&config, || Box::new(asker.clone())).map_err(at("starting the stack"))?;
    let living = Arc::clone(&memory);
    let passing = Arc::clone(&bells);
    let spawn = |name: &str| std::thread::Builder::new().name(name.into());
    spawn("bells").spawn(move || passing.pass_on()).map_err(at("starting the stack"))?;
    spawn("heart").spawn(move || live(&living)).map_err(at("starting the stack"))?;
    let device = Device { memory: Arc::clone(&memory), bells, messages: Arc::clone(&messages), files: init::root() };
    let server = Server::new(messages, Box::new(device), Arc::new(stack), places).map_err(at("starting the stack"))?;
    Ok((server, asker, memory))
}

/// Shows that the card lives, until the host does not any more. (That its end of the line is closed, UML may overlook.)
fn live(memory: &CardMemory) {
    let mut heart = (memory.heartbeat_of_host(), Instant::now());
    while heart.1.elapsed() < PATIENCE {
        std::thread::sleep(BEAT);
        memory.beat();
        let beat = memory.heartbeat_of_host();
        if beat != heart.0 {
            heart = (beat, Instant::now());
        }
    }
    init::say("the host shows no life");
    init::power_off();
}

/// The memory and the bells of the card.
struct Device {
    memory: Arc<CardMemory>,
    bells: Arc<Bells>,
    messages: Arc<dyn Post>,
    /// The root file system, which is the host's, without what is mounted over it.
    files: Option<OwnedFd>,
}

impl Shared for Device {
    fn complain(&self, why: &str) {
        init::say(why);
    }
    fn hosts_files(&self) -> Option<BorrowedFd<'_>> {
        self.files.as_ref().map(AsFd::as_fd)
    }
    fn client(&self, place: u32) -> io::Result<orders::Client> {
        let region = Arc::new(self.memory.region(place).map_err(io::Error::other)?);
        // Both are rung alike.
        let doorbells = vec![self.bells.bell().try_clone_to_owned()?, self.bells.bell().try_clone_to_owned()?];
        let (bells, messages) = (Arc::clone(&self.bells), Arc::clone(&self.messages));
        Ok(orders::Client { region, doorbells, far: Arc::new(Client { bells, messages, place }) })
    }

    fn echo(&self, quiet: Duration) {
        let (mut last, mut since) = (self.memory.echo(), Instant::now());
        loop {
            // A look at the clock is a system call here, and a system call takes as long as hundreds of looks.
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
