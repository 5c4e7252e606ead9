//! A thread that has woken a client lets it run. If both are to have the same CPU, the kernel would leave the woken one waiting
//! until this thread sleeps, or until the next tick. A tick comes every 4 ms with 250 Hz. A thread with a CPU of its own comes
//! back at once.

use std::cell::Cell;

thread_local! { static HAS_WOKEN: Cell<bool> = const { Cell::new(false) }; }

/// This thread has woken a thread of this host.
pub(crate) fn woken() {
    HAS_WOKEN.set(true);
}

/// Lets others run if this thread has woken one since the last call. True: it has.
pub(crate) fn give_way() -> bool {
    let has_woken = HAS_WOKEN.take();
    if has_woken {
        rustix::thread::sched_yield();
    }
    has_woken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gives_way_once_for_all_that_it_has_woken_and_for_nobody_elses() {
        assert!(!give_way());
        woken();
        woken();
        assert!(std::thread::spawn(|| !give_way()).join().is_ok_and(|has_not| has_not));
        assert!(give_way() && !give_way());
    }
}
