//! The host's side: a stack to the service.

use super::carrier::Carrier;
use super::jobs::Jobs;
use super::record::Record;
use super::shower::Shower;
use super::wire::Wire;
use super::{CLIENTS, key, lane};
use crate::funeral;
use crate::message::{self, FromCard, ToCard};
use crate::places::{Places, Served, lock};
use crate::threads;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;
use towpath_link::{Broken, Link, mail};
use towpath_ring::Geometry;
use towpath_ring::layout::VERSION;
use towpath_ring::span::Span;
use towpath_stack::clients::ClientShared;
use towpath_stack::events::EventOut;
use towpath_stack::mailbox::Bell;
use towpath_stack::thread::{epoll_with, watch};
use towpath_stack::{ClientId, ClientSetup, Connection, Cores, Executed, Ground, Guard, PairHandle, Stack, Status};

/// How long the other side may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// How long a program may run there.
const PROGRAM: Duration = Duration::from_secs(9);

/// Why the other side cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NearError {
    /// This side cannot be set up.
    #[error("the far stack: {0}")]
    Start(#[from] io::Error),
    /// The link is over.
    #[error("the far stack: {0}")]
    Broken(#[from] Broken),
    /// It does not serve.
    #[error("the far stack does not serve: {0}")]
    Refused(String),
}

/// A client, here.
pub struct Client {
    /// As every card knows it.
    pub served: Arc<Served>,
    /// As every stack knows it.
    pub shared: ClientShared,
    /// Tells it of events.
    pub out: Mutex<EventOut>,
    /// Its lane.
    pub lane: u32,
    /// Its place.
    pub place: u32,
}

/// What the carrier is asked for by other threads.
pub enum Job {
    /// Send a message.
    Message(u32, Vec<u8>),
    /// Carry for this client from now on.
    Serve(Arc<Client>),
    /// Carry the last words of a slot, then send a message.
    Hangup(Arc<Client>, u32, Vec<u8>),
    /// Carry what depends on a process, then send a message.
    Departed(Arc<Client>, u32, Vec<u8>),
    /// Carry all last words, then send a message, and never carry again.
    Remove(Arc<Client>, Vec<u8>),
}

/// What the threads share.
pub struct Inner {
    /// To the other side.
    pub link: Arc<dyn Link>,
    /// Who is served.
    pub places: Places,
    /// The same clients, by place.
    pub clients: RwLock<HashMap<u32, Arc<Client>>>,
    /// For the carrier.
    pub jobs: Jobs<Job>,
    /// Rung for jobs.
    pub bell: Arc<Bell>,
    /// Watches the bell and the clients' doorbells.
    pub epoll: OwnedFd,
    /// Listeners whose applications have not taken all connections: they ring for none that they take.
    pub watched: Mutex<Vec<(u32, u32)>>,
    /// Those who wait for an answer.
    pub answers: Mutex<HashMap<u32, SyncSender<FromCard>>>,
    last: AtomicU32,
    /// It is to end.
    pub stopping: AtomicBool,
    /// The other side is gone.
    pub dead: AtomicBool,
}

impl Inner {
    /// The client in a place.
    pub fn client(&self, place: u32) -> Option<Arc<Client>> {
        self.clients.read().unwrap_or_else(PoisonError::into_inner).get(&place).cloned()
    }
    /// Nobody is in a place any more.
    pub fn forget(&self, place: u32) {
        self.clients.write().unwrap_or_else(PoisonError::into_inner).remove(&place);
        self.link.deregister(key(place));
        self.places.free(place);
    }
    fn give(&self, job: Job) {
        if self.jobs.give(job) {
            self.bell.ring();
        } else {
            // Whoever waits at the link is told, and does the rest.
            self.link.close();
        }
    }
    /// Sends on the lane of all that concerns no client; nobody waits.
    pub fn tell(&self, number: u32, message: &ToCard) {
        self.give(Job::Message(0, written(number, message)));
    }
    /// Sends and waits for the answer; `None` = there is none.
    fn ask(&self, message: &ToCard, patience: Duration) -> Option<FromCard> {
        let number = self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
        let (reply, answer) = sync_channel(1);
        lock(&self.answers).insert(number, reply);
        // Who says that it is dead clears the answers after that.
        let answer = (!self.dead.load(Ordering::SeqCst)).then(|| {
            self.tell(number, message);
            answer.recv_timeout(patience).ok()
        });
        lock(&self.answers).remove(&number);
        answer.flatten()
    }
    fn find(&self, id: ClientId) -> Option<Arc<Client>> {
        self.places.find(id).and_then(|(place, _)| self.client(place))
    }
}

fn written(number: u32, message: &ToCard) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Only one that is too long fails, and what people ask for is not.
    let _ = message::send(&mut bytes, number, message);
    bytes
}

