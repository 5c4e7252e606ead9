//! The program's signal handlers. The kernel gets [`towpath_signal`](super::entry::towpath_signal) instead of each of
//! them. It restores the program's FS base if the library was interrupted. SIGSYS belongs to the library.

use super::block::Block;
use super::entry::{self, HANDLERS, SIGNALS};
use super::hooks::Hooks;
use crate::masked::{OURS, SET_BYTES, is_there};
use crate::raw::{Errno, raw};
use core::sync::atomic::{AtomicU64, Ordering};

/// The `si_code` of a caught call.
const SYS_USER_DISPATCH: i32 = 2;
/// The prctl of Syscall User Dispatch, and its argument.
const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;
const PR_SYS_DISPATCH_ON: u64 = 1;
const SA_RESTORER: u64 = 0x0400_0000;

static FLAGS: [AtomicU64; SIGNALS] = [const { AtomicU64::new(0) }; SIGNALS];
static RESTORERS: [AtomicU64; SIGNALS] = [const { AtomicU64::new(0) }; SIGNALS];

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Action {
    handler: u64,
    flags: u64,
    restorer: u64,
    mask: u64,
}

/// A caught system call. The interrupted thread goes on at the entry, as if it had jumped there.
unsafe extern "C" fn caught(_signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: the kernel gives a valid signal frame.
    unsafe {
        if (*info).si_code == SYS_USER_DISPATCH {
            let registers = &mut (*context).uc_mcontext.gregs;
            registers[libc::REG_RCX as usize] = registers[libc::REG_RIP as usize];
            registers[libc::REG_RIP as usize] = &raw const entry::towpath_entry as i64;
            return;
        }
        // Another process, or a seccomp filter of the program, has sent the signal: it is for the program's handler.
        match HANDLERS[libc::SIGSYS as usize].load(Ordering::Acquire) {
            0 => raw(libc::SYS_exit_group, [128 + libc::SIGSYS as u64, 0, 0, 0, 0, 0]),
            handler => {
                let handler: unsafe extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::ucontext_t) =
                    core::mem::transmute(handler);
                handler(libc::SIGSYS, info, context);
                0
            }
        };
    }
}

/// From now on, catches every system call of the calling thread outside the library's code. `block` is the thread's.
pub fn arm(block: &Block) -> Result<(), Errno> {
    let begin = &raw const entry::towpath_code_begin as u64;
    let end = &raw const entry::towpath_code_end as u64;
    let selector = &raw const block.selector as u64;
    let call = [PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, begin, end - begin, selector, 0];
    // SAFETY: the selector lives as long as the thread.
    match unsafe { raw(libc::SYS_prctl, call) } {
        0 => Ok(()),
        errno => Err(Errno(-errno as i32)),
    }
}

/// Installs the library's handler for SIGSYS.
pub fn init() -> Result<(), Errno> {
    let action = Action {
        handler: caught as *const () as u64,
        // ONSTACK: the program's stack may be as small as a goroutine's. NODEFER: handlers that the signal interrupts
        // make calls too.
        flags: (libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART) as u64 | SA_RESTORER,
        restorer: &raw const entry::towpath_restorer as u64,
        mask: 0,
    };
    set(libc::SIGSYS as u64, &action)?;
    let (unblock, how) = (OURS, libc::SIG_UNBLOCK as u64);
    // SAFETY: the kernel only reads the set, which lives until the call returns.
    unsafe { raw(libc::SYS_rt_sigprocmask, [how, &raw const unblock as u64, 0, SET_BYTES, 0, 0]) };
    Ok(())
}

fn set(signal: u64, action: &Action) -> Result<(), Errno> {
    let action = core::ptr::from_ref(action) as u64;
    // SAFETY: the kernel only reads the action, and its handler has the right type.
    match unsafe { raw(libc::SYS_rt_sigaction, [signal, action, 0, SET_BYTES, 0, 0]) } {
        0 => Ok(()),
        errno => Err(Errno(-errno as i32)),
    }
}

