//! `towpath cores replay`: asks the policy about recorded observations.

use super::show::plain;
use clap::Args;
use serde::Serialize;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use towpath_scaling::{Decision, Replayed, Trace, counted};

/// Largest file that is read.
const MOST_BYTES: u64 = 256 << 20;

/// Help after the options.
pub const HELP: &str = "Examples:
  towpath cores observe --interface eth1 --record trace.jsonl
  towpath cores replay trace.jsonl

What was seen was seen with the CPUs that were reserved then: where the policy decides otherwise, what would have been seen is not known.";

/// Asks the policy again, on any machine; changes nothing.
#[derive(Args)]
pub struct Arguments {
    /// A file of `--record`
    file: PathBuf,
    /// A JSON line for each tick
    #[arg(long)]
    pub json: bool,
}

/// One tick.
#[derive(Serialize)]
struct Line<'a> {
    tick: u64,
    from: u32,
    cores: u32,
    recorded: u32,
    reason: &'a str,
    why: &'a str,
}

/// Replays.
pub fn run(arguments: &Arguments) -> Result<String, String> {
    let name = arguments.file.display();
    let mut text = String::new();
    let file = File::open(&arguments.file).and_then(|file| file.take(MOST_BYTES).read_to_string(&mut text));
    file.map_err(|error| format!("{name}: {error}"))?;
    let trace = Trace::parse(&text).map_err(|error| plain(&format!("{name}: {error}")))?;
    Ok(if arguments.json { lines(&trace) } else { page(&trace) })
}

/// Every tick, for programs.
fn lines(trace: &Trace) -> String {
    let ticks = trace.replay().zip(&trace.ticks);
    let line = |(said, (recorded, _)): (Replayed, &(u32, _))| {
        let (reason, why) = (said.reason.name(), said.reason.sentence());
        let line = Line { tick: said.tick, from: said.from, cores: said.cores, recorded: *recorded, reason, why };
        crate::json::line(&line)
    };
    ticks.map(line).collect()
}

/// The changes, for people.
fn page(trace: &Trace) -> String {
    let mut text =
        format!("{}, {} of {} ms\n", plain(&trace.machine), counted(trace.ticks.len(), "tick"), trace.tick_ms);
    let (mut changes, mut cores) = (0, trace.cores);
    for said in trace.replay() {
        cores = said.cores;
        if let Decision::Change { from, to } = said.decision() {
            changes += 1;
            let Replayed { tick, seen, reason, .. } = said;
            let told =
                seen.outcome.map_or_else(String::new, |outcome| format!(", {:.0} requests/s", outcome.throughput));
            text += &format!(
                "{tick:>6}  {from} to {}  receive {:.2}, programs {:.2}, waiting {:.0} %{told}: {}\n",
                counted(to, "CPU"),
                seen.busy,
                seen.app_busy,
                100.0 * seen.app_waiting,
                reason.sentence()
            );
        }
    }
    text + &format!("{}, {} at the end\n", counted(changes, "change"), counted(cores, "CPU"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use towpath_scaling::{Config, Observation};

    #[test]
    fn a_trace_is_replayed_for_people_and_for_programs() {
        let config = Config { explore_ticks: 20, ..Config::new(8) };
        let idle = Observation { busy: 0.001, ..Observation::default() };
        let text = Trace::header(&config, 1000, 1, "8 CPUs, eth1 (\u{1b}[31mveth)") + &Trace::line(1, &idle).repeat(40);
        let trace = Trace::parse(&text).unwrap();
        assert_eq!(
            page(&trace),
            "8 CPUs, eth1 (?[31mveth), 40 ticks of 1000 ms\n    20  1 to 0 CPUs  receive 0.00, programs 0.00, waiting 0 %: fewer cores would do\n1 change, 0 CPUs at the end\n"
        );
        let lines = lines(&trace);
        assert_eq!(lines.lines().count(), 40);
        let line: serde_json::Value = serde_json::from_str(lines.lines().nth(19).unwrap()).unwrap();
        assert_eq!((&line["from"], &line["cores"], &line["recorded"]), (&1.into(), &0.into(), &1.into()), "{line}");
        assert_eq!(line["reason"], "idle");
    }
}
