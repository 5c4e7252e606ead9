//! A process that cleans up after a broker that was killed.
//!
//! It only waits, for the end of a pipe whose other end the broker has. It has no other descriptors, and no signal but
//! SIGKILL ends it. If it is killed, the broker still does the work at its own end.

use rustix::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io;

/// The process. Dropping it ends it, and its work is not done.
pub struct Caretaker {
    /// `None`: it is not this process's child.
    process: Option<Pid>,
    /// The end that closes with this process.
    _end: OwnedFd,
}

impl Caretaker {
    /// Starts the process, which keeps the descriptor `kept` for its work. This process has one thread.
    pub fn start(kept: &impl AsFd, work: impl FnOnce()) -> io::Result<Self> {
        let (waits, end) = pipe_with(PipeFlags::CLOEXEC)?;
        // SAFETY: this process has one thread, so the child may do what it could.
        match unsafe { libc::fork() } {
            0 => keep(&waits, kept.as_fd().as_raw_fd(), work),
            ..0 => Err(io::Error::last_os_error()),
            process => Ok(Self { process: Pid::from_raw(process), _end: end }),
        }
    }

    /// In a forked child: the caretaker is its parent's.
    pub fn forget(mut self) {
        self.process = None;
    }
}

impl Drop for Caretaker {
    fn drop(&mut self) {
        if let Some(process) = self.process {
            let _ = kill_process(process, Signal::KILL);
            let _ = waitpid(Some(process), WaitOptions::empty());
        }
    }
}

/// The process's life.
fn keep(waits: &OwnedFd, kept: RawFd, work: impl FnOnce()) -> ! {
    let waits = waits.as_raw_fd();
    let life = || {
        // SAFETY: numbers, and a set and a name that outlive the calls. No descriptor that is closed is used again: the
        // process ends without returning.
        unsafe {
            libc::setsid();
            libc::prctl(libc::PR_SET_NAME, c"towpath-care".as_ptr());
            let mut all = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
            let (low, high) = (waits.min(kept).cast_unsigned(), waits.max(kept).cast_unsigned());
            for between in [0..low, low + 1..high, high + 1..u32::MAX] {
                if !between.is_empty() {
                    libc::close_range(between.start, between.end - 1, 0);
                }
            }
            let mut byte = 0u8;
            while libc::read(waits, (&raw mut byte).cast(), 1) != 0 {}
        }
        work();
    };
    // A panic goes no further, as the frames above are the broker's.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(life));
    // SAFETY: nothing of the broker is run or written.
    unsafe { libc::_exit(0) }
}
