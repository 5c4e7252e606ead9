//! The outcome of several sources together.

use std::time::Duration;
use towpath_scaling::Outcome;

/// An outcome of this age still holds. It is longer than the second between two outcomes, because clocks differ.
pub const FRESH: Duration = Duration::from_millis(2500);
/// A source that has been silent for so long is left out until it speaks again.
pub const FORGOTTEN: Duration = Duration::from_secs(60);

/// Adds up sources: throughput is the sum, latency the average of all requests, the 99th percentile the largest.
///
/// A sum with one source missing would look like a change for the worse. So there is no outcome while a source is late,
/// nor in the tick in which one appears or is forgotten.
#[derive(Clone, Debug, Default)]
pub struct Mix {
    /// Which sources were in the last sum.
    members: Vec<bool>,
}

impl Mix {
    /// The sum of each source's last outcome, given with its age.
    pub fn of(&mut self, said: &[Option<(Outcome, Duration)>]) -> Option<Outcome> {
        let said: Vec<_> = said.iter().map(|said| said.filter(|(_, age)| *age < FORGOTTEN)).collect();
        let members: Vec<bool> = said.iter().map(Option::is_some).collect();
        let others = self.members.contains(&true) && members != self.members;
        self.members = members;
        let there = || said.iter().flatten();
        let late = there().any(|(_, age)| *age >= FRESH);
        if others || late || there().next().is_none() {
            return None;
        }
        let throughput = there().map(|(outcome, _)| outcome.throughput).sum();
        let timed = || there().filter(|(outcome, _)| outcome.latency_us > 0.0);
        let weight: f64 = timed().map(|(outcome, _)| outcome.throughput).sum();
        let spent: f64 = timed().map(|(outcome, _)| outcome.throughput * outcome.latency_us).sum();
        Some(Outcome {
            throughput,
            latency_us: if weight > 0.0 { spent / weight } else { 0.0 },
            p99_us: there().map(|(outcome, _)| outcome.p99_us).fold(0.0, f64::max),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_millis(300);

    fn said(throughput: f64, latency_us: f64, p99_us: f64) -> Option<(Outcome, Duration)> {
        Some((Outcome { throughput, latency_us, p99_us }, NOW))
    }

    #[test]
    fn throughput_adds_latency_is_weighed_and_the_largest_tail_counts() {
        let sources = [said(3000.0, 100.0, 300.0), said(1000.0, 500.0, 900.0), said(500.0, 0.0, 0.0)];
        let outcome = Mix::default().of(&sources);
        assert_eq!(outcome, Some(Outcome { throughput: 4500.0, latency_us: 200.0, p99_us: 900.0 }));
        assert_eq!(Mix::default().of(&[]), None);
        assert_eq!(Mix::default().of(&[said(0.0, 5.0, 5.0)]).map(|outcome| outcome.latency_us), Some(0.0));
    }

    #[test]
    fn a_source_that_is_late_silences_all_until_it_is_forgotten() {
        let mut mix = Mix::default();
        let (one, two) = (said(3000.0, 100.0, 0.0), said(1000.0, 100.0, 0.0));
        let ago = |seconds| two.map(|(outcome, _)| (outcome, Duration::from_secs(seconds)));
        assert!(mix.of(&[one, two]).is_some());
        assert_eq!(mix.of(&[one, ago(3)]), None, "3000 instead of 4000 would look like a change for the worse");
        assert_eq!(mix.of(&[one, ago(59)]), None);
        assert_eq!(mix.of(&[one, ago(60)]), None, "the tick in which it is forgotten");
        assert_eq!(mix.of(&[one, ago(61)]).map(|outcome| outcome.throughput), Some(3000.0));
        assert_eq!(mix.of(&[one, two]), None, "the tick in which it comes back");
        assert_eq!(mix.of(&[one, two]).map(|outcome| outcome.throughput), Some(4000.0));
    }

    #[test]
    fn a_source_that_never_spoke_is_none() {
        let mut mix = Mix::default();
        assert_eq!(mix.of(&[None, None]), None);
        assert!(mix.of(&[said(1.0, 0.0, 0.0), None]).is_some(), "the first that speaks need not wait");
    }
}
