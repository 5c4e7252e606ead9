//! `towpath events`: what the flight recorder of a service has.

use crate::clock::utc;
use crate::locate::{NoService, Which};
use std::fmt::Write;
use towpath_service::api::{self, Command, EventLine, Events, ThreadEvents};

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
    /// So many, the newest
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 50)]
    last: usize,
    /// Of the process that served before this one and has died
    #[arg(long)]
    before: bool,
    /// Of this thread alone: fast-0, slow ...
    #[arg(long, value_name = "NAME")]
    thread: Option<String>,
    /// One JSON object, with all events
    #[arg(long)]
    pub json: bool,
}

/// Shows them.
pub fn run(arguments: &Arguments) -> Result<String, NoService> {
    let socket = arguments.which.find()?;
    let events: Events = api::ask(&socket, Command::Events)?;
    if arguments.json {
        return Ok(crate::json::line(&events));
    }
    let threads = if arguments.before { &events.before } else { &events.threads };
    Ok(page(threads, arguments.thread.as_deref(), arguments.last))
}

/// The human form.
pub fn page(threads: &[ThreadEvents], thread: Option<&str>, last: usize) -> String {
    let wanted = threads.iter().filter(|one| thread.is_none_or(|name| name == one.thread));
    let mut all: Vec<(&str, &EventLine)> =
        wanted.flat_map(|one| one.events.iter().map(|event| (one.thread.as_str(), event))).collect();
    if all.is_empty() {
        return "nothing is recorded\n".into();
    }
    all.sort_by_key(|(_, event)| event.at_us);
    let mut out = format!("{:<27} {:<9} Event\n", "Time (UTC)", "Thread");
    for (thread, EventLine { at_us, text, flow_group, .. }) in all.iter().skip(all.len().saturating_sub(last)) {
        let group = flow_group.map(|group| format!("flow group {group}: ")).unwrap_or_default();
        let _ = writeln!(out, "{:<27} {thread:<9} {group}{text}", utc(*at_us));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_of_all_threads_come_last() {
        let event = |at_us, text: &str| EventLine { at_us, text: text.into(), ..EventLine::default() };
        let thread = |name: &str, events| ThreadEvents { thread: name.into(), events };
        let of_group = EventLine { flow_group: Some(1), ..event(2_000_000, "dropped: paws, 3 times in 9 us") };
        let threads = [
            thread("fast-0", vec![event(0, "connected"), of_group]),
            thread("slow", vec![event(1_000_001, "client 0 has gone")]),
        ];
        let expected = "\
Time (UTC)                  Thread    Event
1970-01-01 00:00:01.000001  slow      client 0 has gone
1970-01-01 00:00:02.000000  fast-0    flow group 1: dropped: paws, 3 times in 9 us
";
        assert_eq!(page(&threads, None, 2), expected);
        assert_eq!(page(&threads, Some("fast-0"), 9).lines().count(), 3);
        assert_eq!(page(&threads, Some("fast-7"), 9), "nothing is recorded\n");
    }
}
