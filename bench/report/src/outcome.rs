//! What a run says about a figure: the values, the ratio of each round to Linux's best way in it, and the status.

use crate::figure::{Figure, Metric, Target};
use crate::run::{Run, Step};
use crate::statistics::{Spread, median};
use serde_json::{Map, Value};

type Row = Map<String, Value>;

/// A figure as a run has it.
pub struct Outcome<'a> {
    /// What was measured.
    pub figure: &'a Figure,
    /// The values, or why there are none.
    pub result: Result<Measured<'a>, String>,
}

/// The values of a figure.
pub struct Measured<'a> {
    /// The command and its noise.
    pub step: &'a Step,
    /// Linux's best way and its median. `None`: there is nothing of Linux's to compare.
    pub linux: Option<(&'a str, f64)>,
    /// Towpath's median.
    pub ours: f64,
    /// Towpath to the best of Linux's ways in the same round.
    pub ratio: Option<Spread>,
    /// Rounds that were measured. `None`: the recorded rows keep medians only.
    pub rounds: Option<usize>,
    /// Rounds that reached the target.
    pub reached: Option<usize>,
    /// How far Linux's own rounds lie apart, in parts of their median.
    pub scatter: Option<f64>,
}

/// Whether a target is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetStatus {
    /// By the median.
    Met,
    /// Not by the median.
    NotMet,
    /// There is nothing to meet.
    NoTarget,
    /// There are no values.
    NotMeasured,
}

impl Outcome<'_> {
    /// The median decides.
    pub fn target_status(&self) -> TargetStatus {
        let Ok(measured) = &self.result else { return TargetStatus::NotMeasured };
        let met = match self.figure.target {
            Target::None => return TargetStatus::NoTarget,
            Target::AtMost(most) => measured.ours <= most,
            Target::AtLeast(least) => measured.ours >= least,
            Target::Ratio(wanted) => match measured.ratio {
                None => return TargetStatus::NotMeasured,
                Some(ratio) => reaches(&self.figure.metric, ratio.median, wanted),
            },
        };
        if met { TargetStatus::Met } else { TargetStatus::NotMet }
    }
}

fn reaches(metric: &Metric, ratio: f64, wanted: f64) -> bool {
    if metric.higher { ratio >= wanted } else { ratio <= wanted }
}

/// Looks a figure up in a run.
pub fn outcome<'a>(figure: &'a Figure, run: &'a Run) -> Outcome<'a> {
    Outcome { figure, result: measured(figure, run) }
}

fn measured<'a>(figure: &Figure, run: &'a Run) -> Result<Measured<'a>, String> {
    let steps = || run.steps.iter().filter(|step| step.benchmark == figure.benchmark);
    let of_shape = |step: &'a Step| step.rows.iter().filter(|row| text(row, "shape") == Some(figure.shape));
    // A measured step comes before a recorded one.
    let found =
        steps().find_map(|step| of_shape(step).find(|row| text(row, "way") == Some(figure.way)).map(|row| (step, row)));
    let Some((step, ours)) = found else {
        let failed = steps().find_map(|step| step.error.clone());
        return Err(failed.unwrap_or_else(|| "not part of this run".to_owned()));
    };
    let linux: Vec<&Row> =
        of_shape(step).filter(|row| text(row, "way").is_some_and(|way| way.starts_with("linux"))).collect();
    let (metric, key) = (&figure.metric, figure.metric.key);
    let value = number(ours, key).ok_or_else(|| "without a value".to_owned())?;
    let mut measured = Measured {
        step,
        linux: best(&linux, metric),
        ours: value,
        ratio: None,
        rounds: None,
        reached: None,
        scatter: None,
    };
    let Some(rounds) = rounds(ours, key) else {
        measured.ratio = recorded_ratio(ours, metric).or_else(|| {
            let (_, linux) = measured.linux?;
            Spread::of(&[value / linux])
        });
        return Ok(measured);
    };
    measured.rounds = Some(rounds.len());
    measured.reached = match figure.target {
        Target::AtMost(most) => Some(rounds.iter().filter(|value| **value <= most).count()),
        Target::AtLeast(least) => Some(rounds.iter().filter(|value| **value >= least).count()),
        _ => None,
    };
    let of_linux: Vec<Vec<f64>> = linux.iter().filter_map(|row| self::rounds(row, key)).collect();
    let best: Option<Vec<f64>> = (0..rounds.len())
        .map(|round| better(metric, of_linux.iter().filter_map(|rounds| rounds.get(round).copied())))
        .collect();
    if let Some(best) = best.filter(|best| !best.is_empty()) {
        let ratios: Vec<f64> = rounds.iter().zip(&best).map(|(ours, linux)| ours / linux).collect();
        measured.ratio = Spread::of(&ratios);
        // One round says nothing of how far rounds lie apart.
        measured.scatter = Spread::of(&best).filter(|_| best.len() > 1).map(|best| best.scatter());
        if let Target::Ratio(wanted) = figure.target {
            measured.reached = Some(ratios.iter().filter(|ratio| reaches(metric, **ratio, wanted)).count());
        }
    }
    Ok(measured)
}

