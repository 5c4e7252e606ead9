//! The end of a socket by a close of which only the kernel can say whether it is the last one.
//!
//! A thread that closes such a descriptor is a **closer**. The flags count it, and the service gives it a moment to end the socket.
//! A closer learns only after the close that no descriptor is left. By then the slot may be another socket's. So of the slot it
//! writes nothing but the flags, and these only while they count a closer: each socket begins with none.

use crate::close::{await_reset, ends_by_reset, is_within_a_host};
use crate::doorbell::{notify_directly, notify_stack};
use crate::socket::Socket;
use core::sync::atomic::Ordering;
use towpath_ring::lines::{app_flags, state};

/// Most closers that are counted. One that is killed stays counted until the slot is another socket's.
const MOST: u32 = 100 * app_flags::CLOSER;

impl Socket {
    /// Counts a closer. False: there are too many, or the socket is gone.
    pub fn enter_closer(&self) -> bool {
        let has_room = |flags: u32| !self.is_gone() && flags & app_flags::CLOSERS < MOST;
        self.change_flags(|flags| has_room(flags).then(|| flags + app_flags::CLOSER))
    }

    /// The closer has found that the socket goes on.
    pub fn leave_closer(&self) {
        let is_counted = |flags: u32| !self.is_gone() && flags & app_flags::CLOSERS != 0;
        self.change_flags(|flags| is_counted(flags).then(|| flags - app_flags::CLOSER));
    }

    /// The closer has found that no descriptor is left. Another one may have found that before, and the service too.
    pub fn end_by_closer(&self) {
        let linger = self.private().linger_s.load(Ordering::Relaxed);
        // Asked before the flags change. After that the slot may be another connection's, with another peer.
        let (direct, is_reset) = (self.direct(), ends_by_reset(self, linger));
        let within = linger == 0 && direct.is_none() && is_within_a_host(self);
        let is_over = || self.is_gone() || self.stack().state.load(Ordering::Acquire) == state::FREE;
        let is_first = |flags: u32| !is_over() && flags & app_flags::CLOSERS != 0 && flags & app_flags::CLOSED == 0;
        let closed = app_flags::CLOSED | if is_reset { app_flags::ABORT } else { 0 };
        if !self.change_flags(|flags| is_first(flags).then(|| (flags - app_flags::CLOSER) | closed)) {
            return;
        }
        match direct {
            Some(direct) => notify_directly(self, &direct, closed),
            None => notify_stack(self.session, self.slot, self.app(), self.stack()),
        }
        if within {
            await_reset(self);
        }
    }

    fn change_flags(&self, change: impl FnMut(u32) -> Option<u32>) -> bool {
        self.app().flags.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok()
    }
}
