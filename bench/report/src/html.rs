//! The report as one page that needs nothing else: no script, no font, no picture from elsewhere.

use crate::figure::{Section, Target};
use crate::figures;
use crate::interval::Axis;
use crate::outcome::{Measured, Outcome, TargetStatus, outcome};
use crate::run::Run;
use crate::words;
use std::fmt::Write;

/// Colours by name, so that dark and light differ in one place.
const STYLE: &str = include_str!("page.css");

/// The page of a run.
pub fn page(run: &Run) -> String {
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"/><title>Towpath beside Linux</title><style>{STYLE}</style></head><body>\n\
         <h1>Towpath beside Linux</h1>\n"
    );
    summary(run, &mut out);
    for section in Section::ALL {
        let of_section = figures::all().filter(|figure| figure.section == section);
        let outcomes: Vec<Outcome<'_>> = of_section.map(|figure| outcome(figure, run)).collect();
        table(section, &outcomes, &mut out);
        missing(&outcomes, &mut out);
    }
    out + "</body></html>\n"
}

/// What a reader has to know before the tables.
fn summary(run: &Run, out: &mut String) {
    let outcomes: Vec<Outcome<'_>> = figures::all().map(|figure| outcome(figure, run)).collect();
    let count = |status| outcomes.iter().filter(|outcome| outcome.target_status() == status).count();
    let open = outcomes.iter().filter(|outcome| {
        outcome.target_status() == TargetStatus::NotMeasured && outcome.figure.target != Target::None
    });
    let _ = writeln!(
        out,
        "<p class=\"lead\">Targets: <b class=\"good\">{} met</b>, <b class=\"bad\">{} not met</b>, {} not measured. \
         {} more figures have no target.</p>",
        count(TargetStatus::Met),
        count(TargetStatus::NotMet),
        open.count(),
        count(TargetStatus::NoTarget)
    );
    let _ = writeln!(out, "<p>{} · commit {}</p>", escape(&run.date), escape(&run.commit));
    if let Some(warning) = run.warning() {
        let _ = writeln!(out, "<p><b class=\"bad\">{}</b></p>", escape(&warning));
    }
    for (title, pairs) in [("Machine", &run.machine), ("Linux's settings", &run.settings)] {
        let _ = writeln!(out, "<details open=\"open\"><summary>{title}</summary><table class=\"pairs\">");
        for (name, value) in pairs {
            let _ = writeln!(out, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(value));
        }
        out.push_str("</table></details>\n");
    }
    out.push_str(
        "<details open=\"open\"><summary>How to read it</summary><ul>\
         <li>Linux and Towpath take turns in every round. A ratio is that of neighbours: Towpath to the best of Linux's ways in the \
         same round. Its median decides whether a target is met. The range of the rounds stands beside it.</li>\
         <li>In a picture the line is 1.0, the bar is the range, the dot the median, and the triangle the target. Where ↓ stands, less \
         is better.</li>\
         <li>Noise is how far Linux's own rounds lie apart: the largest less the least, to the median. Steal is the share of the \
         machine's CPU time that its hypervisor gave to others meanwhile.</li>\
         <li>Server's CPU is the busy time of CPU 0 in steps of 4 ms: program, stack and interrupts. Spinning counts as busy.</li>\
         <li>A row that says “recorded” was not measured in this run: it takes too long. Its file and date stand there.</li>\
         </ul></details>\n",
    );
}

fn table(section: Section, outcomes: &[Outcome<'_>], out: &mut String) {
    let _ = writeln!(out, "<h2>{}</h2>\n<p>{}</p>", section.title(), escape(section.about()));
    let measured = || outcomes.iter().filter_map(|outcome| outcome.result.as_ref().ok());
    if measured().next().is_none() {
        out.push_str("<p>Nothing of it was measured in this run.</p>\n");
        return;
    }
    let targets = outcomes.iter().filter_map(ratio_target);
    let ends = measured().filter_map(|measured| measured.ratio).flat_map(|ratio| [ratio.least, ratio.most]);
    let axis = Axis::new(targets.chain(ends));
    let _ = writeln!(
        out,
        "<div class=\"wide\"><table><thead><tr><th>what</th><th>Linux's best</th><th>Towpath</th><th>ratio</th><th>{}</th>\
         <th>target</th><th></th><th>limited by</th><th>noise</th><th>command</th></tr></thead><tbody>",
        axis.scale()
    );
    for outcome in outcomes {
        if let Ok(measured) = &outcome.result {
            row(outcome, measured, &axis, out);
        }
    }
    out.push_str("</tbody></table></div>\n");
}

fn row(outcome: &Outcome<'_>, measured: &Measured<'_>, axis: &Axis, out: &mut String) {
    let (figure, status) = (outcome.figure, outcome.target_status());
    let class = match status {
        TargetStatus::Met => "good",
        TargetStatus::NotMet => "bad",
        TargetStatus::NoTarget | TargetStatus::NotMeasured => "plain",
    };
    let (ratio, picture) = match &measured.ratio {
        Some(ratio) => (words::spread(ratio, measured.rounds), axis.interval(ratio, ratio_target(outcome), class)),
        None => ("–".to_owned(), String::new()),
    };
    let less = if figure.metric.higher { "" } else { " <span title=\"less is better\">↓</span>" };
    let recorded = measured.step.recorded.as_ref().map(|from| format!("<small>recorded: {}</small>", escape(from)));
    let rounds = measured.rounds.filter(|_| recorded.is_none()).map(|n| format!("<small>{n} rounds</small>"));
    let _ = writeln!(
        out,
        "<tr><th>{}{less}{}{}</th><td>{}</td><td>{}</td><td>{ratio}</td><td>{picture}</td><td>{}</td><td class=\"{class}\">{}</td>\
         <td class=\"text\">{}</td><td>{}</td><td><code>{}</code></td></tr>",
        escape(figure.what),
        recorded.unwrap_or_default(),
        rounds.unwrap_or_default(),
        escape(&words::linux(measured, figure.metric.unit)),
        words::value(measured.ours, figure.metric.unit),
        words::target(figure),
        words::target_status(outcome),
        escape(figure.limit),
        words::noise(measured),
        escape(&measured.step.command),
    );
}

/// Targets and figures of a section without a value.
fn missing(outcomes: &[Outcome<'_>], out: &mut String) {
    let mut lines = String::new();
    for outcome in outcomes {
        if let Err(why) = &outcome.result {
            let (what, target) = (escape(outcome.figure.what), words::target(outcome.figure));
            let _ = writeln!(lines, "<li>{what} (target {target}): {}</li>", escape(why));
        }
    }
    if !lines.is_empty() {
        let _ = writeln!(out, "<p>Not measured:</p>\n<ul>\n{lines}</ul>");
    }
}

/// Where the target stands in the picture.
fn ratio_target(outcome: &Outcome<'_>) -> Option<f64> {
    match outcome.figure.target {
        Target::Ratio(target) => Some(target),
        Target::None | Target::AtMost(_) | Target::AtLeast(_) => None,
    }
}

/// Text that stands for itself in HTML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
