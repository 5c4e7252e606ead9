//! Is the process single-threaded? Then words that no other process sees need no locked instructions. Only a signal
//! handler can come between two instructions, and it returns before the second.

use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

/// The answer if libc has no such word.
static NO: AtomicU8 = AtomicU8::new(0);
/// libc's word: `__libc_single_threaded`, which glibc (2.32 and later) clears before it makes a thread.
static WORD: AtomicPtr<AtomicU8> = AtomicPtr::new((&raw const NO).cast_mut());

/// Called once when the library is loaded.
pub fn init() {
    // SAFETY: the name is a C string.
    let word = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    if !word.is_null() {
        WORD.store(word.cast(), Ordering::Relaxed);
    }
}

/// From now on the process may have threads that libc does not know of.
pub fn has_hidden_threads() {
    WORD.store((&raw const NO).cast_mut(), Ordering::Relaxed);
}

/// Is the calling thread the only one of the process?
#[inline(always)]
pub fn is_single_threaded() -> bool {
    // SAFETY: the pointer is one of the two words above, which live as long as the library. Libc's is a byte that may
    // change at any time, so it is read atomically.
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
        std::thread::spawn(|| assert!(!is_single_threaded())).join().expect("ended");
        assert!(!WORD.load(Ordering::Relaxed).is_null());
    }

    #[test]
    fn threads_that_libc_does_not_know_of_end_it_for_good() {
        // SAFETY: the child looks at words and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            pretend();
            let before = is_single_threaded();
            has_hidden_threads();
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(!before || is_single_threaded())) };
        }
        let mut status = -1;
        // SAFETY: our child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    }
}
