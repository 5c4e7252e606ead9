//! What the stages of one connection take, and what several CPUs make of it. Frames are replayed and there is no client.

use crate::all::machine;
use crate::callgrind::{absent, callgrind, per_request};
use crate::programs::{ScratchDir, json_report};
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use towpath_bench_report::{Spread, print_json};
use towpath_service::programs::find;

/// The stages in the order of a frame, and whether there may be several of one.
const STAGES: [(&str, bool); 6] =
    [("sequence", false), ("pre", true), ("protocol", false), ("deliver", true), ("build", true), ("commit", false)];
/// The stages of the first of two threads: those near to ports and applications.
const FIRST: [&str; 3] = ["sequence", "pre", "commit"];
/// How often a frame goes from one thread to another: parsed, and copied.
const HAND_OVERS: f64 = 2.0;
/// Frames that callgrind counts.
const COUNTED: &str = "6400";

/// Arguments of `towpath bench stages`.
#[derive(Args)]
#[command(
    after_help = "One connection receives frames as fast as it takes them. Nothing else may run on the machine: the\n\
    figures are times of two CPUs.\n\nExamples:\n  towpath bench stages\n  towpath bench stages --payload 1448 --rounds 15 --json"
)]
pub struct Options {
    /// One JSON object instead of the tables
    #[arg(long)]
    json: bool,
    /// Bytes of payload in a frame; can be given several times [default: 64 and 1448]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(1..=1448))]
    payload: Vec<u16>,
    /// Rounds, each with every figure
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// How long each figure of a round is measured
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    milliseconds: u64,
}

/// A figure over the rounds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Figure {
    median: f64,
    least: f64,
    most: f64,
}

/// A stage: what a frame takes.
#[derive(Debug, Serialize)]
struct Stage {
    stage: &'static str,
    replicable: bool,
    nanoseconds: Figure,
    /// Counted by callgrind.
    instructions: f64,
}

/// A rate, beside what the stages' times predict.
#[derive(Debug, Serialize)]
struct Rate {
    frames_per_s: Figure,
    /// Of run-to-completion's rate of the same round.
    ratio: Figure,
    predicted_ratio: f64,
}

/// All of one size of frames.
#[derive(Debug, Serialize)]
struct Measured {
    payload_bytes: u16,
    stages: Vec<Stage>,
    /// A frame from one CPU to another: its share of a stream, and alone.
    hand_over_ns: Figure,
    hand_over_alone_ns: Figure,
    /// Run-to-completion on one CPU, frames per second.
    one: Figure,
    /// Its instructions for a frame, which is there already: without the sequencer.
    one_instructions: f64,
    /// One connection on two CPUs: stages near to the port on one, the flow group on the other.
    two_stage_threads: Rate,
    /// Two connections in two flow groups, each to completion on a CPU of its own.
    two_flow_groups: Rate,
    /// The most frames per second that the stages of one connection could have on so many CPUs.
    bounds: Vec<Bound>,
}

#[derive(Debug, Serialize)]
struct Bound {
    cpus: u32,
    frames_per_s: f64,
}

#[derive(Serialize)]
struct Report {
    machine: Vec<(String, String)>,
    rounds: u64,
    measured: Vec<Measured>,
}

/// Measures and prints.
pub fn run(options: &Options) -> io::Result<()> {
    let program = find("towpath-stages")?;
    let payloads = if options.payload.is_empty() { vec![64, 1448] } else { options.payload.clone() };
    let scratch = ScratchDir::new("stages")?;
    let measured = payloads.iter().map(|payload| measure(&program, &scratch.0, *payload, options));
    let report =
        Report { machine: machine::machine(), rounds: options.rounds, measured: measured.collect::<io::Result<_>>()? };
    if !print_json(options.json, &report) {
        print(&report);
    }
    Ok(())
}

fn measure(program: &Path, dir: &Path, payload: u16, options: &Options) -> io::Result<Measured> {
    let words = [payload.to_string(), options.rounds.to_string(), options.milliseconds.to_string()];
    let output = Command::new(program).arg("time").args(words).stderr(Stdio::piped()).output()?;
    let figures = json_report(&output, "towpath-stages")?;
    let mut stages = vec![];
    for (stage, replicable) in STAGES {
        let instructions = counted(program, dir, stage, payload)?;
        stages.push(Stage { stage, replicable, nanoseconds: spread(&list(&figures, stage)?)?, instructions });
    }
    let hand_over_ns = spread(&list(&figures, "hand_over")?)?;
    let one = list(&figures, "one")?;
    let times: Vec<_> = stages.iter().map(|stage| (stage.stage, stage.replicable, stage.nanoseconds.median)).collect();
    let alone_ns = 1e9 / spread(&one)?.median;
    let rate = |name, predicted_ratio| {
        let rates = list(&figures, name)?;
        let ratios: Vec<f64> = rates.iter().zip(&one).map(|(rate, one)| rate / one).collect();
        Ok::<_, io::Error>(Rate { frames_per_s: spread(&rates)?, ratio: spread(&ratios)?, predicted_ratio })
    };
    Ok(Measured {
        payload_bytes: payload,
        hand_over_alone_ns: spread(&list(&figures, "there_and_back")?)?,
        one: spread(&one)?,
        one_instructions: counted(program, dir, "whole", payload)?,
        two_stage_threads: rate("two", alone_ns / split(&times, hand_over_ns.median))?,
        two_flow_groups: rate("groups", 2.0)?,
        bounds: [2, 3, 4, 6, 8, 12, 16]
            .map(|cpus| Bound { cpus, frames_per_s: 1e9 / bound(&times, hand_over_ns.median, cpus) })
            .into(),
        stages,
        hand_over_ns,
    })
}

