//! Requests to the service, and its answers.

use super::{Session, SessionError};
use crate::sys::{Sys, borrow};
use crate::{callbacks, process};
use core::num::NonZeroU32;
use core::sync::atomic::Ordering;
use core::time::Duration;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::sockopt::Timeout;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use towpath_ring::control::{self, Reply, Request, features};
use towpath_ring::layout::VERSION;
use towpath_ring::report::Count;
use towpath_ring::{Geometry, PairGeometry};

/// The place of a socket.
pub enum Whose {
    /// In a region of this service: the region's token, the slot, and the generation.
    Here(u64, u32, u32),
    /// In a region of the service's other stack of this number.
    There(u32),
}

/// The service's answer to a file that it was shown.
pub enum ShownFile {
    /// It has this number.
    Number(NonZeroU32),
    /// The service does not want it.
    Unwanted,
}

/// How often to ask again about a socket without a name. Its sender has named it over another connection, so that may
/// arrive later.
const ASK_AGAIN: u32 = 200;
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(1);
/// How long a service that has come anew, or another stack, may take for an answer where the program has not asked for it.
pub(crate) const ANSWER: Duration = Duration::from_millis(500);

/// Asks a service until the socket has a name.
pub fn whose(ask: impl Fn() -> Option<(Reply, Vec<OwnedFd>)>) -> Option<Whose> {
    for _ in 0..ASK_AGAIN {
        match ask()?.0 {
            Reply::Adopted { token, slot, generation } => return Some(Whose::Here(token, slot, generation)),
            Reply::AdoptedAt { stack } => return Some(Whose::There(stack)),
            Reply::Refused { errno: libc::EAGAIN } => std::thread::sleep(ASK_AGAIN_AFTER),
            _ => return None,
        }
    }
    None
}

/// One request and its answer.
pub fn ask(control: BorrowedFd<'_>, request: &Request, fds: &[i32]) -> Option<(Reply, Vec<OwnedFd>)> {
    let fds: Vec<_> = fds.iter().map(borrow).collect();
    control::send_request(control, request, &fds).ok()?;
    control::recv_reply(control).ok()
}

/// Connects to the service.
pub fn call(path: &[u8]) -> Result<OwnedFd, SessionError> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|errno| SessionError::Process(errno.into()))?;
    let connected = SocketAddrUnix::new(path).and_then(|address| rustix::net::connect(&socket, &address));
    connected.map(|()| socket).map_err(|errno| SessionError::Unreachable(errno.into()))
}

/// [`call`] that never waits, for a program that has not asked for it. Until [`be_patient`] no answer is waited for
/// longer than [`ANSWER`] either.
pub fn call_at_once(path: &[u8]) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    rustix::net::sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER))?;
    rustix::net::sockopt::set_socket_timeout(&socket, Timeout::Send, Some(ANSWER))?;
    Ok(socket)
}

/// From now on answers are waited for as long as they take.
pub fn be_patient(control: BorrowedFd<'_>) -> io::Result<()> {
    rustix::net::sockopt::set_socket_timeout(control, Timeout::Recv, None)?;
    Ok(rustix::net::sockopt::set_socket_timeout(control, Timeout::Send, None)?)
}

/// The contents of a `Welcome` message.
pub(super) struct Welcome {
    pub socket: OwnedFd,
    pub geometry: Geometry,
    pub token: u64,
    pub process: u32,
    pub offset: u64,
    pub features: u32,
    pub namespace: u64,
    pub idle_ms: u32,
    pub fds: Vec<OwnedFd>,
}

/// What this library knows, and what it wants.
fn hello_features() -> u32 {
    known_features() | if has_little_room() { features::SMALL_REGION } else { 0 }
}

/// Would this process have trouble with a region of many GiB, most of which is never touched? Limits count it, and Valgrind
/// keeps books of it, which its Memcheck reads at the end.
fn has_little_room() -> bool {
    let limited = |resource| {
        let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: `limit` is valid for writes during the call.
        (unsafe { libc::getrlimit(resource, &raw mut limit) }) == 0 && limit.rlim_cur != libc::RLIM_INFINITY
    };
    let preloaded = || std::env::var_os("LD_PRELOAD").is_some_and(|all| all.to_string_lossy().contains("vgpreload_"));
    limited(libc::RLIMIT_AS) || limited(libc::RLIMIT_FSIZE) || preloaded()
}

/// The features that this library knows, but for those that `TOWPATH_MASK_FEATURES` names: tests play an older one.
fn known_features() -> u32 {
    let masked = std::env::var("TOWPATH_MASK_FEATURES").ok().and_then(|bits| bits.parse::<u32>().ok());
    features::ALL & !masked.unwrap_or(0)
}

pub(super) fn hello(socket: OwnedFd, join: u64) -> Result<Welcome, SessionError> {
    let hello = Request::Hello { version: VERSION, join, features: hello_features() };
    let sent = control::send_request(socket.as_fd(), &hello, &[]);
    // A service that refuses may have answered and hung up before the request was sent. Its answer says more than
    // EPIPE.
    let answer = control::recv_reply(socket.as_fd()).or_else(|error| sent.and(Err(error)));
    let answer = match answer.map_err(SessionError::conversation)? {
        (Reply::Make { geometry }, _) if join == 0 => {
            let memory = towpath_ring::memory::new_memory(geometry)?;
            let sent = control::send_request(socket.as_fd(), &Request::Region, &[memory.as_fd()]);
            let answer = control::recv_reply(socket.as_fd()).or_else(|error| sent.and(Err(error)));
            answer.map_err(SessionError::conversation)?
        }
        answer => answer,
    };
    match answer {
        (Reply::Welcome { geometry, token, process, offset, features, namespace, idle_ms }, fds) => {
            Ok(Welcome { socket, geometry, token, process, offset, features, namespace, idle_ms, fds })
        }
        (Reply::Refused { errno }, _) => Err(SessionError::Refused(errno)),
        _ => Err(SessionError::Version(std::io::ErrorKind::InvalidData.into())),
    }
}

