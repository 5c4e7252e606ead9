//! The service's other stacks: the operator's policy says which sockets are theirs (`stack NAME connect ...`). The service tells where
//! such a stack is, the process registers there as it has with the service, and the command is given again. What cannot be had there
//! fails: no other network takes its place.

use crate::fallback::{self, Not};
use crate::session::{self, Place, STARTING, Session, Whose, borrow, call};
use crate::socket::Socket;
use crate::table::{self, Kind, SLOT_BITS};
use crate::{context, direct, epoll};
use core::time::Duration;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::net::sockopt::socket_peercred;
use std::io::{self, ErrorKind};
use towpath_ring::command::{Command, op};
use towpath_ring::control::{Reply, Request};
use towpath_ring::report::Count;

/// A registration socket that may be used.
struct Reached {
    /// Its file; stays open as long as the session, whose children connect to it too.
    file: i32,
    /// A connection.
    socket: OwnedFd,
}

/// The process's session with the other stack of this number; registers there if there is none.
pub fn session(home: &Session, stack: u32) -> Option<&'static Session> {
    known(stack).or_else(|| {
        let _starting = STARTING.lock()?;
        known(stack).or_else(|| session::add(|| registered(home, stack), stack + 1, true))
    })
}

/// A stack that is just ending may still be taken for one that serves; so one that breaks off is asked for again.
fn registered(home: &Session, stack: u32) -> Option<Session> {
    for _ in 0..TRIES {
        match reach(home, stack).and_then(|reached| register(reached, 0)) {
            Ok(session) => return Some(session),
            Err(error) if BROKEN_OFF.contains(&error.kind()) => std::thread::sleep(TRY_AGAIN_AFTER),
            Err(_) => return None,
        }
    }
    None
}

/// What is said by a stack that ends.
const BROKEN_OFF: [ErrorKind; 4] =
    [ErrorKind::ConnectionRefused, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe, ErrorKind::UnexpectedEof];

/// How often a stack is asked for.
const TRIES: u32 = 10;
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(20);

fn known(stack: u32) -> Option<&'static Session> {
    session::all().find(|session| session.stack == stack + 1 && session.tells && !session.is_dead())
}

fn register(Reached { file, socket }: Reached, join: u64) -> io::Result<Session> {
    Session::register(&path(file), socket, join).inspect_err(|_| session::unprotect(file))
}

/// A name of a file that holds as long as this process keeps the descriptor.
fn path(file: i32) -> Vec<u8> {
    format!("/proc/self/fd/{file}").into_bytes()
}

/// The number of a session that nobody needs any more, because its stack has gone and its last descriptor too: those of a stack that is
/// started anew time and again would fill the table otherwise. Under `STARTING`.
pub fn vacant() -> Option<u32> {
    let is_open = |number: u32| {
        table::within(0, u32::MAX)
            .any(|(_, kind)| matches!(kind, Kind::Slot { slot, .. } if slot >> SLOT_BITS == number))
    };
    let over = |session: &&Session| session.stack != 0 && session.is_dead() && !is_open(session.number);
    let number = session::all().find(over)?.number;
    epoll::forget_session(number);
    context::forget_session(number);
    direct::forget_session(number);
    Some(number)
}

/// Asks the service where a stack is and connects to it.
fn reach(home: &Session, stack: u32) -> io::Result<Reached> {
    let refused = || io::Error::from(ErrorKind::PermissionDenied);
    let answer = home.ask_with(&Request::Stack { stack }, &[]);
    let Some((Reply::Stack { stack: named }, mut files)) = answer else { return Err(refused()) };
    let file = files.pop().filter(|_| named == stack).ok_or_else(refused)?;
    // Whoever serves there sees all that the program sends.
    let trusted = trusted(home).ok_or_else(refused)?;
    if !trusted.contains(&rustix::fs::fstat(&file)?.st_uid) {
        return Err(refused());
    }
    let file = session::protect(file).map_err(io::Error::from_raw_os_error)?;
    let connect = || {
        let socket = call(&path(file))?;
        let server = socket_peercred(&socket)?.uid.as_raw();
        if trusted.contains(&server) { Ok(socket) } else { Err(refused()) }
    };
    let socket = connect().inspect_err(|_| session::unprotect(file))?;
    Ok(Reached { file, socket })
}

/// Users whose stacks may carry this process's sockets: its own, root, and the one whose service it has registered with.
fn trusted(home: &Session) -> Option<[u32; 3]> {
    let server = socket_peercred(borrow(&home.control())).ok()?.uid.as_raw();
    Some([0, rustix::process::geteuid().as_raw(), server])
}

/// Where the socket of a descriptor lives that has come from elsewhere, and is of another stack.
pub fn adopt(home: &Session, stack: u32, fd: i32) -> Option<Place> {
    if let Some(own) = known(stack) {
        let Whose::Here(token, slot, generation) = session::whose(|| own.ask_with(&Request::Adopt, &[fd]))? else {
            return None;
        };
        return Some((session::of_family(own, token)?, slot, generation));
    }
    let _starting = STARTING.lock()?;
    let reached = reach(home, stack).ok()?;
    let ask = || session::ask(borrow(&reached.socket.as_raw_fd()), &Request::Adopt, &[fd]);
    let Whose::Here(token, slot, generation) = session::whose(ask)? else { return None };
    // The process has nothing there yet: it becomes one more of the family that the socket is from.
    let session = session::add(|| register(reached, token).ok(), stack + 1, true)?;
    Some((session, slot, generation))
}

/// The socket may turn up in another process: the service, which that will ask, is told where to go on.
pub fn name(fd: i32, socket: &Socket) {
    if let Some(stack) = socket.session.stack.checked_sub(1)
        && let Some(home) = session::get()
    {
        let _ = home.send(&Request::NameAt { stack }, &[fd]);
    }
}

/// Has the stack of this number carry what `take` makes of its session.
pub fn instead(
    home: &Session,
    stack: u32,
    command: &Command,
    take: impl FnOnce(&'static Session) -> Result<Socket, Not>,
) -> Result<Socket, Not> {
    let there = session(home, stack).ok_or(Not::Kernels(Count::ServiceGone));
    there.and_then(take).map_err(|why| {
        let errno = match why {
            Not::Failed(errno) => return Not::Failed(errno),
            Not::Kernels(Count::NoListener) => return Not::Failed(libc::ECONNREFUSED),
            Not::Kernels(Count::NoSlot) => libc::ENOBUFS,
            Not::Kernels(_) | Not::Stack(_) if command.op == op::LISTEN => libc::EADDRNOTAVAIL,
            Not::Kernels(_) | Not::Stack(_) => libc::ENETUNREACH,
        };
        fallback::count(Count::StackUnreachable);
        Not::Failed(errno)
    })
}
