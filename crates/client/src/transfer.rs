//! Publishing: moves the tail of the send ring and the head of the receive ring, and notifies the other side.

use crate::private::Private;
use crate::view::View;
use crate::{cork, doorbell};
use core::sync::atomic::Ordering;

/// Two full segments: less free room than this and the peer may have stopped sending.
const TWO_SEGMENTS: u32 = 2 * 1460;

/// Does this receive head change the window that the stack offers? `unread` bytes were unread before.
#[inline(always)]
pub fn is_news(unread: u32, head: u32, private: &Private) -> bool {
    let limit = private.receive_limit.load(Ordering::Relaxed);
    let grown = head.wrapping_sub(private.notified_head.load(Ordering::Relaxed));
    // More may be unread than the limit, if that has become lower since.
    grown >= (limit / 4).max(TWO_SEGMENTS) || limit.saturating_sub(unread) < TWO_SEGMENTS
}

/// Moves the receive head, and notifies the stack if that matters for the window it offers. Under `receiving`.
#[inline(always)]
pub fn consumed(view: &View, count: u32) {
    let before = view.app.rx_head.load(Ordering::Relaxed);
    let head = before.wrapping_add(count);
    if let Some(direct) = &view.direct {
        view.app.rx_head.store(head, Ordering::Release);
        let read = &view.private.read;
        read.store(read.load(Ordering::Relaxed) + u64::from(count), Ordering::Relaxed);
        return direct.show_read(view.session, head);
    }
    let unread = view.readable();
    view.app.rx_head.store(head, Ordering::Release);
    if is_news(unread, head, view.private) {
        view.private.notified_head.store(head, Ordering::Relaxed);
        doorbell::notify_stack(view);
    }
}

/// Moves the send tail by `count` bytes to `tail` and notifies the reader.
#[inline(always)]
pub fn publish(view: &View, tail: u32, count: usize, urgent: bool) {
    view.app.tx_tail.store(tail, Ordering::Release);
    // The stack reads the receive head, too, when it looks at the line.
    view.private.notified_head.store(view.app.rx_head.load(Ordering::Relaxed), Ordering::Relaxed);
    if let Some(direct) = &view.direct {
        let sent = &view.private.sent;
        sent.store(sent.load(Ordering::Relaxed) + count as u64, Ordering::Relaxed);
        // Urgent bytes do not wait.
        return if cork::holds(view.app.flags.load(Ordering::Relaxed)) && !urgent {
            cork::show_held(view.socket(), tail, view.send_limit());
        } else {
            direct.show_sent(view.session, tail);
        };
    }
    doorbell::notify_stack(view);
}