impl Session {
    /// Sends a request that has no answer.
    pub fn send(&self, request: &Request, fds: &[i32]) -> Sys<()> {
        if self.is_dead() {
            return Err(libc::ENETDOWN);
        }
        self.join();
        let control = self.control.load(Ordering::Acquire);
        let sent = match fds {
            [fd] => control::send_request(borrow(&control), request, &[borrow(fd)]),
            _ => control::send_request(borrow(&control), request, &[]),
        };
        sent.map_err(|_| {
            // A vfork child may have closed descriptors that are still open in its parent.
            if !process::in_vfork_child() {
                self.check_alive();
            }
            libc::ENETDOWN
        })
    }

    /// Asks for an event context.
    pub fn request_context(&self) -> Option<(u32, OwnedFd)> {
        self.join();
        if self.out_of_contexts.load(Ordering::Relaxed) || self.is_dead() {
            return None;
        }
        let _talking = self.talking.lock()?;
        let control = self.control.load(Ordering::Acquire);
        match self.converse(borrow(&control), &Request::Context, &[])? {
            (Reply::Context { context }, mut fds) if context < self.geometry.contexts => {
                if self.makes_memory() {
                    self.region.touch_events(context as usize);
                }
                fds.pop().map(|fd| (context, fd))
            }
            _ => {
                (callbacks::get().count)(Count::NoContext);
                self.out_of_contexts.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    /// Asks for the region of a direct pair.
    pub fn request_pair(&self, place: u32, pair: u32) -> Option<(PairGeometry, OwnedFd)> {
        match self.ask(&Request::Pair { place, pair })? {
            (Reply::Pair { pair: named, geometry }, mut fds) if named == pair => fds.pop().map(|fd| (geometry, fd)),
            _ => None,
        }
    }

    /// Asks for a doorbell of the peer in a direct pair.
    pub fn request_doorbell(&self, place: u32, pair: u32, context: u32) -> Option<OwnedFd> {
        match self.ask(&Request::Doorbell { place, pair, context })? {
            (Reply::Doorbell { context: named }, mut fds) if named == context => fds.pop(),
            _ => None,
        }
    }

    /// Shows the service an open file, which takes the place of `replaces`. `None` = no answer.
    pub fn show_file(&self, input: i32, replaces: Option<NonZeroU32>) -> Option<ShownFile> {
        let replaces = replaces.map_or(0, NonZeroU32::get);
        match self.ask_with(&Request::File { replaces }, &[input])?.0 {
            Reply::File { file } => Some(NonZeroU32::new(file).map_or(ShownFile::Unwanted, ShownFile::Number)),
            Reply::Refused { errno } => {
                self.no_files.fetch_or(errno == libc::EOPNOTSUPP, Ordering::Relaxed);
                Some(ShownFile::Unwanted)
            }
            _ => None,
        }
    }

    /// Has the stack refused to send files?
    pub fn takes_no_files(&self) -> bool {
        self.no_files.load(Ordering::Relaxed)
    }

    fn ask(&self, request: &Request) -> Option<(Reply, Vec<OwnedFd>)> {
        self.ask_with(request, &[])
    }

    /// One request on the session's connection, and its answer. One thread at a time.
    pub fn ask_with(&self, request: &Request, fds: &[i32]) -> Option<(Reply, Vec<OwnedFd>)> {
        self.ask_within(request, fds, None)
    }

    /// [`Session::ask_with`], with a limit on the time for the answer. One that comes later is nobody's.
    pub fn ask_within(&self, request: &Request, fds: &[i32], limit: Option<Duration>) -> Option<(Reply, Vec<OwnedFd>)> {
        self.join();
        if self.is_dead() {
            return None;
        }
        // A process that could not join shares its connection with another, and would get that one's answers.
        if self.joined_pid.load(Ordering::Relaxed) != process::pid() || self.shares_connection.load(Ordering::Relaxed) {
            return None;
        }
        let _talking = self.talking.lock()?;
        let control = self.control.load(Ordering::Acquire);
        let control = borrow(&control);
        let limits = |limit| rustix::net::sockopt::set_socket_timeout(control, Timeout::Recv, limit);
        if limit.is_some() {
            limits(limit).ok()?;
        }
        let answer = self.converse(control, request, fds);
        if limit.is_some() {
            let _ = limits(None);
        }
        answer
    }

    /// A request and its answer. The caller holds `talking`.
    fn converse(&self, control: BorrowedFd<'_>, request: &Request, fds: &[i32]) -> Option<(Reply, Vec<OwnedFd>)> {
        // The service answers in order.
        while self.unheard.load(Ordering::Relaxed) > 0 {
            control::recv_reply(control).ok()?;
            self.unheard.fetch_sub(1, Ordering::Relaxed);
        }
        let fds: Vec<_> = fds.iter().map(borrow).collect();
        control::send_request(control, request, &fds).ok()?;
        let answer = control::recv_reply(control);
        if answer.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            self.unheard.fetch_add(1, Ordering::Relaxed);
        }
        answer.ok()
    }
}
