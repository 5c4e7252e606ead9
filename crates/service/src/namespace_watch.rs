//! A stack of the configuration ends with its network namespace, so that another can be started for one that gets its name.
//! A process in a namespace keeps it and its devices, so a stack must not stay there alone.

use crate::namespace_cookies::{Found, Names};
use crate::state::ServiceState;
use crate::stop_wait::stopped_within;
use crate::{port_proof, privileged};
use rustix::fd::AsFd;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Time between two looks, ms.
const PERIOD_MS: u64 = 500;

/// Starts the thread for the stack with these names, which runs in its namespace. `None`: nobody can be asked.
pub fn start(state: &Arc<ServiceState>, names: Names) -> io::Result<Option<JoinHandle<()>>> {
    let Some(own) = port_proof::own_namespace().filter(|_| privileged::broker().is_some()) else { return Ok(None) };
    let stop = state.stop_fd.try_clone()?;
    let state = Arc::downgrade(state);
    let run = move || {
        while !stopped_within(stop.as_fd(), PERIOD_MS) {
            let (Some(state), Ok(found)) = (state.upgrade(), privileged::namespaces(&names)) else { continue };
            if let Some(why) = ends(own, found.first().copied(), state.is_unused()) {
                tracing::info!("{why}");
                return state.request_stop();
            }
        }
    };
    std::thread::Builder::new().name("namespace".into()).spawn(run).map(Some)
}

/// Why the stack of this namespace ends now that its name leads there. Programs that still run in it keep a namespace that
/// has lost its name, and the stack serves them on.
fn ends(own: u64, found: Option<Found>, unused: bool) -> Option<&'static str> {
    match found? {
        Found::Cookie(cookie) if cookie != own => {
            Some("another network namespace has the name; this stack ends with its own")
        }
        Found::Gone if unused => Some("the network namespace was deleted; its stack ends"),
        Found::Cookie(_) | Found::Gone | Found::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_ends_with_its_namespace_and_not_before_its_programs() {
        let ends = |found, unused| ends(7, Some(found), unused).is_some();
        assert!(!ends(Found::Cookie(7), true), "it is there");
        assert!(ends(Found::Cookie(8), true) && ends(Found::Cookie(8), false), "another one needs the place");
        assert!(ends(Found::Gone, true) && !ends(Found::Gone, false), "programs are still there");
        assert!(!ends(Found::Unknown, true), "nothing is known");
    }
}