/// Instructions of a stage for a frame.
fn counted(program: &Path, dir: &Path, stage: &str, payload: u16) -> io::Result<f64> {
    let out = dir.join(format!("{stage}-{payload}.out"));
    let mut command = callgrind(&format!("{stage}_turn"), &out);
    let output = command.arg(program).args(["count", &payload.to_string(), COUNTED]).output().map_err(absent)?;
    per_request(&out, &output)
}

fn list(figures: &Value, name: &str) -> io::Result<Vec<f64>> {
    let list = figures[name].as_array().map(|list| list.iter().filter_map(Value::as_f64).collect());
    list.ok_or_else(|| io::Error::other(format!("the report has no {name}")))
}

fn spread(values: &[f64]) -> io::Result<Figure> {
    let Spread { median, least, most } =
        Spread::of(values).ok_or_else(|| io::Error::other("a figure was not measured"))?;
    Ok(Figure { median, least, most })
}

/// Nanoseconds of a frame with the stages on two threads as they are measured: those of the slower one.
fn split(times: &[(&str, bool, f64)], hand_over: f64) -> f64 {
    let of = |first| times.iter().filter(|(name, ..)| FIRST.contains(name) == first).map(|(.., ns)| ns).sum::<f64>();
    f64::max(of(true), of(false)) + HAND_OVERS * hand_over
}

/// Nanoseconds of a frame that no arrangement on so many CPUs goes below: an even share of all work, or the longest stage of
/// which there is one.
fn bound(times: &[(&str, bool, f64)], hand_over: f64, cpus: u32) -> f64 {
    let share = times.iter().map(|(.., ns)| ns).sum::<f64>() / f64::from(cpus);
    let single = times.iter().filter(|(_, replicable, _)| !replicable).map(|(.., ns)| *ns).fold(0.0, f64::max);
    share.max(single) + HAND_OVERS * hand_over
}

fn print(report: &Report) {
    let machine: Vec<String> = report.machine.iter().map(|(name, value)| format!("{name} {value}")).collect();
    println!("{} rounds; {}", report.rounds, machine.join(", "));
    let range =
        |f: &Figure, digits: usize| format!("{:.digits$} ({:.digits$} to {:.digits$})", f.median, f.least, f.most);
    for m in &report.measured {
        println!("\none connection, frames with {} bytes of payload", m.payload_bytes);
        println!("  {:<10}{:>12}  ns for a frame", "stage", "instructions");
        for Stage { stage, replicable, nanoseconds, instructions } in &m.stages {
            let many = if *replicable { "" } else { "  one only" };
            println!("  {stage:<10}{instructions:>12.1}  {}{many}", range(nanoseconds, 1));
        }
        println!(
            "  from one CPU to another: {} ns in a stream, {} alone",
            range(&m.hand_over_ns, 1),
            range(&m.hand_over_alone_ns, 0)
        );
        println!("  to completion, one CPU: {} frames/s, {:.1} instructions", range(&m.one, 0), m.one_instructions);
        for (name, rate) in [("two stage threads", &m.two_stage_threads), ("two flow groups", &m.two_flow_groups)] {
            let Rate { frames_per_s, ratio, predicted_ratio } = rate;
            println!(
                "  {name}: {} frames/s, {} times one; predicted {predicted_ratio:.2}",
                range(frames_per_s, 0),
                range(ratio, 2)
            );
        }
        let bounds: Vec<String> = m.bounds.iter().map(|b| format!("{}: {:.0}", b.cpus, b.frames_per_s)).collect();
        println!("  at most, frames/s on so many CPUs: {}", bounds.join(", "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: [(&str, bool, f64); 6] = [
        ("sequence", false, 10.0),
        ("pre", true, 40.0),
        ("protocol", false, 30.0),
        ("deliver", true, 50.0),
        ("build", true, 5.0),
        ("commit", false, 15.0),
    ];

    #[test]
    fn two_threads_take_what_the_slower_one_takes() {
        assert_eq!(split(&TIMES, 0.0), 85.0, "protocol, deliver and build, not the 65 of the other");
        assert_eq!(split(&TIMES, 20.0), 125.0);
    }

    #[test]
    fn more_cpus_help_until_the_longest_stage_that_is_alone() {
        assert_eq!([2, 3, 5, 16].map(|cpus| bound(&TIMES, 0.0, cpus)), [75.0, 50.0, 30.0, 30.0]);
        assert_eq!(bound(&TIMES, 20.0, 16), 70.0);
    }
}
