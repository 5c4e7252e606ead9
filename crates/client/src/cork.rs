//! Corking, the sender's part: the bytes that a direct connection [holds back](crate::held). Also how far a stack is to
//! send although it is asked to hold back again.

use crate::direct::Direct;
use crate::held::{is_due, now_ms};
use crate::socket::Socket;
use core::sync::atomic::Ordering;
use towpath_ring::lines::app_flags;

/// A full segment over Linux's loopback device, bytes.
const SEGMENT: u32 = 65_483;
/// Shows the reader the bytes up to `tail`, except for a partial segment, which is held. The ring takes `limit`
/// bytes. Under `sending`.
#[cold]
pub fn show_held(socket: Socket, tail: u32, limit: u32) {
    let (Some(direct), session) = (socket.direct(), socket.session) else { return };
    let line = &direct.own().line;
    let mut since = line.held_ms.load(Ordering::Relaxed);
    let mut shown = line.tx_tail.load(Ordering::Relaxed);
    if since != 0 && is_due(since) {
        // The held bytes have been published already. `tx_tail` covers them before `held_ms` is renewed, so that it is
        // never behind what the reader may have read.
        (shown, since) = (line.held_tail.load(Ordering::Relaxed), 0);
        line.tx_tail.store(shown, Ordering::Release);
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
        direct.notify(session);
    }
}

/// Publishes the held bytes. After the end of the stream the reader counts them as sent in any case.
pub fn release(socket: &Socket) {
    let Some(direct) = socket.direct() else { return };
    if direct.own().line.held_ms.load(Ordering::Relaxed) == 0 {
        return;
    }
    // If a signal handler has interrupted a send, that send shows its bytes itself.
    if let Some(_sending) = socket.private().sending.lock() {
        direct.show_sent(socket.session, socket.app().tx_tail.load(Ordering::Relaxed));
    }
}

/// Says that the cork goes off with the send ring filled up to `end`. If it is on again before the stack looks, the
/// stack sends up to there all the same. Before the flag is taken off.
pub fn flush(socket: &Socket, end: u32) {
    let app = socket.app();
    app.flush().store(end, Ordering::Release);
    app.flags.fetch_or(app_flags::FLUSH, Ordering::AcqRel);
}

/// Are partial segments held back?
#[inline]
pub fn holds(flags: u32) -> bool {
    flags & app_flags::CORK != 0
}

/// Bytes that are held.
pub fn held(socket: &Socket, direct: &Direct) -> u32 {
    let line = &direct.own().line;
    match line.held_ms.load(Ordering::Relaxed) {
        0 => 0,
        since if is_due(since) => 0,
        // The other side can write this line too.
        _ => (socket.app().tx_tail.load(Ordering::Relaxed).wrapping_sub(line.tx_tail.load(Ordering::Relaxed)))
            .min(direct.ring_bytes()),
    }
}
