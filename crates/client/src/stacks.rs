//! Sessions of other clients, and sessions with the service's other stacks.
//!
//! The operator's policy may give sockets to another stack (`stack NAME connect ...`). The service tells where that
//! stack is, the process registers there, and the command is posted again. If that fails the call fails: no other
//! network may carry it.

use crate::command::Refusal;
use crate::descriptors::{protect, unprotect};
use crate::session::{self, STARTING, Session, Whose, be_patient, call, call_at_once};
use crate::socket::Socket;
use crate::sys::borrow;
use crate::{callbacks, sessions, sys};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::net::sockopt::socket_peercred;
use std::io::{self, ErrorKind};
use towpath_ring::command::{Command, HOME, MAX_STACKS, op};
use towpath_ring::control::{Reply, Request};
use towpath_ring::report::Count;

/// The place of a socket: its session, slot and generation.
pub type SocketPlace = (&'static Session, u32, u32);

/// For a process without a session: joins the client whose socket is behind a descriptor that has come from elsewhere.
/// `None`: the descriptor cannot be used here.
pub fn join(path: &[u8], fd: i32) -> Option<&'static Session> {
    let _starting = STARTING.lock()?;
    let socket = call(path).ok()?;
    let family = match session::whose(|| session::ask(borrow(&socket.as_raw_fd()), &Request::Adopt, &[fd]))? {
        Whose::Here(token, ..) => token,
        Whose::There(_) => 0,
    };
    sessions::install(Session::register(path, socket, family).ok()?)
}

/// Asks the service for the place of a socket whose descriptor has come from elsewhere, and joins its client. `None`:
/// the descriptor cannot be used here.
pub fn adopt(own: &Session, fd: i32) -> Option<SocketPlace> {
    match session::whose(|| own.ask_with(&Request::Adopt, &[fd]))? {
        Whose::Here(token, slot, generation) => Some((of_family(own, token)?, slot, generation)),
        Whose::There(stack) => adopt_at(own, stack, fd),
    }
}

/// The session of the client that has the region `token`, at the same stack as `own`.
fn of_family(own: &Session, token: u64) -> Option<&'static Session> {
    let same = |session: &&Session| session.token == token && session.stack == own.stack && !session.is_dead();
    let known = || session::all().find(same);
    known().or_else(|| {
        let _starting = STARTING.lock()?;
        known().or_else(|| add(|| Session::register(&own.path, call(&own.path).ok()?, token).ok(), own.stack, false))
    })
}

/// Adds a session to the process's own, if there is room. The caller holds `STARTING`.
fn add(make: impl FnOnce() -> Option<Session>, stack: u32, can_subscribe: bool) -> Option<&'static Session> {
    sessions::add(|| {
        let mut session = make()?;
        (session.stack, session.can_subscribe) = (stack, can_subscribe);
        Some(session)
    })
}

/// A stack's registration socket that this process trusts.
struct Reached {
    /// The socket's file. It stays open as long as the session, because forked children connect to it too.
    file: i32,
    /// A connection to it.
    socket: OwnedFd,
}

/// Who wants a session with another stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedBy {
    /// A call that cannot go on without it. It waits until the stack answers.
    Call,
    /// An incidental check for a service. A hung stack delays it by half a second per step.
    Look,
}

impl WantedBy {
    /// The longest time for an answer.
    fn limit(self) -> Option<Duration> {
        (self == Self::Look).then_some(session::ANSWER)
    }
}

/// The process's session with the other stack of this number. Registers there if there is none.
pub fn session(home: &Session, stack: u32, by: WantedBy) -> Option<&'static Session> {
    known(stack).or_else(|| {
        let _starting = STARTING.lock()?;
        known(stack).or_else(|| add(|| registered(home, stack, by), stack + 1, true))
    })
}

/// A namespace that no stack of the service serves, and until when that is believed (monotonic clock, ms).
static UNSERVED: AtomicU64 = AtomicU64::new(0);
static UNSERVED_UNTIL_MS: AtomicU64 = AtomicU64::new(0);
/// How long the answer "no stack serves it" is believed, ms.
const UNSERVED_FOR_MS: u64 = 500;