/// The better one of these values.
fn better(metric: &Metric, values: impl Iterator<Item = f64>) -> Option<f64> {
    values.reduce(|a, b| if metric.higher { a.max(b) } else { a.min(b) })
}

/// The way with the best median.
fn best<'a>(linux: &[&'a Row], metric: &Metric) -> Option<(&'a str, f64)> {
    let ways = linux.iter().filter_map(|row| Some((text(row, "way")?, number(row, metric.key)?)));
    ways.reduce(|a, b| if (b.1 > a.1) == metric.higher { b } else { a })
}

fn text<'a>(row: &'a Row, key: &str) -> Option<&'a str> {
    row.get(key)?.as_str()
}

fn number(row: &Row, key: &str) -> Option<f64> {
    row.get(key)?.as_f64()
}

/// The values of all rounds. `None` where a round has none.
fn rounds(row: &Row, key: &str) -> Option<Vec<f64>> {
    row.get("rounds")?.as_array()?.iter().map(|round| round.get(key)?.as_f64()).collect()
}

/// The ratio of a row without rounds: a number, or median, least and largest.
fn recorded_ratio(row: &Row, metric: &Metric) -> Option<Spread> {
    match row.get(metric.ratio)? {
        Value::Array(values) => match values.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>()?[..] {
            [median, least, most] => Some(Spread { median, least, most }),
            _ => None,
        },
        value => Spread::of(&[value.as_f64()?]),
    }
}

