//! A stack that only notes what it is told, a service around it, and a client that speaks the registration protocol.
#![allow(dead_code, missing_docs)]

use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use towpath_ring::Geometry;
use towpath_ring::control::{Reply, Request, recv_reply, send_request};
use towpath_ring::layout::VERSION;
use towpath_service::admission::Admission;
use towpath_service::server::{Ended, Server, Sockets};
use towpath_service::shared::{Settings, Shared};
use towpath_stack::{ClientId, ClientSetup, ClientStatus, Connection, PairHandle, Stack, Status};

/// What the stack was told.
#[derive(Debug)]
pub enum Told {
    Client { id: ClientId, uid: u32, pid: i32, doorbells: usize },
    Context { id: ClientId, context: u32, wake: OwnedFd },
    DropContext { id: ClientId, context: u32 },
    Reserve { id: ClientId, slot: u32, held: Option<OwnedFd> },
    Hangup { id: ClientId, slot: u32, generation: u32 },
    Departed { id: ClientId, process: u32 },
    Removed { id: ClientId },
}

/// Notes everything, keeps what it is given.
#[derive(Clone, Default)]
pub struct NotingStack {
    pub told: Arc<Mutex<Vec<Told>>>,
    /// Users of the sockets and clients that it pretends to have.
    pub listed: Arc<Mutex<Vec<u32>>>,
    next: Arc<AtomicU32>,
}

impl NotingStack {
    fn note(&self, told: Told) {
        self.told.lock().unwrap().push(told);
    }
    pub fn count(&self, which: impl Fn(&Told) -> bool) -> usize {
        self.told.lock().unwrap().iter().filter(|told| which(told)).count()
    }
    pub fn removed(&self) -> usize {
        self.count(|told| matches!(told, Told::Removed { .. }))
    }
    pub fn hangups(&self) -> Vec<(u32, u32)> {
        let told = self.told.lock().unwrap();
        told.iter()
            .filter_map(
                |t| if let Told::Hangup { slot, generation, .. } = t { Some((*slot, *generation)) } else { None },
            )
            .collect()
    }
}

impl Stack for NotingStack {
    fn name(&self) -> &'static str {
        "noting"
    }
    fn add_client(&self, setup: ClientSetup) -> io::Result<ClientId> {
        let id = ClientId(self.next.fetch_add(1, Ordering::Relaxed));
        self.note(Told::Client { id, uid: setup.uid, pid: setup.pid, doorbells: setup.doorbells.len() });
        Ok(id)
    }
    fn add_context(&self, id: ClientId, context: u32, wake: OwnedFd) {
        self.note(Told::Context { id, context, wake });
    }
    fn drop_context(&self, id: ClientId, context: u32) {
        self.note(Told::DropContext { id, context });
    }
    fn reserve(&self, id: ClientId, slot: u32, _seq: u32, socket: OwnedFd) {
        self.note(Told::Reserve { id, slot, held: Some(socket) });
    }
    fn hangup(&self, id: ClientId, slot: u32, generation: u32) {
        self.note(Told::Hangup { id, slot, generation });
    }
    fn departed(&self, id: ClientId, process: u32) {
        self.note(Told::Departed { id, process });
    }
    fn policy_changed(&self) {}
    fn pair(&self, _: ClientId, _: u32, _: u32) -> Option<PairHandle> {
        None
    }
    fn remove_client(&self, id: ClientId) {
        self.note(Told::Removed { id });
    }
    fn connections(&self) -> Vec<Connection> {
        let any = (Ipv4Addr::UNSPECIFIED, 0).into();
        let connection = |uid: &u32| Connection {
            local: any,
            remote: any,
            state: "ESTAB",
            client: None,
            slot: 0,
            uid: *uid,
            pid: 1,
            program: "program".into(),
            tcp: None,
            tx_queue: 0,
            rx_queue: 0,
            core: None,
            direct: false,
        };
        self.listed.lock().unwrap().iter().map(connection).collect()
    }
    fn status(&self) -> Status {
        let client = |uid: &u32| ClientStatus {
            id: ClientId(0),
            uid: *uid,
            pid: 1,
            name: "program".into(),
            slots: 0,
            lies: 0,
            leaving: false,
        };
        let clients = self.listed.lock().unwrap().iter().map(client).collect();
        Status { clients, ..Status::default() }
    }
    fn network_changed(&self) {}
    fn stop(self: Box<Self>) {}
}

pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("towpath-service-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }
    pub fn socket(&self) -> PathBuf {
        self.0.join("towpath.sock")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub const GEOMETRY: Geometry =
    Geometry { slots: 64, app_slots: 32, tx_bytes: 4096, rx_bytes: 4096, contexts: 4, cores: 2 };

/// A service in this process.
pub struct Service {
    pub stack: NotingStack,
    pub shared: Arc<Shared>,
    pub scratch: Scratch,
    thread: Option<std::thread::JoinHandle<Ended>>,
}

impl Service {
    pub fn start(name: &str) -> Self {
        Self::with(name, |_| {})
    }
    pub fn with(name: &str, change: impl FnOnce(&mut Settings)) -> Self {
        let scratch = Scratch::new(name);
        let mut settings = Settings {
            socket: scratch.socket(),
            geometry: GEOMETRY,
            policy: towpath_service::policy::Policy::new(Vec::new(), Default::default()).unwrap(),
            stacks: Default::default(),
            auto: towpath_service::auto::Auto::new(towpath_service::auto::Reach::Network, false),
            admission: Admission::new(rustix::process::geteuid().as_raw(), &[]).unwrap(),
            cores: towpath_service::cores::Cores::Fixed(1),
            clients_per_user: 300,
            idle_exit: None,
            interface: None,
            ports: vec!["memory".into()],
        };
        change(&mut settings);
        let stack = NotingStack::default();
        let sockets = Sockets::listen(&scratch.socket(), false).unwrap();
        let mut server = Server::new(settings, Box::new(stack.clone()), sockets).unwrap();
        let shared = server.shared().clone();
        let thread = std::thread::spawn(move || {
            let ended = server.run(None).unwrap();
            server.stop();
            ended
        });
        Self { stack, shared, scratch, thread: Some(thread) }
    }
    pub fn connect(&self) -> OwnedFd {
        connect(&self.scratch.socket()).unwrap()
    }
    pub fn client(&self) -> Client {
        Client::hello(self.connect(), 0).unwrap()
    }
    pub fn wait_end(mut self) -> Ended {
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shared.request_stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// A registered client.
#[derive(Debug)]
pub struct Client {
    pub socket: OwnedFd,
    pub token: u64,
    pub process: u32,
    pub geometry: Geometry,
    pub descriptors: Vec<OwnedFd>,
}

impl Client {
    /// `Err` = refused with this errno.
    pub fn hello(socket: OwnedFd, join: u64) -> Result<Self, i32> {
        send_request(socket.as_fd(), &Request::Hello { version: VERSION, join }, &[]).unwrap();
        Self::welcomed(socket)
    }
    pub fn welcomed(socket: OwnedFd) -> Result<Self, i32> {
        match recv_reply(socket.as_fd()).unwrap() {
            (Reply::Welcome { geometry, token, process, .. }, descriptors) => {
                Ok(Self { socket, token, process, geometry, descriptors })
            }
            (Reply::Refused { errno }, _) => Err(errno),
            other => panic!("{other:?}"),
        }
    }
    pub fn send(&self, request: &Request, fds: &[&OwnedFd]) -> io::Result<()> {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        send_request(self.socket.as_fd(), request, &fds)
    }
    /// Attaches a socketpair to a slot; gives the application's end.
    pub fn attach(&self, slot: u32, generation: u32) -> OwnedFd {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        self.send(&Request::Attach { slot, generation }, &[&theirs]).unwrap();
        ours
    }
    /// Asks for a context; `Err` = refused.
    pub fn context(&self) -> Result<(u32, OwnedFd), i32> {
        self.send(&Request::Context, &[]).unwrap();
        match recv_reply(self.socket.as_fd()).unwrap() {
            (Reply::Context { context }, mut fds) => Ok((context, fds.pop().unwrap())),
            (Reply::Refused { errno }, _) => Err(errno),
            other => panic!("{other:?}"),
        }
    }
    /// Has the service closed the connection?
    pub fn lost(&self) -> bool {
        is_lost(&self.socket)
    }
}

pub fn is_lost(socket: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut waiting = [PollFd::new(socket, PollFlags::empty())];
    poll(&mut waiting, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
    waiting[0].revents().contains(PollFlags::HUP)
}

/// Waits until `condition` holds; at most 90 s.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(90);
    while !condition() {
        assert!(Instant::now() < end, "not within 90 s: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Holds for a moment: what must not happen has time to happen.
pub fn a_moment() {
    std::thread::sleep(Duration::from_millis(50));
}
