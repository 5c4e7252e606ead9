//! Values, ratios and statuses as words.

use crate::figure::{Figure, Target, Unit};
use crate::outcome::{Measured, Outcome, TargetStatus};
use crate::statistics::Spread;

/// A value with its unit.
pub fn value(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Requests => format!("{} /s", number(value)),
        Unit::Bytes => format!("{} MB/s", number(value / 1e6)),
        Unit::Bits => format!("{} Gbit/s", number(value / 1e9)),
        Unit::Mbit => format!("{} Mbit/s", number(value)),
        Unit::Us => format!("{} µs", number(value)),
        Unit::Ns => format!("{} ns", number(value)),
        Unit::MsPerGb => format!("{} ms", number(value)),
        Unit::Memory => format!("{} B", number(value)),
        Unit::Share => format!("{} %", number(value * 100.0)),
        Unit::Number => number(value),
    }
}

/// Three digits, or all before the point, with commas between thousands.
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        0.0 => 0,
        small if small < 1.0 => 3,
        small if small < 10.0 => 2,
        small if small < 100.0 => 1,
        _ => 0,
    };
    let text = format!("{value:.digits$}");
    let whole = text.find('.').unwrap_or(text.len());
    let mut out = String::new();
    for (at, c) in text.char_indices() {
        if at > 0 && at < whole && (whole - at).is_multiple_of(3) && !out.ends_with('-') {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// A ratio: enough digits to tell 1.00 from 1.01, and 0.012 from 0.013.
pub fn ratio(value: f64) -> String {
    match value {
        small if small < 0.1 => format!("{small:.3}"),
        small if small < 10.0 => format!("{small:.2}"),
        large => number(large),
    }
}

/// A ratio with its range. Without rounds there is none.
pub fn spread(spread: &Spread, rounds: Option<usize>) -> String {
    let median = ratio(spread.median);
    if rounds.is_none_or(|rounds| rounds < 2) && spread.least == spread.most {
        return format!("{median}x");
    }
    format!("{median}x ({}–{})", ratio(spread.least), ratio(spread.most))
}

/// The target of a figure, as it stands in the table.
pub fn target(figure: &Figure) -> String {
    let unit = value(0.0, figure.metric.unit).trim_start_matches('0').to_owned();
    match figure.target {
        Target::None => "–".to_owned(),
        Target::Ratio(wanted) => format!("{} {wanted}x", if figure.metric.higher { "≥" } else { "≤" }),
        Target::AtMost(most) if most >= 1000.0 => format!("≤ {}", value(most, figure.metric.unit)),
        Target::AtMost(most) => format!("≤ {most}{unit}"),
        Target::AtLeast(least) => format!("≥ {}", value(least, figure.metric.unit)),
    }
}

/// A share of a whole, in percent.
pub fn percent(share: f64) -> String {
    format!("{:.*} %", usize::from(share < 0.0995), share * 100.0)
}

/// Whether the target is met, and in how many rounds where they differ.
pub fn target_status(outcome: &Outcome<'_>) -> String {
    let word = match outcome.target_status() {
        TargetStatus::Met => "met",
        TargetStatus::NotMet => "not met",
        TargetStatus::NoTarget => "–",
        TargetStatus::NotMeasured => "not measured",
    };
    let rounds = outcome.result.as_ref().ok().and_then(|measured| measured.reached.zip(measured.rounds));
    match rounds {
        Some((reached, rounds)) if reached > 0 && reached < rounds => format!("{word} ({reached} of {rounds} rounds)"),
        _ => word.to_owned(),
    }
}

/// How noisy the machine was.
pub fn noise(measured: &Measured<'_>) -> String {
    if measured.step.recorded.is_some() {
        return "–".to_owned();
    }
    let steal = format!("steal {}", percent(measured.step.steal));
    match measured.scatter {
        Some(scatter) => format!("Linux's rounds {}, {steal}", percent(scatter)),
        None => steal,
    }
}

/// Linux's best way.
pub fn linux(measured: &Measured<'_>, unit: Unit) -> String {
    match measured.linux {
        None => "–".to_owned(),
        Some(("linux", median)) => value(median, unit),
        Some((way, median)) => {
            format!("{} ({})", value(median, unit), way.trim_start_matches("linux").trim_start_matches([',', ' ']))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::{Kind, Metric, Section};

    #[test]
    fn numbers_have_three_digits_or_more_and_commas() {
        let numbers = [0.0, 0.0123, 0.9, 9.876, 98.76, 987.6, 9876.0, 1_039_169.4, -1234.0];
        let words = ["0", "0.012", "0.900", "9.88", "98.8", "988", "9,876", "1,039,169", "-1,234"];
        assert_eq!(numbers.map(number), words);
        assert_eq!(value(3.45e9, Unit::Bytes), "3,450 MB/s");
        assert_eq!(value(34.9e9, Unit::Bits), "34.9 Gbit/s");
        assert_eq!([0.0123, 0.996, 62.8].map(ratio), ["0.012", "1.00", "62.8"]);
        assert_eq!([0.0, 0.034, 0.5].map(percent), ["0.0 %", "3.4 %", "50 %"]);
    }

    #[test]
    fn a_target_is_written_as_in_the_table() {
        let metric = |unit, higher| Metric { key: "x", ratio: "", unit, higher };
        let kind = |metric| Kind { section: Section::Host, benchmark: "direct", way: "direct", metric };
        let words = |metric, wanted| target(&kind(metric).figure("what", "shape", wanted, "limit"));
        assert_eq!(words(metric(Unit::Requests, true), Target::Ratio(20.0)), "≥ 20x");
        assert_eq!(words(metric(Unit::Ns, false), Target::Ratio(0.6)), "≤ 0.6x");
        assert_eq!(words(metric(Unit::Us, false), Target::AtMost(0.5)), "≤ 0.5 µs");
        assert_eq!(words(metric(Unit::Number, false), Target::AtMost(850.0)), "≤ 850");
        assert_eq!(words(metric(Unit::Memory, false), Target::AtMost(512.0)), "≤ 512 B");
        assert_eq!(words(metric(Unit::Share, true), Target::AtLeast(0.95)), "≥ 95.0 %");
    }

    #[test]
    fn a_range_is_that_of_several_rounds() {
        let of = |median, least, most| Spread { median, least, most };
        assert_eq!(spread(&of(1.5, 1.3, 1.73), Some(7)), "1.50x (1.30–1.73)");
        assert_eq!(spread(&of(1.5, 1.5, 1.5), None), "1.50x");
        assert_eq!(spread(&of(1.5, 1.2, 1.6), None), "1.50x (1.20–1.60)", "recorded with its range");
    }
}
