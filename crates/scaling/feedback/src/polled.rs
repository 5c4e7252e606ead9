//! A server that is asked once a second, by a thread of its own.

use crate::reading::Reading;
use crate::server::Server;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};
use towpath_scaling::Outcome;

/// How often a server is asked.
const EVERY: Duration = Duration::from_secs(1);
/// The least pause between two questions, however long the answer took.
const REST: Duration = Duration::from_millis(200);

/// The last answer.
#[derive(Default)]
struct Last {
    outcome: Option<(Outcome, Instant)>,
    problem: Option<String>,
}

#[derive(Default)]
struct Shared {
    last: Mutex<Last>,
    ended: AtomicBool,
}

impl Shared {
    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A server that is asked.
pub(crate) struct Polled {
    shared: Arc<Shared>,
    thread: Thread,
}

impl Polled {
    /// Starts asking it.
    pub(crate) fn start(server: Box<dyn Server>) -> Result<Self, String> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("feedback".into()).spawn(move || ask(server, &theirs));
        let thread = thread.map_err(|error| format!("a thread for feedback: {error}"))?;
        Ok(Self { shared, thread: thread.thread().clone() })
    }
    /// Its last outcome and the time of it, and what is wrong with it now.
    pub(crate) fn last(&self) -> (Option<(Outcome, Instant)>, Option<String>) {
        let last = self.shared.last();
        (last.outcome, last.problem.clone())
    }
}

impl Drop for Polled {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        // Do not join the thread: it may be waiting for an answer.
        self.thread.unpark();
    }
}

fn ask(mut server: Box<dyn Server>, shared: &Shared) {
    let mut before: Option<(Reading, Instant)> = None;
    while !shared.ended.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let answer = server.ask();
        let now = Instant::now();
        let mut last = shared.last();
        match answer {
            Ok(reading) => {
                let outcome = before.as_ref().and_then(|(before, at)| reading.since(before, now - *at));
                last.outcome = outcome.map(|outcome| (outcome, now)).or(last.outcome);
                last.problem = None;
                before = Some((reading, now));
            }
            Err(problem) => {
                last.problem = Some(problem);
                before = None;
            }
        }
        drop(last);
        std::thread::park_timeout(EVERY.saturating_sub(begun.elapsed()).max(REST));
    }
}
