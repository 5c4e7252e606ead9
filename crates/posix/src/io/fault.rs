//! SIGSEGV and SIGBUS. A fault in a copy of the program's memory ends the copy (see `user`). All other faults are the
//! program's. Its handlers are kept here and called as the kernel would call them.

use crate::io::user;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use libc::{c_int, c_void, sigaction, sighandler_t, siginfo_t, ucontext_t};
use towpath_client::sys::Sys;
use towpath_hook::{Answer, outcome, real};

/// The program's actions.
struct Kept {
    handler: AtomicUsize,
    flags: AtomicI32,
    /// Signals 1 to 64, as the kernel's set has them.
    mask: AtomicU64,
}

static KEPT: [Kept; 2] =
    [const { Kept { handler: AtomicUsize::new(libc::SIG_DFL), flags: AtomicI32::new(0), mask: AtomicU64::new(0) } }; 2];
static INSTALLED: AtomicBool = AtomicBool::new(false);

fn kept(signal: c_int) -> Option<&'static Kept> {
    match signal {
        libc::SIGSEGV => Some(&KEPT[0]),
        libc::SIGBUS => Some(&KEPT[1]),
        _ => None,
    }
}

impl Kept {
    fn action(&self) -> sigaction {
        // SAFETY: all zero is a valid action.
        let mut action: sigaction = unsafe { core::mem::zeroed() };
        action.sa_sigaction = self.handler.load(Relaxed);
        action.sa_flags = self.flags.load(Relaxed);
        let mask = self.mask.load(Relaxed);
        // SAFETY: a signal set begins with the bits of signals 1 to 64.
        unsafe { (&raw mut action.sa_mask).cast::<u64>().write_unaligned(mask) };
        action
    }

    fn keep(&self, action: &sigaction) {
        self.handler.store(action.sa_sigaction, Relaxed);
        self.flags.store(action.sa_flags, Relaxed);
        // SAFETY: a signal set begins with the bits of signals 1 to 64.
        self.mask.store(unsafe { (&raw const action.sa_mask).cast::<u64>().read_unaligned() }, Relaxed);
    }
}

/// Catches faults from now on. Called at registration with the service, so that programs without a stack are not
/// affected.
pub fn install() {
    if cfg!(not(any(target_arch = "x86_64", target_arch = "aarch64"))) || INSTALLED.swap(true, Relaxed) {
        return;
    }
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: all zero is a valid action.
        let mut programs: sigaction = unsafe { core::mem::zeroed() };
        // SAFETY: only reads the present action.
        if unsafe { real::sigaction(signal, core::ptr::null(), &raw mut programs) } == 0 {
            let _ = put(signal, &programs);
        }
    }
}

/// Keeps the program's action and installs the library's handler with the program's flags and mask.
fn put(signal: c_int, programs: &sigaction) -> Sys<()> {
    let Some(kept) = kept(signal) else { return Ok(()) };
    kept.keep(programs);
    let mut ours = *programs;
    ours.sa_sigaction = on_fault as *const () as usize;
    ours.sa_flags = (programs.sa_flags & !libc::SA_RESETHAND) | libc::SA_SIGINFO;
    if matches!(programs.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) {
        ours.sa_flags |= libc::SA_ONSTACK;
    }
    // SAFETY: `ours` is a valid action whose handler takes the three arguments of SA_SIGINFO.
    outcome(unsafe { real::sigaction(signal, &raw const ours, core::ptr::null_mut()) }).map(|_| ())
}

/// `sigaction` for one of the two signals.
///
/// # Safety
/// `new` and `old` must be null or any address.
pub unsafe fn action(signal: c_int, new: *const sigaction, old: *mut sigaction) -> Answer<c_int> {
    let kept = kept(signal).filter(|_| INSTALLED.load(Relaxed))?;
    let set = || -> Sys<c_int> {
        let before = kept.action();
        if !new.is_null() {
            // SAFETY: `user::read` accepts any address, and any bytes are an action.
            put(signal, &unsafe { user::read(new) }?)?;
        }
        if !old.is_null() {
            // SAFETY: `user::write` accepts any address.
            unsafe { user::write(old, before) }?;
        }
        Ok(0)
    };
    Some(set())
}

/// `signal` for one of the two signals, with BSD's semantics as in glibc.
pub fn handler(signal: c_int, handler: sighandler_t) -> Answer<sighandler_t> {
    let kept = kept(signal).filter(|_| INSTALLED.load(Relaxed))?;
    let before = kept.handler.load(Relaxed);
    // SAFETY: all zero is a valid action.
    let mut action: sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_RESTART;
    Some(put(signal, &action).map(|()| before))
}

/// The fault handler. Uses nothing that is not safe in any signal handler.
///
/// # Safety
/// Only the kernel calls it.
unsafe extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    {
        let context = context.cast::<ucontext_t>();
        // SAFETY: the kernel gives a valid context. Nobody else refers to its registers while the handler runs.
        #[cfg(target_arch = "x86_64")]
        let instruction = unsafe { &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize] };
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        let instruction = unsafe { &mut (*context).uc_mcontext.pc };
        // SAFETY: the kernel gives a valid siginfo. A positive code is a fault of the processor, not a `kill`.
        if unsafe { (*info).si_code } > 0
            && let Some(way_out) = user::way_out(*instruction as usize)
        {
            *instruction = way_out as _;
            return;
        }
    }
    let Some(kept) = kept(signal) else { return };
    let (handler, flags) = (kept.handler.load(Relaxed), kept.flags.load(Relaxed));
    // SAFETY: the kernel gives a valid siginfo.
    let is_fault = unsafe { (*info).si_code } > 0;
    match handler {
        libc::SIG_IGN if !is_fault => {}
        // A fault cannot be ignored.
        libc::SIG_DFL | libc::SIG_IGN => end(signal, is_fault),
        _ => {
            if flags & libc::SA_RESETHAND != 0 {
                kept.handler.store(libc::SIG_DFL, Relaxed);
            }
            // SAFETY: the program set this function for this signal, with or without SA_SIGINFO.
            unsafe {
                if flags & libc::SA_SIGINFO != 0 {
                    let handler: unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                        core::mem::transmute(handler);
                    handler(signal, info, context);
                } else {
                    let handler: unsafe extern "C" fn(c_int) = core::mem::transmute(handler);
                    handler(signal);
                }
            }
        }
    }
}

/// Restores the kernel's default action. The instruction then faults again, or the signal is sent again, and ends the
/// process.
fn end(signal: c_int, is_fault: bool) {
    // SAFETY: all zero is the default action, and the system call takes integers only.
    unsafe {
        let default: sigaction = core::mem::zeroed();
        real::sigaction(signal, &raw const default, core::ptr::null_mut());
        if !is_fault {
            libc::syscall(libc::SYS_tgkill, towpath_client::sys::getpid(), towpath_client::sys::gettid(), signal);
        }
    }
}
