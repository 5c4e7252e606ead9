//! The registration socket, the control socket, and the main loop that accepts on both.

use crate::acceptor::{self, Accepted, Acceptor};
use crate::broker_handle::{BrokerHandle, BrokerRequest};
use crate::client_connection::{self, Peer};
use crate::policy::peer_process;
use crate::state::{ServiceState, Settings};
use crate::{activation, control, descriptor_broker, paths, privileged, received, reload};
use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use towpath_broker::supervise::is_hangup;
use towpath_ring::control::{Reply, send_reply};
use towpath_runtime::Stack;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;
/// Stack of a client connection's thread, bytes. Its tables are on the heap.
const CONNECTION_STACK: usize = 256 << 10;

/// How long the end waits for threads and for answers on the control socket.
const LONGEST_END: Duration = Duration::from_secs(1);
/// How often it looks.
const END_TICK: Duration = Duration::from_millis(1);

/// Why the service cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another service has the lock.
    #[error("another service already listens on {}", .0.display())]
    Running(PathBuf),
    /// A socket or its lock cannot be made.
    #[error("{}", paths::explain(path, source))]
    Io {
        /// Its path.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// Why the main loop has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// A signal.
    Signal,
    /// The control command `stop`.
    Stopped,
    /// No client for as long as `idle_exit` says.
    Idle,
}

/// The two sockets and the lock that makes them ours. Dropping it removes them, if there is no broker to do it.
pub struct Sockets {
    registration: OwnedFd,
    control: OwnedFd,
    path: PathBuf,
    /// The service manager's, who goes on to listen.
    passed: bool,
    _lock: OwnedFd,
}

impl Sockets {
    /// Takes the lock, replaces the sockets of a dead service, and listens. `open` admits every user to connect.
    pub fn listen(path: &Path, open: bool) -> Result<Self, ListenError> {
        let lock = lock_soon(path)?;
        if let Some(passed) = activation::passed().filter(|passed| passed.path() == path) {
            let io = |source| ListenError::Io { path: path.into(), source };
            paths::set_socket_modes(path, open).map_err(io)?;
            let (registration, control) = passed.both().map_err(io)?;
            return Ok(Self { registration, control, path: path.into(), passed: true, _lock: lock });
        }
        // The control socket is there first: `towpath run` asks it as soon as it sees the registration socket.
        let control = bind(&paths::control_socket(path), SocketType::STREAM, open)?;
        let registration = bind(path, SocketType::SEQPACKET, open)?;
        Ok(Self { registration, control, path: path.into(), passed: false, _lock: lock })
    }
}

/// Removes the sockets that a worker has left, or gives back those that were passed. A service that lives keeps its own.
pub fn remove_left(path: &Path) {
    if let Some(passed) = activation::passed() {
        passed.give_back();
        return;
    }
    if let Ok(lock) = lock(path) {
        for path in [path.to_path_buf(), paths::control_socket(path)] {
            if std::fs::symlink_metadata(&path).is_ok_and(|found| found.file_type().is_socket()) {
                let _ = std::fs::remove_file(path);
            }
        }
        drop(lock);
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        // The broker does it ([`remove_left`]): a sandbox removes nothing.
        if privileged::broker().is_some() {
            return;
        }
        if let Some(passed) = activation::passed().filter(|_| self.passed) {
            passed.give_back();
            return;
        }
        for path in [self.path.clone(), paths::control_socket(&self.path)] {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// How long a service waits for another one to end. A worker ends a moment after the broker that was killed.
const ENDING: Duration = Duration::from_millis(300);

/// [`lock`], also while a service ends.
fn lock_soon(socket: &Path) -> Result<OwnedFd, ListenError> {
    let end = Instant::now() + ENDING;
    loop {
        match lock(socket) {
            Err(ListenError::Running(_)) if Instant::now() < end => std::thread::sleep(END_TICK),
            done => return done,
        }
    }
}

/// The lock on the lock file beside the socket. The file stays: removing it would let two services hold "the" lock.
fn lock(socket: &Path) -> Result<OwnedFd, ListenError> {
    let path = paths::lock_file(socket);
    let io = |error: Errno| ListenError::Io { path: path.clone(), source: error.into() };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600)).map_err(io)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(ListenError::Running(socket.into())),
        Err(error) => Err(io(error)),
    }
}

