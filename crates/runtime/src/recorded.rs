//! What the flight recorder has, in the log.

use crate::thread::now_us;
use towpath_recorder::{self as recorder, Event, Recorded, Which};

/// Events that are written to the log at most.
const MOST: usize = 32;

/// This thread's turn has ended by a panic: records it, and writes to the log what was before. `flow_group`: it is one's turn, or
/// [`recorder::NONE`].
#[cold]
pub fn say_what_was_before(flow_group: u32) {
    let events = recorder::panicked(flow_group);
    let now = now_us();
    for event in events.iter().skip(events.len().saturating_sub(MOST)) {
        tracing::error!("{:.6} s before the panic: {event}", before(now, event));
    }
}

/// Writes to the log how the process that served before this one has ended.
pub fn say_how_the_last_one_ended() {
    let mut events: Vec<(String, Event)> = recorder::read(Which::Predecessor)
        .into_iter()
        .flat_map(|Recorded { thread, events }| events.into_iter().map(move |event| (thread.clone(), event)))
        .collect();
    if events.is_empty() {
        return;
    }
    events.sort_by_key(|(_, event)| event.at_us);
    let now = now_us();
    tracing::warn!("`towpath events --before` shows what the process before this one did last; its last events:");
    for (thread, event) in events.iter().skip(events.len().saturating_sub(MOST)) {
        tracing::warn!(thread, "{:.6} s ago: {event}", before(now, event));
    }
}

/// Seconds. The memory may say anything.
fn before(now_us: u64, event: &Event) -> f64 {
    now_us.saturating_sub(event.at_us) as f64 / 1e6
}
