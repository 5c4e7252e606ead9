//! `docs/performance.md`: the figures of the recorded run, and what limits each of them now.

use crate::figure::{Figure, Section};
use crate::figures;
use crate::outcome::{Outcome, TargetStatus, noise, outcome};
use crate::run::Run;
use crate::words;
use std::fmt::Write;

const HEAD: &str = "# Performance

Made by `make bench RECORD=1` from the run that it keeps in [bench/recorded/run.json](../bench/recorded/run.json). Do not change it by
hand: a test compares the two. [bench/README.md](../bench/README.md) has the method, older figures, and how to read them.

A ratio is Towpath to the best of Linux's ways in the same round: the median, and the range of the rounds. Where ↓ stands, less is
better. *Not examined yet* means that nobody has looked for the limit.
";

/// The page of a run.
pub fn page(run: &Run) -> String {
    let mut out = HEAD.to_owned();
    let _ = writeln!(out, "\nRecorded on {}, commit {}.\n", run.date, run.commit);
    if let Some(warning) = run.warning() {
        let _ = writeln!(out, "**{warning}**\n");
    }
    for (title, pairs) in [("Machine", &run.machine), ("Linux's settings", &run.settings)] {
        let pairs: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        let _ = writeln!(out, "- **{title}**: {}.", pairs.join("; "));
    }
    for section in Section::ALL {
        let of_section = figures::all().filter(|figure| figure.section == section);
        let outcomes: Vec<Outcome<'_>> = of_section.map(|figure| outcome(figure, run)).collect();
        let _ = writeln!(out, "\n## {}\n{}", section.title(), section.about());
        table(&outcomes, &mut out);
        limits(&outcomes, &mut out);
        missing(&outcomes, &mut out);
        commands(&outcomes, &mut out);
    }
    out
}

fn table(outcomes: &[Outcome<'_>], out: &mut String) {
    if let Some((scatter, steal)) = noise(outcomes) {
        let _ = writeln!(
            out,
            "\nNoise: Linux's own rounds lay {} apart in the middle of these shapes, and the hypervisor took {} of the machine's CPU \
             time at most.",
            words::percent(scatter),
            words::percent(steal)
        );
    }
    let mut rows = String::new();
    for outcome in outcomes {
        let Ok(measured) = &outcome.result else { continue };
        let figure = outcome.figure;
        let less = if figure.metric.higher { "" } else { " ↓" };
        let recorded = if measured.step.recorded.is_some() { " (recorded earlier)" } else { "" };
        let ratio = measured.ratio.map_or_else(|| "–".to_owned(), |ratio| words::spread(&ratio, measured.rounds));
        let _ = writeln!(
            rows,
            "| {}{less}{recorded} | {} | {} | {ratio} | {} | {} |",
            figure.what,
            words::linux(measured, figure.metric.unit),
            words::value(measured.ours, figure.metric.unit),
            words::target(figure),
            words::target_status(outcome),
        );
    }
    if !rows.is_empty() {
        let _ = writeln!(
            out,
            "\n| | Linux's best | Towpath | ratio | target | |\n|---|--:|--:|--:|--:|---|\n{}",
            rows.trim_end()
        );
    }
}

/// Each limit once, with the figures that it is the limit of. Figures that miss their target come first.
fn limits(outcomes: &[Outcome<'_>], out: &mut String) {
    let mut by_limit: Vec<(&str, Vec<&Figure>)> = Vec::new();
    let missed = |outcome: &&Outcome<'_>| outcome.target_status() == TargetStatus::NotMet;
    let measured = || outcomes.iter().filter(|outcome| outcome.result.is_ok());
    for outcome in measured().filter(missed).chain(measured().filter(|outcome| !missed(outcome))) {
        match by_limit.iter_mut().find(|(limit, _)| *limit == outcome.figure.limit) {
            Some((_, figures)) => figures.push(outcome.figure),
            None => by_limit.push((outcome.figure.limit, vec![outcome.figure])),
        }
    }
    if by_limit.is_empty() {
        return;
    }
    out.push_str("\nWhat limits them now:\n\n");
    for (limit, figures) in by_limit {
        let names: Vec<&str> = figures.iter().map(|figure| figure.what).collect();
        let _ = writeln!(out, "- **{}**: {}.", capital(limit), names.join("; "));
    }
}

fn missing(outcomes: &[Outcome<'_>], out: &mut String) {
    let mut lines = String::new();
    for outcome in outcomes {
        if let Err(why) = &outcome.result {
            let _ = writeln!(lines, "- {} (target {}): {why}", outcome.figure.what, words::target(outcome.figure));
        }
    }
    if !lines.is_empty() {
        let _ = write!(out, "\nNot measured:\n\n{lines}");
    }
}

/// The commands of a section, and the files of what was recorded earlier.
fn commands(outcomes: &[Outcome<'_>], out: &mut String) {
    let mut seen: Vec<String> = Vec::new();
    for measured in outcomes.iter().filter_map(|outcome| outcome.result.as_ref().ok()) {
        let step = measured.step;
        let line = match &step.recorded {
            Some(from) => format!("- `{}` ({from})\n", step.command),
            None => format!("- `{}`\n", step.command),
        };
        if !seen.contains(&line) {
            seen.push(line);
        }
    }
    if !seen.is_empty() {
        let _ = write!(out, "\nMeasured by:\n\n{}", seen.concat());
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
