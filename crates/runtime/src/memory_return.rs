//! Gives memory that clients have a descriptor of back to the kernel, in threads that may wait.
//!
//! Punching a hole takes the file's lock. A writer holds that lock as long as its source blocks, which may be for ever. So
//! no thread that serves anybody punches holes.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Threads at a time. If clients keep all of them waiting, memory stays until nobody has it mapped any more.
const MOST_THREADS: usize = 16;
/// Most work that waits for a thread. A service with that much has threads that wait for ever.
const MOST_WORK: usize = 1024;

type Work = Box<dyn FnOnce() + Send>;

struct Waiting {
    work: VecDeque<Work>,
    threads: usize,
}

static WAITING: Mutex<Waiting> = Mutex::new(Waiting { work: VecDeque::new(), threads: 0 });

fn waiting() -> MutexGuard<'static, Waiting> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does this soon, in a thread of its own, or drops it undone where too much waits.
pub fn later(work: impl FnOnce() + Send + 'static) {
    let mut all = waiting();
    if all.work.len() >= MOST_WORK {
        return;
    }
    all.work.push_back(Box::new(work));
    if all.threads < MOST_THREADS {
        all.threads += 1;
        let started = std::thread::Builder::new().name("memory".into()).spawn(work_off);
        // Without a thread the work waits for the next one.
        all.threads -= usize::from(started.is_err());
    }
}

/// The body of a thread. It ends when nothing is left to do.
fn work_off() {
    loop {
        let mut all = waiting();
        let Some(work) = all.work.pop_front() else {
            all.threads -= 1;
            return;
        };
        drop(all);
        work();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    /// One test, because all of it is the process's.
    #[test]
    fn work_that_never_ends_delays_other_work_only_when_it_has_all_threads() {
        const LONG: Duration = Duration::from_secs(60);
        let (done, all_done) = mpsc::channel();
        let block = || {
            let (release, blocked) = mpsc::channel::<()>();
            later(move || _ = blocked.recv());
            release
        };
        let say = |number| {
            let done = done.clone();
            later(move || done.send(number).unwrap_or_default());
        };
        let mut blocks: Vec<_> = (1..MOST_THREADS).map(|_| block()).collect();
        say(1);
        assert_eq!(all_done.recv_timeout(LONG), Ok(1), "one thread is left");
        blocks.push(block());
        // Work that is given now waits, and what exceeds the bound is dropped.
        for number in 2..2 + MOST_WORK + 10 {
            say(number);
        }
        assert!(waiting().work.len() <= MOST_WORK && waiting().threads <= MOST_THREADS);
        drop(blocks);
        let mut got: Vec<usize> = Vec::new();
        while let Ok(number) = all_done.recv_timeout(if got.len() < MOST_WORK - 1 { LONG } else { Duration::ZERO }) {
            got.push(number);
        }
        got.sort_unstable();
        assert!((MOST_WORK - 1..=MOST_WORK + 10).contains(&got.len()), "{} are done", got.len());
        assert!(got.iter().copied().eq(2..2 + got.len()), "those that came first are done");
        while waiting().threads > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        say(0);
        assert_eq!(all_done.recv_timeout(LONG), Ok(0), "after all threads have ended");
    }
}