/// Why there is no session with the stack of a network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// No stack of the service serves it.
    Unserved,
    /// Its stack cannot be had now, or nobody was asked, as the last answer is not old enough.
    Away,
}

/// The session with the stack that serves the network namespace of a socket, which is not that of the stack of `home`. The
/// kernel says which one it is; that stack looks for itself where this process is.
pub fn of_namespace(home: &Session, socket: i32, by: WantedBy) -> Result<&'static Session, Absent> {
    if !home.finds_stacks() {
        return Err(Absent::Unserved);
    }
    let cookie = sys::getsockopt::<u64>(socket, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, 0);
    let namespace = cookie.map_err(|_| Absent::Unserved)?;
    let serves = |session: &&Session| session.namespace() == Some(namespace);
    if let Some(known) = session::all().find(|known| serves(known) && known.can_subscribe && !known.is_dead()) {
        return Ok(known);
    }
    let now_ms = session::coarse_ms();
    if UNSERVED.load(Ordering::Relaxed) == namespace && now_ms < UNSERVED_UNTIL_MS.load(Ordering::Relaxed) {
        return Err(Absent::Away);
    }
    let found = match home.ask_within(&Request::StackOf { namespace }, &[], by.limit()) {
        Some((Reply::Stack { stack }, _)) => match session(home, stack, by) {
            Some(session) if serves(&session) => Ok(session),
            Some(_) => Err(Absent::Unserved),
            None => Err(Absent::Away),
        },
        Some((Reply::Refused { errno: libc::ENOENT }, _)) => Err(Absent::Unserved),
        _ => Err(Absent::Away),
    };
    if found.is_err() {
        UNSERVED.store(namespace, Ordering::Relaxed);
        UNSERVED_UNTIL_MS.store(now_ms + UNSERVED_FOR_MS, Ordering::Relaxed);
    }
    found
}

/// Registers with a stack. A stack that is about to end may break off, so several attempts are made.
fn registered(home: &Session, stack: u32, by: WantedBy) -> Option<Session> {
    for _ in 0..TRIES {
        let session = reach(home, stack, by).and_then(|reached| register(reached, 0));
        match session {
            Ok(session) => {
                if by == WantedBy::Look {
                    be_patient(borrow(&session.control())).ok()?;
                }
                return Some(session);
            }
            Err(error) if BROKEN_OFF.contains(&error.kind()) => std::thread::sleep(TRY_AGAIN_AFTER),
            Err(_) => return None,
        }
    }
    None
}

/// Errors from a stack that is about to end.
const BROKEN_OFF: [ErrorKind; 4] =
    [ErrorKind::ConnectionRefused, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe, ErrorKind::UnexpectedEof];

/// How many attempts are made.
const TRIES: u32 = 10;
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(20);

fn known(stack: u32) -> Option<&'static Session> {
    session::all().find(|session| session.stack == stack + 1 && session.can_subscribe && !session.is_dead())
}

fn register(Reached { file, socket }: Reached, join: u64) -> io::Result<Session> {
    Ok(Session::register(&path(file), socket, join).inspect_err(|_| unprotect(file))?)
}

/// A path of a file that is valid while this process keeps the descriptor.
fn path(file: i32) -> Vec<u8> {
    format!("/proc/self/fd/{file}").into_bytes()
}

/// Asks the service where a stack is and connects to it.
fn reach(home: &Session, stack: u32, by: WantedBy) -> io::Result<Reached> {
    let refused = || io::Error::from(ErrorKind::PermissionDenied);
    let answer = home.ask_within(&Request::Stack { stack }, &[], by.limit());
    let Some((Reply::Stack { stack: named }, mut files)) = answer else { return Err(refused()) };
    let file = files.pop().filter(|_| named == stack).ok_or_else(refused)?;
    // The stack's service sees everything that the program sends, so it must be trusted.
    let trusted = trusted(home).ok_or_else(refused)?;
    if !trusted.contains(&rustix::fs::fstat(&file)?.st_uid) {
        return Err(refused());
    }
    let file = protect(file).map_err(io::Error::from_raw_os_error)?;
    let connect = || {
        let socket = match by {
            WantedBy::Call => call(&path(file))?,
            WantedBy::Look => call_at_once(&path(file))?,
        };
        let server = socket_peercred(&socket)?.uid.as_raw();
        if trusted.contains(&server) { Ok(socket) } else { Err(refused()) }
    };
    let socket = connect().inspect_err(|_| unprotect(file))?;
    Ok(Reached { file, socket })
}

