//! Has the process one thread only? Then what no other process has needs no locked instruction: nobody but a signal handler comes between
//! two instructions, and that has finished before the second.

use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

/// The answer where nobody knows it.
static NO: AtomicU8 = AtomicU8::new(0);
/// Where libc says it: `__libc_single_threaded`, which glibc (2.32 and later) clears before it makes a thread.
static WORD: AtomicPtr<AtomicU8> = AtomicPtr::new((&raw const NO).cast_mut());

/// Called once when the library is loaded.
pub fn init() {
    // SAFETY: a name that ends with zero.
    let word = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    if !word.is_null() {
        WORD.store(word.cast(), Ordering::Relaxed);
    }
}

/// From now on there are, or may be, threads that libc does not know of.
pub fn never_again() {
    WORD.store((&raw const NO).cast_mut(), Ordering::Relaxed);
}

/// Is the calling thread the only one?
#[inline(always)]
pub fn is_alone() -> bool {
    // SAFETY: one of the two words above, which are there for as long as the library; libc's is a byte that may change at any time.
    unsafe { &*WORD.load(Ordering::Relaxed) }.load(Ordering::Relaxed) != 0
}

/// For a test's child of one thread, whatever libc says.
#[cfg(test)]
pub fn pretend() {
    static YES: AtomicU8 = AtomicU8::new(1);
    WORD.store((&raw const YES).cast_mut(), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_does_not_count_as_alone() {
        init();
        std::thread::spawn(|| assert!(!is_alone())).join().expect("ended");
        assert!(!WORD.load(Ordering::Relaxed).is_null());
    }

    #[test]
    fn threads_that_libc_does_not_know_of_end_it_for_good() {
        // SAFETY: the child looks at words and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            pretend();
            let before = is_alone();
            never_again();
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(!before || is_alone())) };
        }
        let mut status = -1;
        // SAFETY: our child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    }
}
