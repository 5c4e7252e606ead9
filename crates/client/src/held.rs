//! Bytes that a direct connection holds back (`TCP_CORK`, `MSG_MORE`). As on Linux they are less than a segment, and
//! are held for at most 200 ms.
//!
//! The sender notes the bytes and the time. The reader counts them as sent when the time is over, so neither side needs
//! a timer. A reader that finds bytes held sleeps only until that time. The sender's part is [`cork`](crate::cork).

use crate::socket::Socket;
use crate::sys;
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use towpath_ring::AppLine;

/// How long Linux holds a partial segment (its probe timer).
const HELD_MS: u32 = 200;
/// Added to a sleep, so that the bytes are due when it ends.
const MARGIN: Duration = Duration::from_millis(5);

thread_local! {
    /// The due time of the held bytes last seen; 0 = none.
    static DUE_MS: Cell<u32> = const { Cell::new(0) };
}

/// Has any thread of this process ever seen held bytes?
static SEEN: AtomicBool = AtomicBool::new(false);

pub(crate) fn now_ms() -> u32 {
    sys::clock(libc::CLOCK_MONOTONIC_COARSE).as_millis() as u32
}

pub(crate) fn is_due(since_ms: u32) -> bool {
    // A time in the future counts as due too: a hostile sender may name one.
    now_ms().wrapping_sub(since_ms & !1) >= HELD_MS
}

/// The tail up to which the peer's bytes count as sent. `shown` is the tail in its line; `ended` says that its stream
/// has ended.
#[cold]
pub fn sent(line: &AppLine, shown: u32, ended: bool) -> u32 {
    let since = line.held_ms.load(Ordering::Acquire);
    let held = line.held_tail.load(Ordering::Acquire);
    // Nothing is held, or the held bytes have been published since.
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

/// Does the sender of this connection hold bytes?
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

/// Shortens a sleep of `time` so that it ends when held bytes are due.
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
