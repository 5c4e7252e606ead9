//! `towpath events`: what the flight recorder of a service has.

use crate::clock::utc;
use crate::locate::{NoService, Which};
use crate::{exit, fail, json, print};
use std::fmt::Write;
use std::process::ExitCode;
use towpath_service::api::{self, Command, EventLine, Events, ThreadEvents};

/// So many are shown.
const LAST: usize = 50;

/// Shows the last rare events of each thread: connections that came and ended, and why; what was sent again or dropped; wakes,
/// long turns, full mailboxes, panics. A service always records them, in its memory.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  towpath events                        the last 50 of all threads, the newest last
  towpath events -n 1000                more of them; each thread keeps a thousand at most
  towpath events --before               how the process that served before this one has ended
  towpath events --json | jq '.threads[].events[] | select(.kind == \"end\")'

Times are UTC. `dropped` and `woken` have a line for each reason and client, with how often and when last. No payload is
recorded. The service's own user and root see them. docs/guide/tracing.md says what each event means.")]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
    /// So many, the newest [default: 50, with --json all]
    #[arg(short = 'n', long, value_name = "NUMBER")]
    last: Option<usize>,
    /// Of the process that served before this one and has died
    #[arg(long)]
    before: bool,
    /// Of this thread alone: fast-0, slow ...
    #[arg(long, value_name = "NAME")]
    thread: Option<String>,
    /// One JSON object; it also has those of the process before this one
    #[arg(long)]
    pub json: bool,
}

/// Shows them.
pub fn run(arguments: &Arguments) -> ExitCode {
    let asked = || -> Result<Events, NoService> { Ok(api::ask(&arguments.which.find()?, Command::Events)?) };
    let mut events = match asked() {
        Ok(events) => events,
        Err(why) => return fail(&why.to_string(), arguments.json, exit::NO_SERVICE),
    };
    if let Err(why) = arguments.choose(&mut events) {
        return fail(&why, arguments.json, exit::FAILED);
    }
    print(&match (arguments.json, arguments.before) {
        (true, _) => json::line(&events),
        (false, true) => page(&events.before),
        (false, false) => page(&events.threads),
    })
}

impl Arguments {
    /// Leaves those that are wanted.
    fn choose(&self, events: &mut Events) -> Result<(), String> {
        let Events { threads, before } = events;
        if self.before {
            threads.clear();
        } else if !self.json {
            before.clear();
        }
        if let Some(name) = &self.thread {
            let mut known: Vec<&str> = threads.iter().chain(&*before).map(|one| one.thread.as_str()).collect();
            known.sort_unstable();
            known.dedup();
            if !known.is_empty() && !known.contains(&name.as_str()) {
                return Err(format!("there is no thread {name:?}; write one of {}", known.join(", ")));
            }
            threads.retain(|one| one.thread == *name);
            before.retain(|one| one.thread == *name);
        }
        if let Some(last) = self.last.or((!self.json).then_some(LAST)) {
            newest(threads, last);
            newest(before, last);
        }
        Ok(())
    }
}

/// Leaves so many of all threads, the newest.
fn newest(threads: &mut [ThreadEvents], last: usize) {
    let times = |(thread, one): (usize, &ThreadEvents)| {
        one.events.iter().enumerate().map(move |(event, line)| (line.at_us, thread, event)).collect::<Vec<_>>()
    };
    let mut all: Vec<_> = threads.iter().enumerate().flat_map(times).collect();
    all.sort_unstable();
    let Some(first) = all.get(all.len().saturating_sub(last)).copied() else {
        return threads.iter_mut().for_each(|one| one.events.clear());
    };
    for (thread, one) in threads.iter_mut().enumerate() {
        let mut event = 0..;
        one.events.retain(|line| event.next().is_some_and(|event| (line.at_us, thread, event) >= first));
    }
}

/// The human form.
pub fn page(threads: &[ThreadEvents]) -> String {
    let mut all: Vec<(&str, &EventLine)> =
        threads.iter().flat_map(|one| one.events.iter().map(|event| (one.thread.as_str(), event))).collect();
    if all.is_empty() {
        return "nothing is recorded\n".into();
    }
    all.sort_by_key(|(_, event)| event.at_us);
    let mut out = format!("{:<27} {:<9} Event\n", "Time (UTC)", "Thread");
    for (thread, EventLine { at_us, text, flow_group, .. }) in all {
        let group = flow_group.map(|group| format!("flow group {group}: ")).unwrap_or_default();
        let _ = writeln!(out, "{:<27} {thread:<9} {group}{text}", utc(*at_us));
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn chosen(line: &str) -> Result<Events, String> {
        let arguments = Line::parse_from(line.split(' ')).arguments;
        let event = |at_us, text: &str| EventLine { at_us, text: text.into(), ..EventLine::default() };
        let thread = |name: &str, events| ThreadEvents { thread: name.into(), events };
        let of_group = EventLine { flow_group: Some(1), ..event(2_000_000, "dropped: paws, 3 times in 9 us") };
        let threads = vec![
            thread("fast-0", vec![event(0, "connected"), of_group]),
            thread("slow", vec![event(1_000_001, "client 0 has gone")]),
        ];
        let mut events = Events { threads, before: vec![thread("fast-1", vec![event(7, "a"), event(9, "b")])] };
        arguments.choose(&mut events).map(|()| events)
    }

    #[test]
    fn the_newest_of_all_threads_come_last() {
        let expected = "\
Time (UTC)                  Thread    Event
1970-01-01 00:00:01.000001  slow      client 0 has gone
1970-01-01 00:00:02.000000  fast-0    flow group 1: dropped: paws, 3 times in 9 us
";
        assert_eq!(page(&chosen("events -n 2").unwrap().threads), expected);
        assert_eq!(page(&chosen("events --thread fast-0").unwrap().threads).lines().count(), 3);
        assert_eq!(page(&chosen("events -n 0").unwrap().threads), "nothing is recorded\n");
    }

    #[test]
    fn what_is_wanted_is_wanted_of_json_too() {
        let shape = |line: &str| {
            let Events { threads, before } = chosen(line).unwrap();
            [threads, before].map(|all| all.into_iter().map(|one| (one.thread, one.events.len())).collect::<Vec<_>>())
        };
        let of =
            |all: &[(&str, usize)]| all.iter().map(|(name, events)| ((*name).to_owned(), *events)).collect::<Vec<_>>();
        assert_eq!(shape("events --json"), [of(&[("fast-0", 2), ("slow", 1)]), of(&[("fast-1", 2)])]);
        assert_eq!(shape("events --json --before"), [of(&[]), of(&[("fast-1", 2)])]);
        assert_eq!(shape("events --json --thread slow"), [of(&[("slow", 1)]), of(&[])]);
        assert_eq!(shape("events --json -n 1"), [of(&[("fast-0", 1), ("slow", 0)]), of(&[("fast-1", 1)])]);
        assert_eq!(chosen("events --json -n 1").unwrap().before[0].events[0].text, "b");
    }

    #[test]
    fn a_thread_that_is_none_is_refused_with_those_that_are_there() {
        for (line, known) in [
            ("events --thread typo", "fast-0, slow"),
            ("events --thread typo --before", "fast-1"),
            ("events --thread typo --json", "fast-0, fast-1, slow"),
        ] {
            assert_eq!(chosen(line).unwrap_err(), format!("there is no thread \"typo\"; write one of {known}"));
        }
    }
}
