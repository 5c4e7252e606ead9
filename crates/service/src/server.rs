//! The registration and control sockets and the main loop.

use crate::keeper::{self, Peer};
use crate::shared::{Call, Settings, Shared, desk};
use crate::{control, paths};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use towpath_ring::control::{MESSAGE_BYTES, Reply, send_reply};
use towpath_stack::Stack;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;
/// Stack of a keeper thread, bytes: it keeps its tables on the heap.
const KEEPER_STACK: usize = 256 << 10;

/// How often, every 10 ms, the end waits for an answer on the control socket to be finished.
const STOP_TRIES: u32 = 100;

/// Why the service cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another one has the lock.
    #[error("another service already listens on {}", .0.display())]
    Running(PathBuf),
    /// A socket or its lock cannot be made.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
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

/// The two sockets, and the lock that says that they are ours. They are removed with it.
pub struct Sockets {
    registration: OwnedFd,
    control: OwnedFd,
    path: PathBuf,
    _lock: OwnedFd,
}

impl Sockets {
    /// Takes the lock, replaces what a dead service has left, listens. `open` = for every user.
    pub fn listen(path: &Path, open: bool) -> Result<Self, ListenError> {
        let lock = lock(path)?;
        // Whoever sees the registration socket may rely on the other, which `towpath run` asks first.
        let control = bind(&paths::control_socket(path), SocketType::STREAM, open)?;
        let registration = bind(path, SocketType::SEQPACKET, open)?;
        Ok(Self { registration, control, path: path.into(), _lock: lock })
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        for path in [self.path.clone(), paths::control_socket(&self.path)] {
            let _ = std::fs::remove_file(path);
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
    // We hold the lock, so a socket there is a dead service's. Anything else is not ours to remove.
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(path).map_err(io)?,
        Ok(_) => return Err(io(io::Error::new(io::ErrorKind::AlreadyExists, "there is something that is no socket"))),
        Err(_) => {}
    }
    let make = || -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
        // Nobody finds it before it listens.
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
    shared: Arc<Shared>,
    sockets: Sockets,
    desk: JoinHandle<()>,
    /// Given up to accept, refuse and close when descriptors have run out.
    spare: Option<OwnedFd>,
    refusals: Throttle,
}

impl Server {
    /// Starts the desk.
    pub fn new(settings: Settings, stack: Box<dyn Stack>, sockets: Sockets) -> io::Result<Self> {
        let (sender, calls) = channel();
        let flags = SocketFlags::CLOEXEC;
        let (send, receive) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let shared = Arc::new(Shared::new(settings, stack, sender, send)?);
        let desk = {
            let shared = shared.clone();
            let run = move || desk(&shared, &calls, &receive);
            std::thread::Builder::new().name("desk".into()).spawn(run)?
        };
        Ok(Self { shared, sockets, desk, spare: spare(), refusals: Throttle::default() })
    }

