//! Latencies of one thread's requests: by step, and by window.

use hdrhistogram::Histogram;
use serde::Serialize;
use std::io;

/// Largest latency that is recorded exactly, ns.
const LONGEST: u64 = 60_000_000_000;
/// Below this number of requests too few are slower than p99.99 to tell it.
const ENOUGH_FOR_P9999: u64 = 100_000;

/// A step, as a whole or a window of it.
#[derive(Serialize)]
pub struct Report {
    /// The step's number.
    pub step: usize,
    /// Its name.
    pub load: String,
    /// When it (its measured part) began, seconds after the first step.
    pub at_s: f64,
    /// Measured time.
    pub seconds: f64,
    /// Replies in that time.
    pub requests: u64,
    /// Replies per second.
    pub requests_per_s: f64,
    /// Requests of an open loop that were due in that time and not answered in it. They count in the latencies with the
    /// time that they have waited, as leaving them out would hide the slowest.
    pub unanswered: u64,
    /// Latency, from when the request was due.
    pub mean_us: f64,
    /// See `mean_us`.
    pub p50_us: f64,
    /// See `mean_us`.
    pub p99_us: f64,
    /// See `mean_us`.
    pub p999_us: f64,
    /// See `mean_us`. `None`: there were too few requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p9999_us: Option<f64>,
    /// Busy time of all CPUs of the machine per request, other programs included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_us_per_request: Option<f64>,
}

/// Latencies by number of step or window.
pub struct Tally {
    digits: u8,
    histograms: Vec<Histogram<u64>>,
    unanswered: Vec<u64>,
}

impl Tally {
    /// An empty tally that keeps `digits` decimal digits of each latency.
    pub fn new(digits: u8) -> Self {
        Self { digits, histograms: Vec::new(), unanswered: Vec::new() }
    }
    fn at(&mut self, index: usize) -> io::Result<&mut Histogram<u64>> {
        while self.histograms.len() <= index {
            self.histograms.push(Histogram::new_with_bounds(1000, LONGEST, self.digits).map_err(io::Error::other)?);
            self.unanswered.push(0);
        }
        Ok(&mut self.histograms[index])
    }
    /// Records a reply.
    pub fn record(&mut self, index: usize, latency_ns: u64) -> io::Result<()> {
        self.at(index)?.saturating_record(latency_ns);
        Ok(())
    }
    /// Records a request that has waited so long and has no reply.
    pub fn record_unanswered(&mut self, index: usize, waited_ns: u64) -> io::Result<()> {
        self.record(index, waited_ns)?;
        self.unanswered[index] += 1;
        Ok(())
    }
    /// Adds another thread's tally.
    pub fn add(&mut self, other: &Self) -> io::Result<()> {
        for (index, histogram) in other.histograms.iter().enumerate() {
            self.at(index)?.add(histogram).map_err(io::Error::other)?;
            self.unanswered[index] += other.unanswered[index];
        }
        Ok(())
    }
    /// The report of a step or window.
    pub fn report(
        &mut self,
        index: usize,
        (step, load): (usize, String),
        at_s: f64,
        seconds: f64,
    ) -> io::Result<Report> {
        self.at(index)?;
        let (histogram, unanswered) = (&self.histograms[index], self.unanswered[index]);
        let replies = histogram.len() - unanswered;
        let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        Ok(Report {
            step,
            load,
            at_s,
            seconds,
            requests: replies,
            requests_per_s: replies as f64 / seconds.max(1e-9),
            unanswered,
            mean_us: histogram.mean() / 1000.0,
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            p9999_us: (histogram.len() >= ENOUGH_FOR_P9999).then(|| at(0.9999)),
            cpu_us_per_request: None,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_unanswered_request_is_no_reply_but_counts_in_the_latencies() {
        let (mut tally, mut other) = (Tally::new(3), Tally::new(3));
        (0..90).for_each(|_| tally.record(0, 10_000).unwrap());
        (0..10).for_each(|_| other.record_unanswered(0, 5_000_000).unwrap());
        tally.add(&other).unwrap();
        let report = tally.report(0, (0, "open:100".to_owned()), 0.0, 1.0).unwrap();
        assert_eq!((report.requests, report.unanswered, report.requests_per_s), (90, 10, 90.0));
        assert!(report.p99_us > 4_900.0 && report.p50_us < 11.0, "{} {}", report.p50_us, report.p99_us);
    }

    #[test]
    fn the_last_quantile_needs_requests_enough() {
        let mut tally = Tally::new(3);
        (1..ENOUGH_FOR_P9999).for_each(|_| tally.record(0, 10_000).unwrap());
        let p9999 = |tally: &mut Tally| tally.report(0, (0, "open:1".to_owned()), 0.0, 1.0).unwrap().p9999_us;
        assert_eq!(p9999(&mut tally), None);
        tally.record(0, 10_000).unwrap();
        assert!(p9999(&mut tally).is_some());
    }
}
