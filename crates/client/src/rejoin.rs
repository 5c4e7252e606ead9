//! A service that comes after the process's own has gone. The library looks for it at calls that it sees anyway, about
//! once a second, and has no thread for it.
//!
//! The processes of one client had one region, and have one again. The first of them registers, and leaves the new
//! region's token in the old one.

use crate::liveness::{DEAD_FOUND, found_dead};
use crate::private::Header;
use crate::session::{self, STARTING, Session, Whose, be_patient, call_at_once, coarse_ms};
use crate::sessions;
use crate::stacks::trusted;
use crate::sys::borrow;
use core::sync::atomic::{AtomicU64, Ordering};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::net::sockopt::socket_peercred;
use towpath_ring::control::Request;

/// How often a process looks.
pub const EVERY_MS: u64 = 937;
/// How long a process that registers for its client keeps the others of it waiting at most, should it be killed.
const LEASE_MS: u64 = 5000;

/// When the process looks next, ms.
static NEXT_MS: AtomicU64 = AtomicU64::new(0);

/// Is there something to look after, now or later?
#[inline]
pub fn is_needed() -> bool {
    DEAD_FOUND.load(Ordering::Relaxed)
}

/// Is it time to look? One thread in [`EVERY_MS`] is told so.
#[inline]
pub fn is_due() -> bool {
    is_needed() && is_time()
}

/// [`is_due`], but asks only.
#[inline]
pub fn is_due_now() -> bool {
    is_needed() && coarse_ms() >= NEXT_MS.load(Ordering::Relaxed)
}

#[cold]
fn is_time() -> bool {
    let (now, next) = (coarse_ms(), NEXT_MS.load(Ordering::Relaxed));
    let due = now >= next;
    due && NEXT_MS.compare_exchange(next, now + EVERY_MS, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// The next call looks, however long ago the last one has.
pub fn hurry() {
    NEXT_MS.store(0, Ordering::Relaxed);
}

/// Nothing is left to be done. `more`: the caller knows of something.
pub fn looked(more: bool) {
    DEAD_FOUND.store(more, Ordering::Release);
    let swept = STARTING.lock().is_some_and(|_starting| sessions::sweep());
    if !swept {
        found_dead();
    }
}

/// Has a process of this session's client joined another service?
pub fn has_successor(session: &Session) -> bool {
    session.header().successor.load(Ordering::Acquire) != 0
}

/// Registers with the service that has come in the place of the process's own. `named`: a listener of which another
/// client may have told the service already. `None`: there is none, or it does not serve this process now.
pub fn join(named: Option<i32>) -> Option<&'static Session> {
    let _starting = STARTING.lock()?;
    let lost = session::get()?;
    if !lost.is_dead() {
        return Some(lost);
    }
    let header = lost.header();
    let known = header.successor.load(Ordering::Acquire);
    if known == 0 && !takes_lease(header) {
        return None;
    }
    let joined = register(lost, known, named).and_then(sessions::install);
    match joined {
        Some(session) => header.successor.store(session.token, Ordering::Release),
        // That service may have gone too, with the region.
        None => _ = header.successor.compare_exchange(known, 0, Ordering::AcqRel, Ordering::Relaxed),
    }
    if known == 0 {
        header.succeeding_ms.store(0, Ordering::Release);
    }
    joined
}

/// Is it this process that registers for its client?
fn takes_lease(header: &Header) -> bool {
    let (now, until) = (coarse_ms(), header.succeeding_ms.load(Ordering::Acquire));
    let free = until <= now;
    free && header.succeeding_ms.compare_exchange(until, now + LEASE_MS, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

fn register(lost: &Session, successor: u64, named: Option<i32>) -> Option<Session> {
    let socket = call_at_once(lost.path()).ok()?;
    // The service sees everything that the program sends. Another user's program may have taken its place.
    if !trusted(lost)?.contains(&socket_peercred(&socket).ok()?.uid.as_raw()) {
        return None;
    }
    let client = match successor {
        0 => named.and_then(|fd| client_of(&socket, fd)).unwrap_or(0),
        token => token,
    };
    let session = Session::register(lost.path(), socket, client).ok()?;
    be_patient(borrow(&session.control())).ok()?;
    Some(session)
}

/// The client whose listener this is, by its token.
fn client_of(socket: &OwnedFd, listener: i32) -> Option<u64> {
    match session::whose(|| session::ask(borrow(&socket.as_raw_fd()), &Request::Adopt, &[listener]))? {
        Whose::Here(token, ..) => Some(token),
        Whose::There(_) => None,
    }
}

/// In a forked child.
pub fn forked() {
    STARTING.reset();
    hurry();
}
