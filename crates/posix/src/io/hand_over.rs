//! A proxy that passes bytes on by `splice` is taken out of the data path, if the operator has said so
//! (`towpath run --splice`). It knows nothing of it.
//!
//! Two sockets are **handed over** to the stack once the program has spliced all of both into each other, asks for everything
//! that comes, and has none of it in its pipes or its memory. From then on the stack says how much has passed. The program is
//! **owed** these bytes: its sockets are readable now and then, `splice` from one of them "moves" them to the pipe, and
//! `splice` from the pipe moves them on. So the program counts them, and its time-outs begin anew. No byte of
//! them is in the pipe.

pub mod calls;
mod learned;
mod ports;

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use learned::{Key, Learned};
use std::time::Instant;
use towpath_client::lock::Lock;
use towpath_client::socket::Socket;
use towpath_ring::lines::status;

struct Table {
    lock: Lock,
    learned: UnsafeCell<Learned>,
}

// SAFETY: `learned` is only accessed under the lock.
unsafe impl Sync for Table {}

static TABLE: Table = Table { lock: Lock::new(), learned: UnsafeCell::new(Learned::new()) };
/// Sockets with a nudge: as long as there is none, waits do not ask.
static NUDGES: AtomicUsize = AtomicUsize::new(0);
/// Pipes with something that is known here.
static PIPES: AtomicUsize = AtomicUsize::new(0);

/// Runs `work` with what is known. `None`: a signal handler has interrupted other work with it.
fn with<R>(work: impl FnOnce(&mut Learned) -> R) -> Option<R> {
    let _locked = TABLE.lock.lock()?;
    // SAFETY: the lock is held, so this is the only reference.
    let learned = unsafe { &mut *TABLE.learned.get() };
    let done = work(learned);
    NUDGES.store(learned.nudges(), Ordering::Release);
    PIPES.store(learned.pipes(), Ordering::Release);
    Some(done)
}

fn key(socket: &Socket) -> Key {
    (socket.number(), socket.generation)
}

fn socket_of((number, generation): Key) -> Option<Socket> {
    Socket::at(number, generation).filter(|socket| !socket.is_gone())
}

/// How many bytes of its peer have passed since it was handed over.
fn passed(socket: &Socket) -> u64 {
    socket.session.region.counts(socket.slot).passed_on.load(Ordering::Acquire)
}

/// Is a socket that splices to be called readable, although it has no bytes?
#[cold]
pub fn is_readable(socket: &Socket) -> bool {
    with(|learned| learned.is_readable(key(socket), || passed(socket), Instant::now())) == Some(true)
}

/// An epoll instance has reported these events of the socket.
#[cold]
pub fn shown(socket: &Socket, events: u32) {
    with(|learned| learned.shown(key(socket), events, || passed(socket), Instant::now()));
}

/// Will the socket be readable without an event of the stack?
#[inline]
pub fn is_waited_for(socket: &Socket) -> bool {
    NUDGES.load(Ordering::Acquire) != 0 && with(|learned| learned.waits(key(socket), Instant::now())) == Some(true)
}

/// Shortens a sleep of `time` so that it ends when a socket is to be called readable.
#[inline]
pub fn sleep_of(time: Duration) -> Duration {
    if NUDGES.load(Ordering::Acquire) == 0 {
        return time;
    }
    let now = Instant::now();
    let next = with(|learned| learned.next(now)).flatten();
    next.map_or(time, |at| time.min(at.saturating_duration_since(now)))
}

/// A socket that splices is being closed.
#[cold]
pub fn closed(socket: &Socket) {
    with(|learned| learned.closed(key(socket)));
}

/// The program ends the stream to the peer of this socket, which splices. If it is handed over, and not because the other peer
/// has ended its own, then both end.
#[cold]
pub fn ends_early(socket: &Socket) -> bool {
    let partner = with(|learned| learned.partner(key(socket))).flatten();
    partner.is_some_and(|partner| {
        socket_of(partner).is_none_or(|partner| partner.status() & (status::RX_EOF | status::RESET) == 0)
    })
}

/// In a forked child: the sockets are the parent's, too.
pub fn forked() {
    TABLE.lock.reset();
    // Another thread of the parent may have been at work there, so it is left as it is.
    with(|learned| core::mem::forget(core::mem::replace(learned, Learned::new())));
}
