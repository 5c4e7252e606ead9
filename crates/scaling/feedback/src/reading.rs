//! A server's counters at one time.

use crate::buckets::Buckets;
use crate::line::ABSURD;
use std::time::Duration;
use towpath_scaling::Outcome;

/// How many requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// All so far.
    Total(f64),
    /// Per second, as the server computes it.
    Rate(f64),
}

/// A server's counters at one time. Most only grow, so their growth between two readings is the result.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Requests.
    pub requests: Amount,
    /// The time that requests took so far, µs, and how many requests those were.
    pub spent: Option<(f64, f64)>,
    /// The histogram of all times so far.
    pub buckets: Buckets,
    /// Average latency as the server computes it, µs.
    pub latency_us: Option<f64>,
    /// The 99th percentile as the server computes it, µs.
    pub p99_us: Option<f64>,
    /// Resolution of the server's clock, µs. Shorter times are dropped.
    pub shortest_us: f64,
}

impl Reading {
    /// A reading with only a number of requests.
    pub fn new(requests: Amount) -> Self {
        Self { requests, spent: None, buckets: Buckets::default(), latency_us: None, p99_us: None, shortest_us: 0.0 }
    }

    /// The outcome since `before`, which was `time` ago. `None`: the numbers are impossible, or a counter went back
    /// because the server was restarted.
    pub fn since(&self, before: &Self, time: Duration) -> Option<Outcome> {
        let seconds = time.as_secs_f64();
        let throughput = match (self.requests, before.requests) {
            (Amount::Rate(rate), _) => rate,
            (Amount::Total(now), Amount::Total(then)) if now >= then && seconds > 0.0 => (now - then) / seconds,
            _ => return None,
        };
        let mean = self.latency_us.or_else(|| {
            let ((us, count), (us_then, count_then)) = (self.spent?, before.spent?);
            let (us, count) = (us - us_then, count - count_then);
            (count > 0.0).then_some(us / count)
        });
        let p99 = self.p99_us.or_else(|| self.buckets.since(&before.buckets)?.quantile(0.99));
        let said = |time: Option<f64>| {
            time.filter(|time| (0.0..ABSURD).contains(time) && *time >= self.shortest_us).unwrap_or(0.0)
        };
        let possible = (0.0..ABSURD).contains(&throughput);
        possible.then(|| Outcome { throughput, latency_us: said(mean), p99_us: said(p99) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(requests: f64, spent: (f64, f64)) -> Reading {
        Reading { spent: Some(spent), ..Reading::new(Amount::Total(requests)) }
    }

    #[test]
    fn what_was_achieved_is_what_counters_have_grown() {
        let (before, after) = (total(1000.0, (9e6, 1000.0)), total(5000.0, (9.4e6, 5000.0)));
        let outcome = after.since(&before, Duration::from_secs(2));
        assert_eq!(outcome, Some(Outcome { throughput: 2000.0, latency_us: 100.0, p99_us: 0.0 }));
        let coarse = Reading { shortest_us: 101.0, ..after.clone() };
        assert_eq!(coarse.since(&before, Duration::from_secs(2)).map(|outcome| outcome.latency_us), Some(0.0));
        let idle = before.since(&before, Duration::from_secs(1));
        assert_eq!(idle, Some(Outcome::default()), "nothing done is an answer, too");
    }

    #[test]
    fn a_server_that_was_started_anew_says_nothing_at_first() {
        let (before, after) = (total(5000.0, (9e6, 5000.0)), total(7.0, (1.0, 7.0)));
        assert_eq!(after.since(&before, Duration::from_secs(1)), None);
        assert_eq!(before.since(&after, Duration::ZERO), None, "no time is no time");
    }

    #[test]
    fn rates_are_as_they_are_said_if_they_can_be() {
        let of = |rate: f64| Reading::new(Amount::Rate(rate)).since(&total(1.0, (0.0, 0.0)), Duration::from_secs(1));
        assert_eq!(of(70.0).map(|outcome| outcome.throughput), Some(70.0));
        for rate in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
            assert_eq!(of(rate), None, "{rate}");
        }
    }
}
