//! Splicing by the stack for tests: it looks whether all was passed on, and takes nothing more. It passes nothing on itself.

use super::{End, Fake};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use towpath_ring::lines::{state, status};

/// The `TCP_KEEPCNT` of connections that this stack does not splice.
pub const UNSPLICED: u32 = 113;

impl Fake {
    /// The answer to SPLICE.
    pub fn splice(&mut self, (at, one): End, other: u32) -> i32 {
        let region = &self.clients[at].region;
        let Some(other) = region.slot(other) else { return -libc::EINVAL };
        let slots = [one, other];
        if slots.iter().any(|slot| region.options(*slot).keep_count.load(Relaxed) == UNSPLICED) {
            return -libc::EOPNOTSUPP;
        }
        for (app, stack) in slots.map(|slot| (region.app(slot), region.stack(slot))) {
            if stack.state.load(Acquire) != state::ESTABLISHED {
                return -libc::ENOTCONN;
            }
            let is_unread = stack.rx_tail.load(Relaxed) != app.rx_head.load(Acquire);
            if is_unread || stack.tx_head.load(Relaxed) != app.tx_tail.load(Acquire) {
                return -libc::EAGAIN;
            }
        }
        for slot in slots {
            self.clients[at].region.stack(slot).status.fetch_or(status::TX_CLOSED, AcqRel);
            self.raise((at, slot));
        }
        0
    }
}
