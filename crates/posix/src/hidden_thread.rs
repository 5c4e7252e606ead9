//! Threads of the library's own in a program, which handle none of its signals.

use libc::c_int;

/// The stack of such a thread, bytes.
const STACK_BYTES: usize = 256 << 10;
/// Signals that it must not block: faults of the processor, and SIGSYS, by which an injected program's calls are
/// caught.
const FAULTS: [c_int; 6] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Starts a thread. False: it cannot be started.
pub fn start(work: impl FnOnce() + Send + 'static) -> bool {
    // SAFETY: the signal sets are initialised before use and live until the calls return. The new thread inherits the
    // mask, which is restored behind it.
    unsafe {
        let (mut blocked, mut before) = (core::mem::zeroed::<libc::sigset_t>(), core::mem::zeroed());
        libc::sigfillset(&raw mut blocked);
        FAULTS.iter().for_each(|signal| _ = libc::sigdelset(&raw mut blocked, *signal));
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const blocked, &raw mut before);
        let thread = std::thread::Builder::new().name("towpath".into()).stack_size(STACK_BYTES);
        let spawned = thread.spawn(work).is_ok();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, core::ptr::null_mut());
        spawned
    }
}