/// A stack on another machine.
pub struct Near {
    inner: Arc<Inner>,
    last_client: AtomicU32,
    threads: Vec<JoinHandle<()>>,
    release: String,
}

impl Near {
    /// Greets the other side, and waits until it serves.
    pub fn start(link: Arc<dyn Link>, geometry: Geometry, guard: Box<dyn Guard>) -> Result<Self, NearError> {
        let (outbox, inbox) = mail::open(&link)?;
        let bell = Bell::new()?;
        let inner = Arc::new(Inner {
            places: Places::new(CLIENTS),
            clients: RwLock::default(),
            jobs: Jobs::default(),
            epoll: epoll_with(&bell)?,
            bell,
            watched: Mutex::default(),
            answers: Mutex::default(),
            last: AtomicU32::new(0),
            stopping: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            link,
        });
        let (first, hello) = sync_channel(1);
        let shower = Shower::new(Arc::clone(&inner), guard, first);
        // From here on what is dropped ends it.
        let mut near = Self { inner, last_client: AtomicU32::new(0), threads: Vec::new(), release: String::new() };
        let spawn = |name: &str| std::thread::Builder::new().name(name.into());
        near.threads.push(spawn("shower").spawn(move || shower.run(inbox))?);
        let mut wire = Wire::new(outbox);
        wire.send(0, &Record::Greeting { version: VERSION, geometry })?;
        let carrier = Carrier::new(Arc::clone(&near.inner), wire);
        near.threads.push(spawn("carrier").spawn(move || carrier.run())?);
        near.release = match hello.recv_timeout(ANSWER) {
            Ok(FromCard::Hello { version: VERSION, release }) => release,
            Ok(FromCard::Hello { .. }) => return Err(NearError::Refused("it is of another version".into())),
            Ok(FromCard::Broken { why }) => return Err(NearError::Refused(why)),
            Ok(_) | Err(RecvTimeoutError::Timeout) => return Err(NearError::Refused("it says nothing".into())),
            Err(RecvTimeoutError::Disconnected) => return Err(Broken::Ended.into()),
        };
        tracing::info!(release = near.release, "the far stack serves");
        Ok(near)
    }

    /// The release of its kernel.
    pub fn release(&self) -> &str {
        &self.release
    }

    fn set_context(&self, client: ClientId, context: u32, bell: Option<OwnedFd>) {
        let Some(client) = self.inner.find(client) else { return };
        let mut out = lock(&client.out);
        client.served.set_context(context, bell);
        out.set_context(context as usize, client.served.bell(context));
    }
    fn is_dead(&self) -> bool {
        self.inner.dead.load(Ordering::Acquire)
    }
    /// Takes a client in, of which the other side does not know yet.
    fn enter(&self, setup: ClientSetup, place: u32) -> io::Result<Arc<Client>> {
        let id = ClientId(self.last_client.fetch_add(1, Ordering::Relaxed).wrapping_add(1));
        let of = (setup.uid, setup.pid, setup.name.clone());
        let served = Arc::new(Served::new(id, Arc::clone(&setup.region), of));
        self.inner.link.register(key(place), Span::of_receives(&setup.region))?;
        for doorbell in &setup.doorbells {
            watch(&self.inner.epoll, doorbell.as_fd(), true)?;
        }
        let lane = lane(place, self.inner.link.lanes());
        let shared = ClientShared::new(id, place, setup);
        let client = Arc::new(Client { served, shared, out: Mutex::new(EventOut::new(0)), lane, place });
        self.inner.places.give(place, Arc::clone(&client.served));
        let mut clients = self.inner.clients.write().unwrap_or_else(PoisonError::into_inner);
        clients.insert(place, Arc::clone(&client));
        Ok(client)
    }
}

