//! The table of all figures, with their targets and what limits them. It is the only place where a target stands.

mod cores;
mod host;
mod instructions;
mod kernel_stack;
mod modules;
mod wire;

use crate::figure::{Figure, Metric, Unit};

/// Where nobody has looked yet, and no cause is guessed.
const NOT_EXAMINED: &str = "not examined yet";

/// All figures, in the order of the report.
pub fn all() -> impl Iterator<Item = &'static Figure> {
    let timed = [wire::FIGURES, host::FIGURES, kernel_stack::FIGURES, cores::FIGURES, modules::FIGURES];
    timed.into_iter().chain([instructions::FIGURES]).flatten()
}

const fn higher(key: &'static str, unit: Unit, ratio: &'static str) -> Metric {
    Metric { key, ratio, unit, higher: true }
}

const fn lower(key: &'static str, unit: Unit, ratio: &'static str) -> Metric {
    Metric { key, ratio, unit, higher: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Target;
    use std::collections::BTreeSet;

    #[test]
    fn no_figure_stands_twice_and_each_says_what_limits_it() {
        let mut seen = BTreeSet::new();
        for figure in all() {
            assert!(seen.insert((figure.benchmark, figure.shape, figure.way, figure.metric.key)), "{figure:?}");
            assert!(!figure.what.is_empty() && !figure.limit.is_empty(), "{figure:?}");
            if let Target::Ratio(ratio) | Target::AtMost(ratio) | Target::AtLeast(ratio) = figure.target {
                assert!(ratio > 0.0, "{figure:?}");
            }
        }
    }
}