fn bind(path: &Path, kind: SocketType, open: bool) -> Result<OwnedFd, ListenError> {
    let io = |source: io::Error| ListenError::Io { path: path.into(), source };
    // We hold the lock, so a socket there belongs to a dead service. Anything else is not ours to remove.
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path).map_err(io)?,
        Ok(_) => {
            return Err(io(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "there is something that is no socket; remove it",
            )));
        }
        Err(_) => {}
    }
    let make = || -> io::Result<OwnedFd> {
        // Clients must be able to name it. The name under which it is bound may be shorter.
        SocketAddrUnix::new(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
        // Bound under another name, so that no client finds it before it listens.
        let made = path.with_file_name(format!(".{}", std::process::id()));
        let _ = std::fs::remove_file(&made);
        rustix::net::bind(&socket, &SocketAddrUnix::new(&made)?)?;
        paths::set_socket_mode(&made, open)?;
        rustix::net::listen(&socket, BACKLOG)?;
        std::fs::rename(&made, path)?;
        Ok(socket)
    };
    make().map_err(io)
}

/// A service that listens; the stack runs already.
pub struct Server {
    state: Arc<ServiceState>,
    sockets: Sockets,
    broker: JoinHandle<()>,
    acceptor: Acceptor,
}

impl Server {
    /// Starts the descriptor broker.
    pub fn new(settings: Settings, stack: Box<dyn Stack>, sockets: Sockets) -> io::Result<Self> {
        let (sender, requests) = channel();
        let flags = SocketFlags::CLOEXEC;
        let (send, receive) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let state = Arc::new(ServiceState::new(settings, stack, BrokerHandle::new(sender, send))?);
        let broker = {
            let state = state.clone();
            let run = move || descriptor_broker::run(&state, &requests, &receive);
            std::thread::Builder::new().name("broker".into()).spawn(run)?
        };
        Ok(Self { state, sockets, broker, acceptor: Acceptor::new() })
    }

    /// The state that all threads share.
    pub fn state(&self) -> &Arc<ServiceState> {
        &self.state
    }

