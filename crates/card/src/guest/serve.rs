//! Serving: reads the host's messages and has the kernel stack do what they say.

use super::ask::{Asker, Places};
use super::bells::{Bells, Client, Line};
use super::init;
use super::reservations::Reservations;
use crate::message::{self, FromCard, ToCard};
use rustix::fd::AsFd;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use towpath_kernel::{Kernel, KernelConfig};
use towpath_ring::card::CardMemory;
use towpath_ring::layout::VERSION;
use towpath_ring::wake;
use towpath_stack::execute::execute;
use towpath_stack::{ClientId, ClientSetup, Executed, Stack, Status};

/// How long the stack's thread spins without work, µs. A look at the clock costs as much here.
const SPIN_US: u64 = 20;
/// How often it shows that it lives.
const BEAT: Duration = Duration::from_millis(50);
/// How long the host may show no life.
const PATIENCE: Duration = Duration::from_secs(15);

/// The card's side of the service.
struct Server {
    messages: Arc<Line>,
    memory: Arc<CardMemory>,
    bells: Arc<Bells>,
    stack: Arc<Kernel>,
    reservations: Arc<Reservations>,
    /// The stack's numbers of the clients, by place.
    clients: HashMap<u32, ClientId>,
    places: Places,
}

/// Serves until the host is gone or says stop; the error is why it could not.
pub fn serve(messages: Line, address: Option<&str>, gateway: Option<&str>) -> Result<(), String> {
    let messages = Arc::new(messages);
    let started = start(&messages, address, gateway);
    let (mut server, asker) = started.inspect_err(|why| {
        let _ = messages.send(0, &FromCard::Broken { why: why.clone() });
    })?;
    let from = messages.reader(Arc::clone(&server.memory)).map_err(|error| error.to_string())?;
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
fn start(messages: &Arc<Line>, address: Option<&str>, gateway: Option<&str>) -> Result<(Server, Asker), String> {
    let at = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
    ["lib/crc-ccitt", "net/ipv6/ipv6", "net/ipv4/tcp_bbr"].into_iter().for_each(init::module);
    init::network(address, gateway)?;
    let device = File::options().read(true).write(true).open("/dev/mmapper").map_err(at("/dev/mmapper"))?;
    let memory = CardMemory::map(device.as_fd()).map_err(|error| error.to_string())?;
    let memory = Arc::new(memory);
    let line = init::serial("/dev/ttyS1").map_err(at("/dev/ttyS1"))?;
    let bells = Arc::new(Bells::new(Arc::clone(&memory), line).map_err(at("an eventfd"))?);
    let places = Places::default();
    let asker = Asker::new(Arc::clone(messages), Arc::clone(&places));
    let config = KernelConfig { cores: 1, spin_us: SPIN_US, cpus: Vec::new() };
    let stack = Kernel::start(&config, || Box::new(asker.clone())).map_err(at("starting the stack"))?;
    let reservations = Reservations::start(Arc::clone(messages)).map_err(at("starting the stack"))?;
    let living = Arc::clone(&memory);
    let passing = Arc::clone(&bells);
    let spawn = |name: &str| std::thread::Builder::new().name(name.into());
    spawn("bells").spawn(move || passing.pass_on()).map_err(at("starting the stack"))?;
    spawn("heart").spawn(move || live(&living)).map_err(at("starting the stack"))?;
    let (messages, stack, clients) = (Arc::clone(messages), Arc::new(stack), HashMap::new());
    Ok((Server { messages, memory, bells, stack, reservations, clients, places }, asker))
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

impl Server {
    /// Until the host is gone or says stop.
    fn work(&mut self, work: &Receiver<(u32, ToCard)>) {
        while let Ok((number, message)) = work.recv() {
            if message == ToCard::Stop {
                return;
            }
            let Some(answer) = self.act(number, message) else { continue };
            if self.messages.send(number, &answer).is_err() {
                return;
            }
        }
    }

    /// Does what a message says; the answer, if there is one already.
    fn act(&mut self, number: u32, message: ToCard) -> Option<FromCard> {
        let known = |place: &u32| self.clients.get(place).copied();
        match message {
            ToCard::Add { place, uid, pid, name } => return Some(self.add(place, uid, pid, name)),
            ToCard::Context { place, context, open } => {
                match known(&place) {
                    // Nobody rings it: `Far` does.
                    Some(client) if open => self.stack.add_context(client, context, wake::doorbell().ok()?),
                    Some(client) => self.stack.drop_context(client, context),
                    None => {}
                }
                return Some(FromCard::Done);
            }
            ToCard::Reserve { place, slot, seq } => {
                let kept = known(&place).zip(self.reservations.add(place, slot, seq).ok());
                let (client, kept) = kept?;
                self.stack.reserve(client, slot, seq, kept);
            }
            ToCard::Hangup { place, slot, generation } => self.stack.hangup(known(&place)?, slot, generation),
            ToCard::Departed { place, process } => self.stack.departed(known(&place)?, process),
            ToCard::Remove { place } => {
                let client = self.clients.remove(&place)?;
                self.stack.remove_client(client);
            }
            ToCard::Policy => {
                self.stack.policy_changed();
                return Some(FromCard::Done);
            }
            ToCard::Connections => return Some(FromCard::Connections(self.connections())),
            ToCard::Status => return Some(FromCard::Status(Box::new(self.status()))),
            ToCard::Echo { quiet_us } => return Some(self.echo(Duration::from_micros(quiet_us.into()))),
            ToCard::Run { words } => self.run(number, words),
            ToCard::Verdict(_) | ToCard::Limit(_) | ToCard::Stop => {}
        }
        None
    }

    fn add(&mut self, place: u32, uid: u32, pid: i32, name: String) -> FromCard {
        let make = || -> io::Result<ClientSetup> {
            let region = Arc::new(self.memory.region(place).map_err(io::Error::other)?);
            // Both are rung alike.
            let doorbells = vec![self.bells.bell().try_clone_to_owned()?, self.bells.bell().try_clone_to_owned()?];
            let (bells, messages) = (Arc::clone(&self.bells), Arc::clone(&self.messages));
            let far = Some(Arc::new(Client { bells, messages, place }) as Arc<_>);
            Ok(ClientSetup { region, doorbells, uid, pid, name, far })
        };
        match make().and_then(|setup| self.stack.add_client(setup)) {
            Ok(client) => {
                self.clients.insert(place, client);
                let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
                // The host gives a place again only when the stack has forgotten who had it.
                places.retain(|_, other| *other != place);
                places.insert(client, place);
                FromCard::Done
            }
            Err(error) => {
                init::say(&format!("a client cannot be served: {error}"));
                FromCard::Failed { errno: error.raw_os_error().unwrap_or(libc::EIO) }
            }
        }
    }

    /// The place of a client as the number that the host knows it by.
    fn numbered(&self, client: ClientId) -> Option<ClientId> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).get(&client).copied().map(ClientId)
    }

    fn connections(&self) -> Vec<towpath_stack::Connection> {
        let mut all = self.stack.connections();
        all.iter_mut().for_each(|one| one.client = one.client.and_then(|client| self.numbered(client)));
        all
    }

    fn status(&self) -> Status {
        let mut status = self.stack.status();
        status.clients.retain_mut(|client| match self.numbered(client.id) {
            Some(place) => {
                client.id = place;
                true
            }
            None => false,
        });
        status
    }

    /// Repeats what the host writes until it has been quiet for so long.
    fn echo(&self, quiet: Duration) -> FromCard {
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
                return FromCard::Done;
            }
        }
    }

    /// Runs a program beside everything else; its answer comes when it has ended.
    fn run(&self, number: u32, words: Vec<String>) {
        let messages = Arc::clone(&self.messages);
        let run = move || {
            let answer = match execute(&words) {
                Ok(Executed { code, out, err }) => FromCard::Ran { code, out, err },
                Err(error) => FromCard::Failed { errno: error.raw_os_error().unwrap_or(libc::EIO) },
            };
            let _ = messages.send(number, &answer);
        };
        if std::thread::Builder::new().name("run".into()).spawn(run).is_err() {
            let _ = self.messages.send(number, &FromCard::Failed { errno: libc::EAGAIN });
        }
    }
}