/// `rt_sigaction`.
///
/// # Safety
/// The contract of the system call.
pub unsafe fn action([signal, new, old, bytes, ..]: [u64; 6], hooks: Hooks) -> i64 {
    let call = |new: u64, old: u64| {
        // SAFETY: the caller keeps the contract of the system call.
        unsafe { raw(libc::SYS_rt_sigaction, [signal, new, old, bytes, 0, 0]) }
    };
    if bytes != SET_BYTES || signal == 0 || signal as usize >= SIGNALS {
        return call(new, old);
    }
    if new != 0 && !(is_there(new) && is_there(new + 24)) {
        return -i64::from(libc::EFAULT);
    }
    let at = signal as usize;
    let before = Action {
        handler: HANDLERS[at].load(Ordering::Acquire) as u64,
        flags: FLAGS[at].load(Ordering::Relaxed),
        restorer: RESTORERS[at].load(Ordering::Relaxed),
        mask: 0,
    };
    let mut ours = Action::default();
    // SAFETY: the caller keeps the contract: null or a valid action.
    let wanted = unsafe { (new as *const Action).as_ref() }.copied();
    if let Some(wanted) = wanted {
        let handled = wanted.handler != libc::SIG_DFL as u64 && wanted.handler != libc::SIG_IGN as u64;
        ours = Action { mask: wanted.mask & !OURS, ..wanted };
        if handled {
            HANDLERS[at].store(wanted.handler as usize, Ordering::Release);
            FLAGS[at].store(wanted.flags, Ordering::Relaxed);
            RESTORERS[at].store(wanted.restorer, Ordering::Relaxed);
            ours.handler = &raw const entry::towpath_signal as u64;
            ours.flags |= libc::SA_SIGINFO as u64 | SA_RESTORER;
            ours.restorer = &raw const entry::towpath_restorer as u64;
        } else if signal == libc::SIGSYS as u64 {
            HANDLERS[at].store(0, Ordering::Release);
        }
    }
    let mut was = Action::default();
    let result = if signal == libc::SIGSYS as u64 {
        was = Action { mask: 0, ..before };
        0
    } else {
        let new = wanted.is_some().then_some(&ours);
        // A fault may come from the library's copying of the program's memory, so the library's handler is asked first.
        match of_the_handlers(signal as i32, new, &mut was, hooks) {
            Some(result) => result,
            None => call(new.map_or(0, |new| core::ptr::from_ref(new) as u64), &raw mut was as u64),
        }
    };
    if result == 0 && old != 0 {
        if was.handler == &raw const entry::towpath_signal as u64 {
            was = Action { mask: was.mask, ..before };
        }
        // SAFETY: the caller keeps the contract: there is room for an action.
        unsafe { (old as *mut Action).write(was) };
    }
    result
}

/// The handler's answer to `sigaction`; `None` = it leaves the signal to the program.
fn of_the_handlers(signal: i32, new: Option<&Action>, old: &mut Action, hooks: Hooks) -> Option<i64> {
    // SAFETY: all zero is a valid action.
    let (mut wanted, mut before): (libc::sigaction, libc::sigaction) = unsafe { core::mem::zeroed() };
    if let Some(new) = new {
        wanted.sa_sigaction = new.handler as usize;
        wanted.sa_flags = (new.flags & !SA_RESTORER) as i32;
        // SAFETY: libc's set begins with the kernel's.
        unsafe { (&raw mut wanted.sa_mask).cast::<u64>().write(new.mask) };
    }
    let address = if new.is_some() { &raw const wanted } else { core::ptr::null() };
    // SAFETY: `address` is null or a valid action, and `before` has room for one.
    let answer = unsafe { (hooks.sigaction)(signal, address, &raw mut before) }?;
    // SAFETY: libc's set begins with the kernel's set.
    let mask = unsafe { (&raw const before.sa_mask).cast::<u64>().read() };
    *old = Action { handler: before.sa_sigaction as u64, flags: before.sa_flags as u64, restorer: 0, mask };
    Some(answer.map_or_else(|errno| -i64::from(errno), i64::from))
}

/// Blocks all signals and returns the previous set.
pub fn block_all() -> u64 {
    let (all, mut before) = (u64::MAX, 0u64);
    let call = [libc::SIG_SETMASK as u64, &raw const all as u64, &raw mut before as u64, SET_BYTES, 0, 0];
    // SAFETY: the kernel reads one set and writes the other, and both live until the call returns.
    unsafe { raw(libc::SYS_rt_sigprocmask, call) };
    before
}

/// Puts the set of blocked signals back.
pub fn restore(set: u64) {
    let call = [libc::SIG_SETMASK as u64, &raw const set as u64, 0, SET_BYTES, 0, 0];
    // SAFETY: the kernel only reads the set.
    unsafe { raw(libc::SYS_rt_sigprocmask, call) };
}
