//! The pulse of a worker: a thread asks the main thread and each thread of the stack, and beats when all have answered.

use crate::state::ServiceState;
use crate::stop_wait::stopped_within;
use rustix::fd::AsFd;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use towpath_broker::pulse::{Pulse, Step};

/// Time between two beats, ms.
const PERIOD_MS: u64 = 10_000;
/// Time between two looks at the main loop, ms.
const LOOK_MS: u64 = 10;

/// Starts the thread.
pub fn start(state: &Arc<ServiceState>, pulse: Pulse) -> io::Result<JoinHandle<()>> {
    let stop = state.stop_fd.try_clone()?;
    let state = Arc::downgrade(state);
    let run = move || {
        while !stopped_within(stop.as_fd(), PERIOD_MS) {
            let Some(state) = state.upgrade() else { return };
            pulse.waits_for(Step::Main);
            let before = state.turns_of_main();
            state.wake();
            while state.turns_of_main() == before {
                if stopped_within(stop.as_fd(), LOOK_MS) {
                    return;
                }
            }
            pulse.waits_for(Step::Stack);
            state.stack.wait_for_threads();
            pulse.beat();
        }
    };
    std::thread::Builder::new().name("pulse".into()).spawn(run)
}
