//! The end of a socket in a slot.

use crate::liveness::LIFE_CHECK;
use crate::memory;
use crate::private::used;
use crate::socket::Socket;
use crate::{stack_info, wait};
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::time::Instant;
use towpath_ring::lines::{app_flags, state, status};
use towpath_ring::wake;

/// How long the end of a socket waits for the stack to release a listener's port, or to reset a connection.
pub const STACK_TIME: Duration = Duration::from_millis(100);

/// Gives up the slot of a socket whose last descriptor is being closed. Waits as SO_LINGER asks.
pub fn abandon(socket: &Socket) {
    if socket.is_gone() {
        return;
    }
    let linger = socket.private().linger_s.load(Ordering::Relaxed);
    let direct = socket.direct().is_some();
    let abort = if ends_by_reset(socket, linger) { app_flags::ABORT } else { 0 };
    let held = linger > 0 && stack_info::holds(socket).is_some();
    if held && socket.readable() == 0 {
        await_acknowledgement(socket, linger as u64);
    }
    let within = linger == 0 && !direct && is_within_a_host(socket);
    memory::close(socket);
    // From now on the slot may be claimed, once the stack has freed it.
    let _ = socket.private().used.compare_exchange(used::LIVE, used::NO, Ordering::AcqRel, Ordering::Relaxed);
    socket.mark_app(app_flags::CLOSED | abort, true);
    if within {
        await_reset(socket);
    }
    // Bytes sent on a direct connection are already in the peer's ring.
    if linger > 0 && !direct && !held {
        // Waits until everything is sent and acknowledged, or the time is over.
        let deadline = Some(Instant::now() + Duration::from_secs(linger as u64));
        socket.want_room();
        let gone = || socket.view().queued() == 0 && !socket.view().is_sending_file();
        let sent = || gone() || socket.is_gone();
        while !sent() && wait::remaining(deadline, LIFE_CHECK).is_some() {
            let _ = wait::until(socket, Some(Instant::now() + Duration::from_millis(10)), sent);
        }
    }
}

/// Does the peer see a reset instead of the end of the stream?
pub(crate) fn ends_by_reset(socket: &Socket, linger_s: i32) -> bool {
    // Of connections that the stack carries, it sees unread bytes itself (RFC 2525 §2.17).
    linger_s == 0 || socket.direct().is_some() && socket.readable() > 0
}

/// Are both ends on the same host?
pub(crate) fn is_within_a_host(socket: &Socket) -> bool {
    let info = socket.info();
    towpath_ring::address::load(&info.local_addr) == towpath_ring::address::load(&info.remote_addr)
}

/// On Linux, a peer on the same host has seen the reset when `close` returns. The stack frees the slot once the reset has
/// been sent, a moment before its peer's turn.
pub(crate) fn await_reset(socket: &Socket) {
    let over = || socket.is_gone() || socket.stack().state.load(Ordering::Acquire) == state::FREE;
    let deadline = Instant::now() + STACK_TIME;
    while !wake::spin_until(socket.session.spin_us, over) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Waits until the peer has acknowledged all bytes and the end of the stream. Some of that is in the stack's buffers,
/// outside the ring.
fn await_acknowledgement(socket: &Socket, seconds: u64) {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let mut pause = Duration::from_micros(200);
    socket.mark_app(app_flags::SHUT_WR, true);
    // The end of the stream counts as a byte in those buffers only after it has been sent.
    let over = || socket.state() != state::ESTABLISHED || socket.status() & status::TX_CLOSED != 0;
    while Instant::now() < deadline && !(over() && stack_info::queued_now(socket).0 == 0) {
        let until = deadline.min(Instant::now() + pause);
        let _ = wait::until(socket, Some(until), || socket.is_gone());
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}
