//! Bytes that a direct connection holds back (`TCP_CORK`, `MSG_MORE`): as Linux, less than a segment, and for 200 ms at most. The
//! sender only notes them and the time. Whoever reads counts them as sent when the time is over, so that neither side needs a timer:
//! a reader that sleeps is told that bytes are held, and sleeps no longer than until then.

use crate::direct::Direct;
use crate::socket::Socket;
use crate::sys;
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use towpath_ring::AppLine;
use towpath_ring::lines::{app_flags, status};

/// How long Linux holds a partial segment (its probe timer).
const HELD_MS: u32 = 200;
/// A full segment over Linux's loopback device.
const SEGMENT: u32 = 65_483;
/// How much more than the time a sleep takes, so that it is over then.
const MARGIN: Duration = Duration::from_millis(5);

thread_local! {
    /// When bytes that this thread has seen to be held count as sent, 0 = it has seen none.
    static DUE_MS: Cell<u32> = const { Cell::new(0) };
}

/// Has anybody in this process ever seen held bytes?
static SEEN: AtomicBool = AtomicBool::new(false);

fn now_ms() -> u32 {
    sys::clock(libc::CLOCK_MONOTONIC_COARSE).as_millis() as u32
}

fn is_due(since_ms: u32) -> bool {
    // A time to come (which a hostile sender may name) is due too.
    now_ms().wrapping_sub(since_ms & !1) >= HELD_MS
}

/// Sender: shows what has been sent up to `tail`, but for the part of a segment that is to be held. The ring takes `limit` bytes.
/// Under `sending`.
#[cold]
pub fn show_held(socket: Socket, tail: u32, limit: u32) {
    let (Some(direct), session) = (socket.direct(), socket.session) else { return };
    let line = &direct.own().line;
    let mut since = line.held_ms.load(Ordering::Relaxed);
    let mut shown = line.tx_tail.load(Ordering::Relaxed);
    if since != 0 && is_due(since) {
        // The reader has them already.
        (shown, since) = (line.held_tail.load(Ordering::Relaxed), 0);
    }
    let segment = SEGMENT.min(limit / 2).max(1);
    let whole = tail.wrapping_sub(shown) / segment * segment;
    let held = tail.wrapping_sub(shown) - whole;
    if held == 0 {
        return direct.show_sent(session, tail);
    }
    let news = whole > 0 || since == 0;
    if news {
        since = now_ms() | 1;
    }
    line.held_tail.store(tail, Ordering::Release);
    line.held_ms.store(since, Ordering::Release);
    line.tx_tail.store(shown.wrapping_add(whole), Ordering::Release);
    if news {
        direct.raise(session);
    }
}

/// Sender: what is held goes. (After the end of the stream the reader does not wait for that.)
pub fn release(socket: &Socket) {
    let Some(direct) = socket.direct() else { return };
    if direct.own().line.held_ms.load(Ordering::Relaxed) == 0 {
        return;
    }
    // A send that a signal handler has interrupted shows its bytes itself.
    if let Some(_sending) = socket.private().sending.lock() {
        direct.show_sent(socket.session, socket.app().tx_tail.load(Ordering::Relaxed));
    }
}

/// Sender: is it to hold partial segments?
#[inline]
pub fn holds(flags: u32) -> bool {
    flags & app_flags::CORK != 0
}

/// Bytes that the sender holds.
pub fn held(socket: &Socket, direct: &Direct) -> u32 {
    let line = &direct.own().line;
    match line.held_ms.load(Ordering::Relaxed) {
        0 => 0,
        since if is_due(since) => 0,
        _ => socket.app().tx_tail.load(Ordering::Relaxed).wrapping_sub(line.tx_tail.load(Ordering::Relaxed)),
    }
}

/// Reader: how far the other side's bytes count as sent, `shown` being the tail in its line.
#[cold]
pub fn sent(socket: Socket, line: &AppLine, shown: u32) -> u32 {
    let ended = socket.status() & status::RX_EOF != 0;
    let since = line.held_ms.load(Ordering::Acquire);
    let held = line.held_tail.load(Ordering::Acquire);
    // Nothing any more, or shown meanwhile.
    if since == 0 || held.wrapping_sub(shown).cast_signed() <= 0 {
        return shown;
    }
    if ended || is_due(since) {
        return held;
    }
    SEEN.store(true, Ordering::Relaxed);
    let due = (since & !1).wrapping_add(HELD_MS).max(1);
    DUE_MS.with(|known| {
        if known.get() == 0 || due.wrapping_sub(known.get()).cast_signed() < 0 {
            known.set(due);
        }
    });
    shown
}

/// Reader: are there bytes of this connection that are held?
#[inline]
pub fn is_waited_for(socket: &Socket) -> bool {
    SEEN.load(Ordering::Relaxed) && is_waiting(socket)
}

#[cold]
fn is_waiting(socket: &Socket) -> bool {
    socket.direct().is_some_and(|direct| {
        let since = direct.peer().line.held_ms.load(Ordering::Acquire);
        since != 0 && !is_due(since)
    })
}

/// Reader: how long to sleep at most, if it would be `time`.
#[inline]
pub fn sleep_of(time: Duration) -> Duration {
    if SEEN.load(Ordering::Relaxed) { until_due().map_or(time, |due| time.min(due)) } else { time }
}

#[cold]
fn until_due() -> Option<Duration> {
    DUE_MS.with(|due| {
        let left = match due.get() {
            0 => return None,
            due => due.wrapping_sub(now_ms()).cast_signed(),
        };
        if left <= 0 {
            due.set(0);
        }
        Some(Duration::from_millis(left.max(0) as u64) + MARGIN)
    })
}
