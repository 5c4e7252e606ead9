//! The flight recorder of this service.

use crate::api::{EventLine, Events, ThreadEvents};
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};
use towpath_recorder::{self as recorder, Event, NONE, Recorded, Which};
use towpath_runtime::thread::now_us;
use towpath_tcp::counters::Drop;

/// Threads that record beside those of flow groups: that of the slow path, and one to spare.
const OTHERS: usize = 2;

/// Makes the memory, before the first process is forked and the first thread runs. Without it nothing is recorded. No process that
/// is forked has it, unless [`inherit`] says so.
pub fn open(flow_groups: usize) {
    if let Err(error) = recorder::open(flow_groups + OTHERS, &Drop::NAMES) {
        tracing::warn!(%error, "`towpath events` will have nothing to show");
    }
}

/// From now on, do processes that this one forks have the memory? Workers do, and no other process of the broker's.
pub fn inherit(yes: bool) -> io::Result<()> {
    recorder::inherit(yes)
}

/// This process serves from now on, and no thread of it runs yet. The log says how the one before it has ended.
pub fn take_over() {
    // A guest's starter is this process's, and records nothing.
    if let Err(error) = inherit(false) {
        tracing::warn!(%error, "processes that this one starts can write what `towpath events` shows");
    }
    recorder::take_over();
    towpath_runtime::recorded::say_how_the_last_one_ended();
}

/// All that is recorded.
pub fn all() -> Events {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64);
    let clock = Clock { wall_us: wall, now_us: now_us() };
    let of = |which| recorder::read(which).into_iter().map(|one| thread(one, clock)).collect();
    Events { threads: of(Which::Own), before: of(Which::Predecessor) }
}

/// The same moment on both clocks.
#[derive(Clone, Copy)]
struct Clock {
    wall_us: u64,
    now_us: u64,
}

impl Clock {
    fn wall(self, at_us: u64) -> u64 {
        self.wall_us.saturating_sub(self.now_us.saturating_sub(at_us))
    }
}

fn thread(Recorded { thread, events }: Recorded, clock: Clock) -> ThreadEvents {
    ThreadEvents { thread, events: events.iter().map(|event| line(event, clock)).collect() }
}

fn line(event: &Event, clock: Clock) -> EventLine {
    EventLine {
        at_us: clock.wall(event.at_us),
        since_us: clock.wall(event.since_us),
        times: event.times,
        kind: event.kind.name().into(),
        text: event.to_string(),
        flow_group: (event.flow_group != NONE).then_some(event.flow_group),
        flow: event.flow(),
        client: event.client(),
        slot: event.socket().map(|(_, slot)| slot),
        reason: event.reason().map(Into::into),
        local: event.ends.map(|(local, _)| local),
        remote: event.ends.map(|(_, remote)| remote),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use towpath_recorder::{End, Entry, Kind};

    #[test]
    fn an_event_bears_the_time_of_the_wall_and_names_what_it_concerns() {
        let ends = Some(("10.0.0.1:80".parse().unwrap(), "[fd77::2]:4312".parse().unwrap()));
        let entry = Entry {
            flag: End::GivenUp as u8,
            flow_group: 1,
            value: (5, 110),
            ends,
            ..Entry::new(Kind::End, 7 << 32 | 3)
        };
        let event = Event { at_us: 900, since_us: 400, times: 1, entry };
        let line = line(&event, Clock { wall_us: 1_000_000, now_us: 1_000 });
        assert_eq!((line.at_us, line.since_us, line.flow_group, line.flow), (999_900, 999_400, Some(1), Some(5)));
        assert_eq!((line.client, line.slot, &*line.kind), (Some(7), Some(3), "end"));
        let text = "over: the stack has ended it (Connection timed out), client 7 slot 3, flow 5, 10.0.0.1:80 - [fd77::2]:4312";
        assert_eq!(line.text, text);
    }
}
