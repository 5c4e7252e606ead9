//! A peer of a direct connection that breaks the contract. It may be another user's program and may write any word of the
//! pair region at any moment. A position outside of what this side's own positions allow ends the connection with
//! ECONNABORTED, as it ends a connection that the stack carries.

use crate::direct::Direct;
use crate::doorbell;
use crate::socket::Socket;
use core::sync::atomic::{AtomicU32, Ordering, fence};
use towpath_ring::AppLine;
use towpath_ring::lines::{app_flags, state};

/// How often the words are looked at again because this side's own positions have moved meanwhile.
const LOOKS: u32 = 8;

/// A word of the peer's has looked impossible. Looks once more, because this side's own position may have moved between
/// two loads. If the words do break the contract, the stack is told once, and ends the connection.
#[cold]
#[inline(never)]
pub(crate) fn judge(socket: Socket, direct: &Direct) {
    if !is_broken(socket.app(), direct) {
        return;
    }
    // The slot may have been given to another connection, and the region to another pair.
    let stack = socket.stack();
    let live = stack.state.load(Ordering::Acquire) == state::ESTABLISHED
        && stack.pair.load(Ordering::Relaxed) == direct.number()
        && !socket.is_gone();
    if live && socket.app().flags.fetch_or(app_flags::PEER_VIOLATED, Ordering::AcqRel) & app_flags::PEER_VIOLATED == 0 {
        doorbell::notify_commands(socket.session, socket.slot);
    }
}

fn is_broken(app: &AppLine, direct: &Direct) -> bool {
    let (peer, most) = (&direct.peer().line, direct.ring_bytes());
    let received = at_rest(&app.rx_head, |head| receives_wrong(peer, head, most));
    let sent = at_rest(&app.tx_tail, |tail| tail.wrapping_sub(peer.rx_head.load(Ordering::Acquire)) > most);
    received || sent || !may_withhold(direct.withheld(), most)
}

/// The judgement of a look during which this side's own position did not move. If it moves all the time, there is none.
fn at_rest(own: &AtomicU32, is_wrong: impl Fn(u32) -> bool) -> bool {
    for _ in 0..LOOKS {
        let position = own.load(Ordering::Acquire);
        let wrong = is_wrong(position);
        fence(Ordering::Acquire);
        if own.load(Ordering::Relaxed) == position {
            return wrong;
        }
    }
    false
}

/// Has the peer published a tail that does not lie from this head to a ring behind it? Held bytes that are due may have
/// been read before `tx_tail` covers them, so they are judged instead. In this order: a sender stores `tx_tail` before
/// it takes back or renews `held_ms`.
fn receives_wrong(peer: &AppLine, head: u32, most: u32) -> bool {
    let since = peer.held_ms.load(Ordering::Acquire);
    let held = peer.held_tail.load(Ordering::Acquire);
    let shown = peer.tx_tail.load(Ordering::Acquire);
    let last = if since != 0 && held.wrapping_sub(shown).cast_signed() > 0 { held } else { shown };
    last.wrapping_sub(head) > most
}

/// `SO_RCVBUF` withholds at most a receiver's half of the ring.
#[inline]
pub(crate) fn may_withhold(withheld: u32, most: u32) -> bool {
    withheld <= most / 2
}
