//! Notifying a doorbell whose other end may be closed, without a SIGPIPE for the program.

use crate::{seccomp, sys};
use core::sync::atomic::{AtomicBool, Ordering};
use libc::{c_int, timespec};
use rustix::io::{Errno, ReadWriteFlags, pwritev2, retry_on_intr};
use std::io::IoSlice;
use towpath_ring::wake;

/// `RWF_NOSIGNAL`, from Linux 6.18 on.
const NO_SIGNAL: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x100);
/// The offset of a file that has no positions.
const NO_POSITION: u64 = u64::MAX;

/// Does the kernel know the flag, as far as was seen?
static KNOWN: AtomicBool = AtomicBool::new(true);

/// Notifies a doorbell. False = its other end is closed.
pub fn notify(fd: c_int) -> bool {
    if KNOWN.load(Ordering::Relaxed) && !seccomp::is_filtered() {
        if let Some(heard) = without_signal(fd) {
            return heard;
        }
        KNOWN.store(false, Ordering::Relaxed);
    }
    with_signal_blocked(fd)
}

/// One call. `None`: the kernel does not know it, or does not allow it.
fn without_signal(fd: c_int) -> Option<bool> {
    let one = 1u64.to_ne_bytes();
    match retry_on_intr(|| pwritev2(sys::borrow(&fd), &[IoSlice::new(&one)], NO_POSITION, NO_SIGNAL)) {
        Err(Errno::PIPE) => Some(false),
        Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL | Errno::PERM | Errno::ACCESS) => None,
        // EAGAIN: it has been written to very often, and is readable anyway. Another error is the other way's, too.
        Ok(_) | Err(_) => Some(true),
    }
}

/// Three calls.
fn with_signal_blocked(fd: c_int) -> bool {
    let pipe: u64 = 1 << (libc::SIGPIPE - 1);
    let mut before = 0u64;
    // SAFETY: the kernel's signal sets have 64 bits. It reads `pipe` and writes `before`, which both live until it
    // returns.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const pipe, &raw mut before, size_of::<u64>());
        let heard = wake::try_notify(sys::borrow(&fd));
        if !heard {
            take_sigpipe(pipe);
        }
        if before & pipe == 0 {
            let none = core::ptr::null_mut::<u64>();
            libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const before, none, size_of::<u64>());
        }
        heard
    }
}

/// Takes a SIGPIPE that is pending for this thread before it is delivered.
#[cold]
fn take_sigpipe(pipe: u64) {
    let at_once = timespec { tv_sec: 0, tv_nsec: 0 };
    let nowhere = core::ptr::null_mut::<libc::siginfo_t>();
    // SAFETY: the set and the time live until the call returns, and null asks for no details.
    unsafe {
        libc::syscall(libc::SYS_rt_sigtimedwait, &raw const pipe, nowhere, &raw const at_once, size_of::<u64>());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use core::cell::Cell;
    use rustix::fd::{AsFd, AsRawFd};
    use rustix::pipe::{PipeFlags, pipe_with};

    /// Each of the two ways, on this kernel: `None` only where it does not know the flag.
    fn each(fd: c_int) -> [Option<bool>; 2] {
        [without_signal(fd), Some(with_signal_blocked(fd))]
    }

    /// What the two ways should say; a kernel before 6.18 has one way only.
    fn both(what: bool) -> [Option<bool>; 2] {
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK).unwrap();
        let known = without_signal(writer.as_raw_fd()).is_some();
        drop(reader);
        [known.then_some(what), Some(what)]
    }

    // The process of tests ignores SIGPIPE. It is counted here, per thread, as other tests may cause it.
    thread_local! {
        static SIGNALS: Cell<u32> = const { Cell::new(0) };
    }

    extern "C" fn count(_: c_int) {
        SIGNALS.set(SIGNALS.get() + 1);
    }

    #[test]
    fn a_doorbell_is_heard_until_its_other_end_is_closed_and_no_signal_comes() {
        let handler: extern "C" fn(c_int) = count;
        // SAFETY: the handler only counts.
        let before = unsafe { libc::signal(libc::SIGPIPE, handler as libc::sighandler_t) };
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK).unwrap();
        assert_eq!(each(writer.as_raw_fd()), both(true));
        let mut bytes = [0; 64];
        let read = rustix::io::read(&reader, &mut bytes).unwrap();
        assert!(read >= 8 && read % 8 == 0 && bytes[..8] == 1u64.to_ne_bytes());
        // A full pipe is heard as well.
        while rustix::io::write(&writer, &[0; 4096]).is_ok() {}
        assert_eq!(each(writer.as_raw_fd()), both(true));
        drop(reader);
        assert_eq!(each(writer.as_raw_fd()), both(false));
        assert!(!notify(writer.as_raw_fd()));
        assert_eq!(SIGNALS.get(), 0);
        // What is counted does come, without either way.
        assert!(!wake::try_notify(writer.as_fd()));
        assert_eq!(SIGNALS.get(), 1);
        // SAFETY: the action is that of before.
        unsafe { libc::signal(libc::SIGPIPE, before) };
    }

    #[test]
    fn what_is_no_doorbell_with_the_flag_is_left_to_the_other_way() {
        // An eventfd can be written to at no position, but not with flags.
        let doorbell = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        assert_eq!(each(doorbell.as_raw_fd()), [None, Some(true)]);
    }
}