impl Stack for Near {
    fn name(&self) -> &'static str {
        "far"
    }
    /// The other side may be in this very namespace.
    fn shares_ports(&self) -> bool {
        true
    }
    fn ground(&self, geometry: Geometry) -> io::Result<Ground> {
        if self.is_dead() {
            return Err(io::Error::from_raw_os_error(libc::ENETDOWN));
        }
        Ground::new(geometry)
    }
    fn add_client(&self, setup: ClientSetup) -> io::Result<ClientId> {
        let full = || io::Error::from_raw_os_error(libc::EUSERS);
        let place = self.inner.places.take().ok_or_else(full)?;
        let (uid, pid, name) = (setup.uid, setup.pid, setup.name.clone());
        let client = self.enter(setup, place).inspect_err(|_| self.inner.forget(place))?;
        let errno = match self.inner.ask(&ToCard::Add { place, uid, pid, name }, ANSWER) {
            Some(FromCard::Done) => {
                let id = client.served.id;
                self.inner.give(Job::Serve(client));
                return Ok(id);
            }
            Some(FromCard::Failed { errno }) => errno,
            // If it comes to it after all, the place must stay as it is.
            _ => return Err(io::Error::from_raw_os_error(libc::ENETDOWN)),
        };
        self.inner.forget(place);
        Err(io::Error::from_raw_os_error(errno))
    }
    fn add_context(&self, client: ClientId, context: u32, bell: OwnedFd) {
        self.set_context(client, context, Some(bell));
    }
    fn drop_context(&self, client: ClientId, context: u32) {
        self.set_context(client, context, None);
    }
    fn reserve(&self, client: ClientId, slot: u32, seq: u32, socket: OwnedFd) {
        let Some(client) = self.inner.find(client) else { return };
        if self.is_dead() {
            return;
        }
        client.served.reserve(slot, seq, socket);
        self.inner.give(Job::Message(client.lane, written(0, &ToCard::Reserve { place: client.place, slot, seq })));
    }
    fn hangup(&self, client: ClientId, slot: u32, generation: u32) {
        let Some(client) = self.inner.find(client) else { return };
        if self.is_dead() {
            return funeral::hang_up(&client.served, slot, generation);
        }
        let message = written(0, &ToCard::Hangup { place: client.place, slot, generation });
        self.inner.give(Job::Hangup(client, slot, message));
    }
    fn departed(&self, client: ClientId, process: u32) {
        if let Some(client) = self.inner.find(client) {
            let message = written(0, &ToCard::Departed { place: client.place, process });
            self.inner.give(Job::Departed(client, process, message));
        }
    }
    fn remove_client(&self, client: ClientId) {
        let Some(client) = self.inner.find(client) else { return };
        if self.is_dead() {
            return self.inner.forget(client.place);
        }
        // Its place is free when the other side has said so.
        let message = written(0, &ToCard::Remove { place: client.place });
        self.inner.give(Job::Remove(client, message));
    }
    fn pair(&self, _: ClientId, _: u32, _: u32) -> Option<PairHandle> {
        None
    }
    fn connections(&self) -> Vec<Connection> {
        match self.inner.ask(&ToCard::Connections, ANSWER) {
            Some(FromCard::Connections(all)) => self.inner.places.connections(all),
            _ => Vec::new(),
        }
    }
    fn status(&self) -> Status {
        match self.inner.ask(&ToCard::Status, ANSWER) {
            Some(FromCard::Status(status)) => self.inner.places.status(*status),
            _ => Status::default(),
        }
    }
    fn cores(&self) -> Cores {
        let nobody = Cores { running: 0, most: 0 };
        threads::answered(self.inner.ask(&ToCard::Cores { running: None }, ANSWER)).unwrap_or(nobody)
    }
    fn set_cores(&self, running: usize) -> io::Result<()> {
        let running = Some(u32::try_from(running).unwrap_or(u32::MAX));
        threads::answered(self.inner.ask(&ToCard::Cores { running }, ANSWER)).map(drop)
    }
    /// Its kernel knows its routes itself.
    fn network_changed(&self) {}
    fn policy_changed(&self) {
        self.inner.ask(&ToCard::Policy, ANSWER);
    }
    fn execute(&self, words: &[String]) -> io::Result<Executed> {
        match self.inner.ask(&ToCard::Run { words: words.to_vec() }, PROGRAM) {
            Some(FromCard::Ran { code, out, err }) => Ok(Executed { code, out, err }),
            Some(FromCard::Failed { errno }) => Err(io::Error::from_raw_os_error(errno)),
            _ => Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer in time")),
        }
    }
    fn stop(self: Box<Self>) {
        drop(self);
    }
}

impl Drop for Near {
    fn drop(&mut self) {
        self.inner.stopping.store(true, Ordering::Release);
        self.inner.link.close();
        for thread in self.threads.drain(..) {
            // When the other side is gone both sleep on the same bell, which wakes one at a time.
            while !thread.is_finished() {
                self.inner.bell.strike();
                std::thread::sleep(Duration::from_millis(1));
            }
            if thread.join().is_err() {
                tracing::error!("a thread of the far stack's host side ended by a panic");
            }
        }
    }
}
