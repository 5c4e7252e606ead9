//! Which carrier a connection has. A call that moves bytes begins with this.

use crate::backend::{DirectBackend, Lines};
use crate::direct::{self, Direct};
use crate::session::{Session, SlotWords};
use core::sync::atomic::Ordering;
use towpath_ring::Slot;
use towpath_ring::lines::state;

/// The lines of a direct connection, and what the stack's line says of its pair.
pub struct DirectLines {
    lines: Lines,
    pair: u32,
    word: u32,
}

impl DirectLines {
    /// The other side. `None`: its region is not mapped and cannot be.
    #[inline(always)]
    pub fn find(&self) -> Option<Direct> {
        direct::find(self.lines.session, self.pair, self.word)
    }

    /// [`DirectLines::find`], if its region is mapped already.
    #[inline(always)]
    pub fn find_mapped(&self) -> Option<Direct> {
        direct::find_mapped(self.lines.session, self.pair, self.word)
    }

    /// What the stack's line says of its pair: its number and [`pair_slot`](towpath_ring::lines::pair_slot).
    #[inline(always)]
    pub fn place(&self) -> (u32, u32) {
        (self.pair, self.word)
    }

    /// The backend, with the other side that [`DirectLines::find`] has found.
    #[inline(always)]
    pub fn backend<'a>(&'a self, direct: &'a Direct) -> DirectBackend<'a> {
        DirectBackend { lines: &self.lines, direct }
    }
}

/// The carrier of a connection.
pub enum Carrier {
    /// The stack, with these lines.
    Stack(Lines),
    /// Both ends themselves.
    Direct(DirectLines),
    /// It is not established, or the slot has been taken away.
    Neither,
}

/// Does the stack carry a connection?
pub enum IsStack {
    /// Yes, with these lines.
    Yes(Lines),
    /// No, it may be direct.
    No,
    /// It is not established, or the slot has been taken away.
    Neither,
}

impl Carrier {
    /// The lines of an established connection whose carrier is the stack. This is the first step of the fast path of every call
    /// that moves bytes. The session is [the usual one](crate::session::usual).
    #[inline(always)]
    pub fn is_stack(
        session: &'static Session,
        slot: Slot,
        (lines, private): SlotWords<'static>,
        generation: u32,
    ) -> IsStack {
        let (lines, private) = (in_register(lines), in_register(private));
        let (app, stack) = (&lines.app, &lines.stack);
        // In this order, as in `of_words`.
        if stack.state.load(Ordering::Acquire) != state::ESTABLISHED {
            return IsStack::Neither;
        }
        if stack.pair.load(Ordering::Acquire) != 0 {
            return IsStack::No;
        }
        if stack.generation.load(Ordering::Acquire) != generation {
            return IsStack::Neither;
        }
        IsStack::Yes(Lines { session, slot, generation, app, stack, private })
    }

    /// The lines of an established direct connection: the first step of its fast path. The session is
    /// [the usual one](crate::session::usual).
    #[inline(always)]
    pub fn is_direct(
        session: &'static Session,
        slot: Slot,
        (lines, private): SlotWords<'static>,
        generation: u32,
    ) -> Option<DirectLines> {
        let (lines, private) = (in_register(lines), in_register(private));
        let (app, stack) = (&lines.app, &lines.stack);
        // In this order, as in `of_words`.
        if stack.state.load(Ordering::Acquire) != state::ESTABLISHED {
            return None;
        }
        let (pair, word) = (stack.pair.load(Ordering::Acquire), stack.pair_slot.load(Ordering::Acquire));
        if pair == 0 || stack.generation.load(Ordering::Acquire) != generation {
            return None;
        }
        Some(DirectLines { lines: Lines { session, slot, generation, app, stack, private }, pair, word })
    }

    /// The carrier of the connection in the slot, if that is still of this generation: the first step of every call
    /// that moves bytes.
    #[inline(always)]
    pub fn of(session: &'static Session, slot: Slot, generation: u32) -> Self {
        if session.is_dead() { Self::Neither } else { Self::of_usual(session, slot, generation) }
    }

    /// [`Carrier::of`], if the session is [the usual one](crate::session::usual) or not dead.
    #[inline(always)]
    pub fn of_usual(session: &'static Session, slot: Slot, generation: u32) -> Self {
        Self::of_words(session, slot, (session.region.lines(slot), session.private(slot)), generation)
    }

    /// [`Carrier::of_usual`], for whoever knows where the slot's words are.
    #[inline(always)]
    pub fn of_words(
        session: &'static Session,
        slot: Slot,
        (lines, private): SlotWords<'static>,
        generation: u32,
    ) -> Self {
        let (lines, private) = (in_register(lines), in_register(private));
        let (app, stack) = (&lines.app, &lines.stack);
        // In this order: the stack says whether a connection is direct before it says ESTABLISHED, and of which generation the
        // slot is before that.
        if stack.state.load(Ordering::Acquire) != state::ESTABLISHED {
            return Self::Neither;
        }
        let is_current = || stack.generation.load(Ordering::Acquire) == generation;
        let lines = Lines { session, slot, generation, app, stack, private };
        match stack.pair.load(Ordering::Acquire) {
            0 if is_current() => Self::Stack(lines),
            0 => Self::Neither,
            pair => {
                let word = stack.pair_slot.load(Ordering::Acquire);
                if is_current() { Self::Direct(DirectLines { lines, pair, word }) } else { Self::Neither }
            }
        }
    }
}

/// The same reference, kept by the compiler as one address. Otherwise it keeps a base and an offset, and runs out of
/// registers.
#[inline(always)]
#[allow(clippy::pointers_in_nomem_asm_block)] // nothing is done with it there
fn in_register<T>(reference: &T) -> &T {
    #[cfg(target_arch = "x86_64")]
    {
        let mut address: *const T = reference;
        // SAFETY: no instruction.
        unsafe {
            core::arch::asm!("/* {0} */", inout(reg) address, options(pure, nomem, nostack, preserves_flags));
        }
        // SAFETY: the address of the reference.
        unsafe { &*address }
    }
    #[cfg(not(target_arch = "x86_64"))]
    reference
}