/// Users whose stacks may carry this process's sockets: its own, root, and the user of its service.
pub(crate) fn trusted(home: &Session) -> Option<[u32; 3]> {
    let server = socket_peercred(borrow(&home.control())).ok()?.uid.as_raw();
    Some([0, rustix::process::geteuid().as_raw(), server])
}

/// [`adopt`] for a socket of another stack.
fn adopt_at(home: &Session, stack: u32, fd: i32) -> Option<SocketPlace> {
    if let Some(own) = known(stack) {
        let Whose::Here(token, slot, generation) = session::whose(|| own.ask_with(&Request::Adopt, &[fd]))? else {
            return None;
        };
        return Some((of_family(own, token)?, slot, generation));
    }
    let _starting = STARTING.lock()?;
    let reached = reach(home, stack, WantedBy::Call).ok()?;
    let ask = || session::ask(borrow(&reached.socket.as_raw_fd()), &Request::Adopt, &[fd]);
    let Whose::Here(token, slot, generation) = session::whose(ask)? else { return None };
    // The process has no session there yet, so it joins the client that the socket belongs to.
    let session = add(|| register(reached, token).ok(), stack + 1, true)?;
    Some((session, slot, generation))
}

/// The socket may appear in another process. That process will ask this service, which is told which stack to ask.
pub fn name(fd: i32, socket: &Socket) {
    if let Some(stack) = socket.session.stack.checked_sub(1)
        && let Some(home) = session::get()
    {
        let _ = home.send(&Request::NameAt { stack }, &[fd]);
    }
}

/// The session with the stack of this number, which may join a socket to a listener of its network namespace.
pub fn of_join(stack: u32) -> Option<&'static Session> {
    let home = session::get().filter(|home| !home.is_dead())?;
    if stack == u32::from(HOME) {
        return Some(home);
    }
    let until_ms = UNREACHED_UNTIL_MS.get(stack as usize)?;
    if let Some(known) = known(stack) {
        return Some(known);
    }
    let now_ms = session::coarse_ms();
    if now_ms < until_ms.load(Ordering::Relaxed) {
        return None;
    }
    let found = session(home, stack, WantedBy::Call);
    if found.is_none() {
        until_ms.store(now_ms + UNSERVED_FOR_MS, Ordering::Relaxed);
    }
    found
}

/// Until when no stack of this number is asked again whether it joins, as it could not be reached (monotonic clock, ms).
static UNREACHED_UNTIL_MS: [AtomicU64; MAX_STACKS] = [const { AtomicU64::new(0) }; MAX_STACKS];

/// Lets the stack of this number take a socket: calls `take` with the session there.
pub fn instead(
    home: &Session,
    stack: u32,
    command: &Command,
    take: impl FnOnce(&'static Session) -> Result<Socket, Refusal>,
) -> Result<Socket, Refusal> {
    let there = session(home, stack, WantedBy::Call).ok_or(Refusal::Kernel(Count::ServiceGone));
    there.and_then(take).map_err(|why| {
        let errno = match why {
            Refusal::Failed(errno) => return Refusal::Failed(errno),
            Refusal::Kernel(Count::NoListener) => return Refusal::Failed(libc::ECONNREFUSED),
            Refusal::Kernel(Count::NoSlot) => libc::ENOBUFS,
            Refusal::Kernel(_) | Refusal::OtherStack(_) | Refusal::Join(_) if command.op == op::LISTEN => {
                libc::EADDRNOTAVAIL
            }
            Refusal::Kernel(_) | Refusal::OtherStack(_) | Refusal::Join(_) => libc::ENETUNREACH,
        };
        (callbacks::get().count)(Count::StackUnreachable);
        Refusal::Failed(errno)
    })
}