/// The middle of the scatter of all figures of a section, and the largest share that the hypervisor took.
pub fn noise(outcomes: &[Outcome<'_>]) -> Option<(f64, f64)> {
    let measured = || outcomes.iter().filter_map(|outcome| outcome.result.as_ref().ok());
    let scatter: Vec<f64> = measured().filter_map(|measured| measured.scatter).collect();
    let steal = measured().map(|measured| measured.step.steal).fold(0.0, f64::max);
    (!scatter.is_empty()).then(|| (median(scatter), steal))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::figure::{Kind, Section, Unit};

    const RATE: Metric = Metric { key: "x", ratio: "to_linux", unit: Unit::Requests, higher: true };
    const TIME: Metric = Metric { higher: false, ..RATE };

    fn figure(metric: Metric, target: Target) -> Figure {
        Kind { section: Section::Host, benchmark: "direct", way: "direct", metric }
            .figure("what", "echo", target, "limit")
    }

    fn run(lines: &str) -> Run {
        let mut step = Step { benchmark: "direct".to_owned(), ..Step::default() };
        step.take(lines).unwrap();
        Run { steps: vec![step], ..Run::default() }
    }

    const ROUNDS: &str = r#"{"shape":"echo","way":"linux","x":3,"rounds":[{"x":1},{"x":3},{"x":4}]}
{"shape":"other","way":"linux","x":100,"rounds":[{"x":100},{"x":100},{"x":100}]}
{"shape":"echo","way":"linux, one CPU","x":2,"rounds":[{"x":2},{"x":2},{"x":8}]}
{"shape":"echo","way":"direct","x":12,"rounds":[{"x":10},{"x":12},{"x":16}]}"#;

    #[test]
    fn a_ratio_is_to_the_best_way_of_the_same_round() {
        let (run, figure) = (run(ROUNDS), figure(RATE, Target::Ratio(4.0)));
        let outcome = outcome(&figure, &run);
        assert_eq!(outcome.target_status(), TargetStatus::Met);
        let measured = outcome.result.as_ref().unwrap();
        assert_eq!(measured.ratio, Some(Spread { median: 4.0, least: 2.0, most: 5.0 }), "10/2, 12/3, 16/8");
        assert_eq!((measured.linux, measured.ours), (Some(("linux", 3.0)), 12.0));
        assert_eq!((measured.rounds, measured.reached), (Some(3), Some(2)));
        assert_eq!(measured.scatter, Some(2.0), "2, 3 and 8");
        assert_eq!(noise(&[outcome]), Some((2.0, 0.0)));
    }

    #[test]
    fn where_less_is_better_the_least_of_linuxs_counts_and_a_ratio_may_be_too_high() {
        let run = run(ROUNDS);
        let status = |metric, target| outcome(&figure(metric, target), &run).target_status();
        let figure = figure(TIME, Target::Ratio(6.0));
        let ratio = outcome(&figure, &run).result.unwrap().ratio;
        assert_eq!(ratio, Some(Spread { median: 6.0, least: 4.0, most: 10.0 }), "10/1, 12/2, 16/4");
        assert_eq!(status(TIME, Target::Ratio(6.0)), TargetStatus::Met);
        assert_eq!(status(TIME, Target::Ratio(5.9)), TargetStatus::NotMet);
        assert_eq!(status(RATE, Target::Ratio(4.1)), TargetStatus::NotMet);
        assert_eq!(status(TIME, Target::AtMost(12.0)), TargetStatus::Met);
        assert_eq!(status(TIME, Target::AtMost(11.9)), TargetStatus::NotMet);
        assert_eq!(status(RATE, Target::AtLeast(12.0)), TargetStatus::Met);
        assert_eq!(status(RATE, Target::AtLeast(12.1)), TargetStatus::NotMet);
        assert_eq!(status(RATE, Target::None), TargetStatus::NoTarget);
    }

    #[test]
    fn a_target_that_was_not_measured_is_neither_met_nor_missed() {
        let figure = figure(RATE, Target::Ratio(1.0));
        let mut empty = run("");
        assert_eq!(outcome(&figure, &empty).target_status(), TargetStatus::NotMeasured);
        empty.steps[0].error = Some("no redis".to_owned());
        assert_eq!(outcome(&figure, &empty).result.err().unwrap(), "no redis");
        let alone = run(r#"{"shape":"echo","way":"direct","x":12,"rounds":[{"x":12}]}"#);
        assert_eq!(outcome(&figure, &alone).target_status(), TargetStatus::NotMeasured, "nothing to compare with");
        let without = run(r#"{"shape":"echo","way":"direct","x":null,"rounds":[{"x":null}]}"#);
        assert!(outcome(&figure, &without).result.is_err());
    }

    #[test]
    fn rows_without_rounds_have_the_ratio_that_was_recorded() {
        let ratio = |lines: &str| {
            let figure = figure(RATE, Target::None);
            outcome(&figure, &run(lines)).result.unwrap().ratio
        };
        let linux = r#"{"shape":"echo","way":"linux","x":2}"#;
        let row = |more: &str| format!("{linux}\n{{\"shape\":\"echo\",\"way\":\"direct\",\"x\":8{more}}}");
        assert_eq!(ratio(&row("")).unwrap().median, 4.0);
        assert_eq!(ratio(&row(",\"to_linux\":3.5")).unwrap().median, 3.5, "the median of the rounds' ratios");
        assert_eq!(ratio(&row(",\"to_linux\":[3,2,5]")), Some(Spread { median: 3.0, least: 2.0, most: 5.0 }));
    }
}
