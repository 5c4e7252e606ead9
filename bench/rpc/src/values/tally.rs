//! Latencies of one thread's requests: by step, and by window.

use hdrhistogram::Histogram;
use serde::Serialize;
use std::io;

/// Largest latency that is recorded exactly, ns.
const LONGEST: u64 = 60_000_000_000;

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
    /// Latency, from when the request was due.
    pub mean_us: f64,
    /// See `mean_us`.
    pub p50_us: f64,
    /// See `mean_us`.
    pub p99_us: f64,
    /// See `mean_us`.
    pub p999_us: f64,
    /// Busy time of all CPUs of the machine per request, other programs included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_us_per_request: Option<f64>,
}

/// Latencies by number of step or window.
pub struct Tally {
    digits: u8,
    histograms: Vec<Histogram<u64>>,
}

impl Tally {
    /// An empty tally that keeps `digits` decimal digits of each latency.
    pub fn new(digits: u8) -> Self {
        Self { digits, histograms: Vec::new() }
    }
    fn at(&mut self, index: usize) -> io::Result<&mut Histogram<u64>> {
        while self.histograms.len() <= index {
            self.histograms.push(Histogram::new_with_bounds(1000, LONGEST, self.digits).map_err(io::Error::other)?);
        }
        Ok(&mut self.histograms[index])
    }
    /// Records a reply.
    pub fn record(&mut self, index: usize, latency_ns: u64) -> io::Result<()> {
        self.at(index)?.saturating_record(latency_ns);
        Ok(())
    }
    /// Adds another thread's tally.
    pub fn add(&mut self, other: &Self) -> io::Result<()> {
        for (index, histogram) in other.histograms.iter().enumerate() {
            self.at(index)?.add(histogram).map_err(io::Error::other)?;
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
        let histogram = self.at(index)?;
        let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        Ok(Report {
            step,
            load,
            at_s,
            seconds,
            requests: histogram.len(),
            requests_per_s: histogram.len() as f64 / seconds.max(1e-9),
            mean_us: histogram.mean() / 1000.0,
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            cpu_us_per_request: None,
        })
    }
}
