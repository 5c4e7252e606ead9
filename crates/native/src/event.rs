//! Events, and their sources.

use towpath_client::private::flag;
use towpath_client::socket::Socket;
use towpath_client::view::View;
use towpath_ring::command::Accepted;
use towpath_ring::lines::{app_flags, state, status};

/// The events that a connection or listener is ready for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness(u32);

impl Readiness {
    /// There are bytes, or the end of the stream; on a listener, a connection.
    pub const READABLE: Self = Self(1);
    /// A connection is established, or there is room again after there was too little.
    pub const WRITABLE: Self = Self(2);
    /// The connection is over: failed, reset, or closed in both directions. Bytes that came before can still be read.
    pub const CLOSED: Self = Self(4);

    /// The bits of `towpath.h`.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Something can be read (or accepted).
    pub fn is_readable(self) -> bool {
        self.0 & Self::READABLE.0 != 0
    }

    /// Something may be sent.
    pub fn is_writable(self) -> bool {
        self.0 & Self::WRITABLE.0 != 0
    }

    /// The connection is over.
    pub fn is_closed(self) -> bool {
        self.0 & Self::CLOSED.0 != 0
    }

    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The readiness by a slot's words. Room counts only if it was `wanted`.
    #[inline]
    pub(crate) fn of(view: &View, wanted: bool) -> Self {
        if !wanted && view.is_open() {
            return Self(if view.readable() > 0 { Self::READABLE.0 } else { 0 });
        }
        let state = view.state();
        match state {
            state::LISTENING if (view.readable() as usize) < Accepted::BYTES => return Self(0),
            state::LISTENING => return Self::READABLE,
            state::CONNECTING => return Self(0),
            _ => {}
        }
        // The end is loaded before the data, so that no byte before it is missed.
        let ended = view.status() & (status::RX_EOF | status::RESET) != 0 || state == state::CLOSED;
        let closed = state == state::CLOSED || view.status() & status::RESET != 0;
        let both = ended && view.has_app(app_flags::SHUT_WR);
        let readable = ended || view.readable() > 0;
        Self(
            u32::from(readable)
                | if wanted && (closed || view.writable()) { Self::WRITABLE.0 } else { 0 }
                | if closed || both || view.has(flag::SENT_TO_NOBODY) { Self::CLOSED.0 } else { 0 },
        )
    }
}

impl core::ops::BitOr for Readiness {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// One event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Event {
    /// The token given to [`Stack::watch`](crate::Stack::watch).
    pub token: u64,
    /// The readiness.
    pub readiness: Readiness,
}

/// A source of events for a [`Stack`](crate::Stack): a connection or a listener.
pub trait Source: sealed::Sealed {}

pub(crate) mod sealed {
    use super::Socket;
    use crate::kernel_half::KernelHalf;
    use std::sync::Arc;

    pub trait Sealed {
        fn socket(&self) -> &Socket;
        /// Is it a connection whose outcome the program has not asked for?
        fn is_awaited(&self) -> bool;
        /// The kernel's socket of a listener.
        fn kernel_half(&self) -> Option<&Arc<KernelHalf>> {
            None
        }
    }
}
