//! Whether the stack carries an established connection or both ends do, and its lines looked up: the first step of
//! every call that moves bytes.

use crate::private::Private;
use crate::session::Session;
use core::sync::atomic::Ordering;
use towpath_ring::lines::state;
use towpath_ring::{AppLine, Slot, StackLine};

/// The lines of an established connection that the stack carries.
pub struct Lines {
    /// The application's line.
    pub app: &'static AppLine,
    /// The stack's line.
    pub stack: &'static StackLine,
    /// The library's own words.
    pub private: &'static Private,
}

/// The carrier of a connection.
pub enum Carrier {
    /// The stack.
    Stack(Lines),
    /// Both ends themselves.
    Direct,
    /// It is not established, or the slot has been taken away.
    Neither,
}

impl Carrier {
    /// The carrier of the connection in the slot, if that is still of this generation.
    #[inline(always)]
    pub fn of(session: &'static Session, slot: Slot, generation: u32) -> Self {
        let (lines, private) = (in_register(session.region.lines(slot)), in_register(session.private(slot)));
        let (app, stack) = (&lines.app, &lines.stack);
        // In this order: the stack says whether a connection is direct before it says ESTABLISHED.
        if stack.state.load(Ordering::Acquire) != state::ESTABLISHED {
            return Self::Neither;
        }
        if stack.pair.load(Ordering::Relaxed) != 0 {
            return Self::Direct;
        }
        if session.is_dead() || stack.generation.load(Ordering::Acquire) != generation {
            return Self::Neither;
        }
        Self::Stack(Lines { app, stack, private })
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