    /// For tests and the control interface.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Accepts until a signal is readable on `signals`, `stop` is commanded, or nobody has been there for long.
    pub fn run(&mut self, signals: Option<BorrowedFd<'_>>) -> io::Result<Ended> {
        self.shared.used();
        loop {
            let idle_left = self.idle_left();
            if idle_left == Some(Duration::ZERO) {
                return Ok(Ended::Idle);
            }
            let wake = self.shared.wake_fd();
            let mut waiting = vec![
                PollFd::new(&self.sockets.registration, PollFlags::IN),
                PollFd::new(&self.sockets.control, PollFlags::IN),
                PollFd::new(wake, PollFlags::IN),
            ];
            waiting.extend(signals.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
            let fixed = waiting.len();
            // Readable when the process has ended.
            let expected = self.shared.registry().expected.clone();
            waiting.extend(expected.iter().map(|process| PollFd::new(process, PollFlags::IN)));
            let timeout = idle_left
                .map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) });
            match poll(&mut waiting, timeout.as_ref()) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let ready: Vec<bool> = waiting.iter().map(|fd| !fd.revents().is_empty()).collect();
            towpath_ring::wake::drain(wake.as_fd());
            if self.shared.stop_requested() {
                return Ok(Ended::Stopped);
            }
            if signals.is_some() && ready[fixed - 1] {
                return Ok(Ended::Signal);
            }
            self.forget(expected.iter().zip(&ready[fixed..]).filter(|(_, ended)| **ended).map(|(process, _)| process));
            if ready[0] {
                self.accept_clients();
            }
            if ready[1] {
                control::accept(&self.shared, &self.sockets.control);
            }
        }
    }

    /// Time until the idle exit; `None` = none is due.
    fn idle_left(&self) -> Option<Duration> {
        let limit = self.shared.settings.idle_exit?;
        let registry = self.shared.registry();
        if !registry.connections.is_empty() || !registry.expected.is_empty() {
            return None;
        }
        let unused = registry.last_use.map_or(Duration::ZERO, |at| Instant::now() - at);
        Some(limit.saturating_sub(unused))
    }

    /// Processes that have ended are not expected any more.
    fn forget<'a>(&self, ended: impl Iterator<Item = &'a Arc<OwnedFd>>) {
        for process in ended {
            let mut registry = self.shared.registry();
            registry.expected.retain(|one| !Arc::ptr_eq(one, process));
            registry.last_use = Some(Instant::now());
        }
    }

    fn accept_clients(&mut self) {
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.sockets.registration, flags) {
                Ok(socket) => self.admit(socket),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::MFILE | Errno::NFILE) if self.spare.is_some() => self.refuse_for_want_of_descriptors(),
                Err(_) => return,
            }
        }
    }

    /// Without a free descriptor the connection could not even be refused, and would be reported ready for ever.
    fn refuse_for_want_of_descriptors(&mut self) {
        self.spare = None;
        if let Ok(socket) = rustix::net::accept_with(&self.sockets.registration, SocketFlags::CLOEXEC) {
            self.refuse(&socket, Errno::NFILE, "no descriptor is free; raise the limit with `ulimit -Hn`");
        }
        self.spare = spare();
    }

    fn refuse(&mut self, socket: &OwnedFd, errno: Errno, why: &str) {
        if self.refusals.allows() {
            tracing::warn!("client refused: {why}");
        }
        // Closing it with an unread Hello would reset the connection, and the client would read that before our answer.
        let _ = rustix::net::shutdown(socket, Shutdown::Read);
        let mut packet = [0; MESSAGE_BYTES];
        while rustix::net::recv(socket, &mut packet[..], RecvFlags::DONTWAIT).is_ok_and(|(n, _)| n > 0) {}
        let _ = send_reply(socket.as_fd(), &Reply::Refused { errno: errno.raw_os_error() }, &[]);
    }

    fn admit(&mut self, socket: OwnedFd) {
        let Ok(credentials) = rustix::net::sockopt::socket_peercred(&socket) else { return };
        let (uid, gid) = (credentials.uid.as_raw(), credentials.gid.as_raw());
        if let Err(why) = self.shared.settings.admission.check(uid, gid) {
            return self.refuse(&socket, Errno::PERM, &why);
        }
        let socket = Arc::new(socket);
        let Some(connection) = self.shared.admit(&socket, uid) else {
            let limit = self.shared.settings.clients_per_user;
            let why = format!("uid {uid} has {limit} clients already; raise `clients_per_user`");
            return self.refuse(&socket, Errno::USERS, &why);
        };
        let peer = Peer { connection, uid, gid, pid: credentials.pid.as_raw_nonzero().get() };
        // Locked until the thread is noted: the desk, which joins it, must find it.
        let mut registry = self.shared.registry();
        let spawned = {
            let (shared, socket) = (self.shared.clone(), socket.clone());
            let body = move || {
                let served = std::panic::AssertUnwindSafe(|| keeper::serve(&shared, &socket, peer));
                if std::panic::catch_unwind(served).is_err() {
                    tracing::error!(pid = peer.pid, "a keeper has panicked; its client loses its connection");
                }
                shared.call(Call::Ended { connection });
            };
            std::thread::Builder::new().name(format!("keep {}", peer.pid)).stack_size(KEEPER_STACK).spawn(body)
        };
        match spawned {
            Ok(thread) => {
                if let Some(entry) = registry.connections.get_mut(&connection) {
                    entry.thread = Some(thread);
                }
            }
            Err(error) => {
                drop(registry);
                self.refuse(&socket, Errno::AGAIN, &format!("no thread for it: {error}"));
                self.shared.call(Call::Ended { connection });
            }
        }
    }

    /// Ends all threads and removes the sockets; then gives the stack back.
    pub fn stop(self) -> Option<Box<dyn Stack>> {
        drop(self.sockets);
        towpath_ring::wake::ring(self.shared.stop_fd.as_fd());
        let threads: Vec<_> = {
            let mut registry = self.shared.registry();
            registry.connections.values_mut().filter_map(|connection| connection.thread.take()).collect()
        };
        for thread in threads {
            let _ = thread.join();
        }
        self.shared.call(Call::Quit);
        let _ = self.desk.join();
        // A question on the control socket may hold it for the moment of its answer.
        let mut shared = self.shared;
        for _ in 0..STOP_TRIES {
            match Arc::try_unwrap(shared) {
                Ok(shared) => return Some(shared.stack),
                Err(busy) => shared = busy,
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }
}

fn spare() -> Option<OwnedFd> {
    rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Ten lines a second at most, so that a stranger cannot fill the log.
#[derive(Default)]
pub struct Throttle {
    second: Option<Instant>,
    lines: u32,
}

impl Throttle {
    const LINES: u32 = 10;

    /// May one more be written now?
    pub fn allows(&mut self) -> bool {
        let now = Instant::now();
        if self.second.is_none_or(|start| now - start >= Duration::from_secs(1)) {
            *self = Self { second: Some(now), lines: 0 };
        }
        self.lines += 1;
        self.lines <= Self::LINES
    }
}