    /// Accepts until a signal is readable on `signals`, `stop` is commanded, or the idle exit is due.
    pub fn run(&mut self, signals: Option<&SignalFd>) -> io::Result<Ended> {
        self.state.used();
        loop {
            self.state.main_turns();
            let idle_left = self.idle_left();
            if idle_left == Some(Duration::ZERO) {
                return Ok(Ended::Idle);
            }
            let drains = self.state.drains_for();
            if drains == Some(Duration::ZERO) {
                return Ok(Ended::Stopped);
            }
            let wake = self.state.wake_fd();
            let rest = self.acceptor.rests();
            let accepts = if rest.is_none() { PollFlags::IN } else { PollFlags::empty() };
            let mut waiting = vec![
                PollFd::new(&self.sockets.registration, accepts),
                PollFd::new(&self.sockets.control, accepts),
                PollFd::new(wake, PollFlags::IN),
            ];
            waiting.extend(signals.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
            let fixed = waiting.len();
            // Readable when the process has ended.
            let expected = self.state.registry().expected.clone();
            waiting.extend(expected.iter().map(|process| PollFd::new(process, PollFlags::IN)));
            let timeout = idle_left
                .into_iter()
                .chain(rest)
                .chain(drains)
                .min()
                .map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) });
            match poll(&mut waiting, timeout.as_ref()) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let ready: Vec<bool> = waiting.iter().map(|fd| !fd.revents().is_empty()).collect();
            towpath_ring::wake::drain(wake.as_fd());
            if self.state.stop_requested() {
                return Ok(Ended::Stopped);
            }
            if let Some(signals) = signals.filter(|_| ready[fixed - 1])
                && let Ok(Some(signal)) = signals.read_signal()
            {
                if !is_hangup(&signal) {
                    return Ok(Ended::Signal);
                }
                reload::reload_apart(&self.state);
            }
            self.forget(expected.iter().zip(&ready[fixed..]).filter(|(_, ended)| **ended).map(|(process, _)| process));
            if ready[0] {
                self.accept_clients();
            }
            if ready[1] {
                control::accept(&self.state, &self.sockets.control, &mut self.acceptor);
            }
        }
    }

    /// Time until the idle exit. `None` if it cannot become due now.
    fn idle_left(&self) -> Option<Duration> {
        let limit = self.state.settings.live.values().idle_exit?;
        if !self.state.is_unused() {
            return None;
        }
        let unused = self.state.registry().last_use.map_or(Duration::ZERO, |at| Instant::now() - at);
        Some(limit.saturating_sub(unused))
    }

    /// Stops expecting processes that have ended.
    fn forget<'a>(&self, ended: impl Iterator<Item = &'a Arc<OwnedFd>>) {
        for process in ended {
            let mut registry = self.state.registry();
            registry.expected.retain(|one| !Arc::ptr_eq(one, process));
            registry.last_use = Some(Instant::now());
        }
    }

    fn accept_clients(&mut self) {
        for _ in 0..acceptor::BATCH {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match self.acceptor.accept(&self.sockets.registration, flags) {
                Accepted::Connection(socket) => self.admit(socket),
                Accepted::ToRefuse(socket) => {
                    self.refuse(
                        socket.into(),
                        Errno::NFILE,
                        "no descriptor is free; raise the limit with `ulimit -Hn`",
                    );
                }
                Accepted::Nothing => return,
            }
        }
    }

    fn refuse(&mut self, socket: Arc<OwnedFd>, errno: Errno, why: &str) {
        if self.state.client_lines.allows() {
            tracing::warn!("client refused: {why}");
        }
        // An unread Hello would make the close a reset, which the client would read before our answer.
        let _ = send_reply(socket.as_fd(), &Reply::Refused { errno: errno.raw_os_error() }, &[]);
        received::finish_apart(socket);
    }

    fn admit(&mut self, socket: OwnedFd) {
        let Ok(credentials) = rustix::net::sockopt::socket_peercred(&socket) else { return };
        let (uid, gid) = (credentials.uid.as_raw(), credentials.gid.as_raw());
        let socket = Arc::new(socket);
        if let Err(why) = self.state.settings.live.admission().check_client(uid, gid) {
            return self.refuse(socket, Errno::PERM, &why);
        }
        if !self.state.take_descriptors(uid, 1) {
            let why = format!("uid {uid} has its share of descriptors; raise the limit with `ulimit -Hn`");
            return self.refuse(socket, Errno::NFILE, &why);
        }
        let limit = self.state.settings.live.values().clients_per_user;
        let Some(connection) = self.state.registry().add_connection(&socket, uid, limit) else {
            self.state.registry().budget.give_back(uid, 1);
            let why = format!("uid {uid} has {limit} clients already; raise `clients_per_user`");
            return self.refuse(socket, Errno::USERS, &why);
        };
        let pid = credentials.pid.as_raw_nonzero().get();
        let peer = Peer { connection, uid, gid, pid, accepted: peer_process::ticks_now() };
        // Locked until the thread is stored: the descriptor broker must find it to join it.
        let mut registry = self.state.registry();
        let spawned = {
            let (state, socket) = (self.state.clone(), socket.clone());
            let body = move || {
                let served = std::panic::AssertUnwindSafe(|| client_connection::serve(&state, &socket, peer));
                if std::panic::catch_unwind(served).is_err() {
                    tracing::error!(pid = peer.pid, "a client connection has panicked; its client loses it");
                }
                state.broker.post(BrokerRequest::Ended { connection });
            };
            std::thread::Builder::new().name(format!("client {}", peer.pid)).stack_size(CONNECTION_STACK).spawn(body)
        };
        match spawned {
            Ok(thread) => {
                if let Some(entry) = registry.connections.get_mut(&connection) {
                    entry.thread = Some(thread);
                }
            }
            Err(error) => {
                drop(registry);
                self.refuse(socket, Errno::AGAIN, &format!("no thread for it: {error}"));
                self.state.broker.post(BrokerRequest::Ended { connection });
            }
        }
    }

    /// Ends all threads, removes the sockets, and returns the stack. `None` if something still uses it after a second.
    pub fn stop(self) -> Option<Box<dyn Stack>> {
        let sockets = self.sockets;
        let listening = std::thread::Builder::new().name("refused".into()).spawn(move || {
            // Who waits there waits for the next service.
            if !sockets.passed {
                received::end_listening(&sockets.registration);
                received::end_listening(&sockets.control);
            }
        });
        towpath_ring::wake::notify(self.state.stop_fd.as_fd());
        let threads: Vec<JoinHandle<()>> = {
            let mut registry = self.state.registry();
            registry.connections.values_mut().filter_map(|connection| connection.thread.take()).collect()
        };
        let threads: Vec<_> = threads.into_iter().chain(listening.ok()).collect();
        // No thread waits for a client, but the kernel may keep one in a call that a client has prepared.
        let deadline = Instant::now() + LONGEST_END;
        while !threads.iter().all(JoinHandle::is_finished) && Instant::now() < deadline {
            std::thread::sleep(END_TICK);
        }
        self.state.broker.post(BrokerRequest::Quit);
        while !self.broker.is_finished() && Instant::now() < deadline {
            std::thread::sleep(END_TICK);
        }
        // A conversation on the control socket holds the state while it makes an answer.
        let mut state = self.state;
        loop {
            match Arc::try_unwrap(state) {
                Ok(state) => return Some(state.stack),
                Err(busy) => state = busy,
            }
            if Instant::now() >= deadline {
                // A client connection's thread must not be the last to drop it: the descriptors are not in its table.
                std::mem::forget(state);
                return None;
            }
            std::thread::sleep(END_TICK);
        }
    }
}
