//! Blocking on one socket: spins, then sleeps on its event word.

use crate::held;
use crate::session::Session;
use crate::sleep::Sleep;
use crate::socket::Socket;
use crate::sys::{self, Sys};
use crate::undo_log::Undo;
use crate::{direct, doorbell};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::time::Instant;
use towpath_ring::wake::{self, Woken};

/// The time at which a call gives up. `None` = never.
pub type Deadline = Option<Instant>;

/// The value of a time limit (µs) with which no call waits.
pub const NO_WAIT: u64 = u64::MAX;

/// The deadline that follows from a time limit in µs (0 = none).
pub fn deadline(timeout_us: u64) -> Deadline {
    match timeout_us {
        0 => None,
        NO_WAIT => Some(Instant::now()),
        us => Instant::now().checked_add(Duration::from_micros(us)),
    }
}

/// The time until the deadline, at most `longest`.
pub fn remaining(deadline: Deadline, longest: Duration) -> Option<Duration> {
    let longest = held::sleep_of(longest);
    let Some(deadline) = deadline else { return Some(longest) };
    let left = deadline.checked_duration_since(Instant::now())?;
    (!left.is_zero()).then(|| left.min(longest))
}

/// Waits until `ready` holds. EAGAIN: the deadline has passed. EINTR: a signal handler has run that does not restart
/// calls. With a deadline, any handler gives EINTR.
pub fn until(socket: &Socket, deadline: Deadline, ready: impl FnMut() -> bool) -> Sys<()> {
    wait(socket, deadline, deadline.is_none(), ready)
}

/// [`until`] for `accept`: a new connection wakes only one of the threads that sleep in it.
pub fn until_exclusive(socket: &Socket, deadline: Deadline, ready: impl FnMut() -> bool) -> Sys<()> {
    wait_as(Some(&socket.session.region.command(socket.slot).accepting), socket, deadline, deadline.is_none(), ready)
}

/// [`until`] that any signal handler interrupts, as it interrupts `poll`.
pub fn until_signal(socket: &Socket, deadline: Deadline, ready: impl FnMut() -> bool) -> Sys<()> {
    wait(socket, deadline, false, ready)
}

/// Sleeps until the word changes or the time is up. EINTR as in [`until`].
fn sleep(word: &AtomicU32, seen: u32, time: Duration, restarts: bool) -> Sys<Woken> {
    if restarts {
        match sys::sleep_on(word, seen, time) {
            Ok(()) => return Ok(Woken::Changed),
            Err(libc::ETIMEDOUT) => return Ok(Woken::TimedOut),
            Err(libc::EINTR) => return Err(libc::EINTR),
            // The kernel is older, or a seccomp filter forbids the call.
            Err(_) => {}
        }
    }
    match wake::futex_wait(word, seen, Some(time)) {
        Ok(Woken::Interrupted) if !restarts || !sys::signals_restart() => Err(libc::EINTR),
        Ok(woken) => Ok(woken),
        Err(_) => Ok(Woken::Changed),
    }
}

fn wait(socket: &Socket, deadline: Deadline, restarts: bool, ready: impl FnMut() -> bool) -> Sys<()> {
    wait_as(None, socket, deadline, restarts, ready)
}

fn wait_as(
    kind: Option<&'static AtomicU32>,
    socket: &Socket,
    deadline: Deadline,
    restarts: bool,
    mut ready: impl FnMut() -> bool,
) -> Sys<()> {
    if direct::spin(socket.session, &mut ready) {
        return Ok(());
    }
    let other = socket.direct();
    let (sleepers, event_seq) = match &other {
        Some(direct) => (&direct.own().line.sleepers, &direct.own().event_seq),
        None => (&socket.app().sleepers, &socket.stack().event_seq),
    };
    // The general count is the first to go up and the last to go down. A stack that compares the two counts must not
    // miss a sleeper.
    sleepers.fetch_add(1, Ordering::SeqCst);
    kind.inspect(|kind| _ = kind.fetch_add(1, Ordering::SeqCst));
    wake::about_to_sleep::<AtomicU32>();
    let asleep = Sleep::on(Some(event_seq), Undo::Sleeper(sleepers, kind));
    let result = loop {
        let seen = event_seq.load(Ordering::Acquire);
        if ready() {
            break Ok(());
        }
        if let Err(canceled) = asleep.check() {
            break Err(canceled);
        }
        let turn = socket.session.liveness.turn();
        let Some(time) = remaining(deadline, turn.longest()) else { break Err(libc::EAGAIN) };
        match asleep.interrupted(sleep(event_seq, seen, time, restarts)) {
            Err(errno) => break Err(errno),
            Ok(Woken::TimedOut) => check_service(socket.session),
            Ok(_) => {}
        }
    };
    drop(asleep);
    socket.event_seen();
    result
}

/// After a sleep in which nothing has happened: idle connections give memory back, and if the service has died, all sleepers
/// are woken.
pub fn check_service(session: &'static Session) {
    session.look_at_idle();
    if session.is_dead() || session.check_alive() {
        return;
    }
    for slot in (0..session.geometry.slots).filter_map(|raw| session.region.slot(raw)) {
        doorbell::wake_sleepers(&Socket { session, slot, generation: 0 });
    }
}
