//! Instances whose lists are [plain](Interest::plain), at which the fast path looks.

use super::{ALL, HIGHEST, Instance};
use crate::ready::interest::Interest;
use core::sync::atomic::Ordering;
use towpath_client::lock::{Locked, is_alone};
use towpath_client::session::Session;

/// A look at a list that is plain for a session. Unlike a closure it is compiled into its caller, which so saves no register for it.
pub trait Look {
    /// What it finds.
    type Found;
    /// Looks. It leaves the list as plain as it is, or says so ([`Instance::is_plain_no_longer`]).
    fn look(self, interest: &mut Interest, session: &'static Session) -> Self::Found;
}

impl Instance {
    /// Looks at the interest list, under its lock, if it is plain for this session and the lock is free.
    #[inline(always)]
    pub fn look<L: Look>(&self, session: &'static Session, look: L) -> Option<L::Found> {
        // Each way is compiled for itself, so that it does not ask again when it unlocks.
        if is_alone(false) {
            let locked = self.lock.try_alone()?;
            self.look_locked(session, look, locked)
        } else {
            let locked = self.lock.try_lock()?;
            self.look_locked(session, look, locked)
        }
    }

    #[inline(always)]
    fn look_locked<'a, L: Look>(
        &self,
        session: &'static Session,
        look: L,
        _locked: impl Locked<'a>,
    ) -> Option<L::Found> {
        if !core::ptr::eq(self.plain.load(Ordering::Relaxed), session) {
            return None;
        }
        // SAFETY: the lock is held, so this is the only reference.
        Some(look.look(unsafe { &mut *self.interest.get() }, session))
    }

    /// The list is plain for nobody, until more work has been done on it.
    pub fn is_plain_no_longer(&self) {
        self.plain.store(core::ptr::null_mut(), Ordering::Relaxed);
    }
}

/// In a forked child, before it counts as another process: no list is plain any more.
pub fn forget_plain() {
    for instance in ALL.iter().take(HIGHEST.load(Ordering::Relaxed) as usize) {
        instance.is_plain_no_longer();
    }
}
