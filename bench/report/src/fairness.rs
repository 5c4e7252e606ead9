//! How evenly flows share one port, window by window.

use crate::{jain, quantile};
use serde::Serialize;

/// Bytes of each flow in each window, reduced to shares.
#[derive(Default)]
pub struct Shares {
    /// Jain's index of each window.
    jains: Vec<f64>,
    /// Bytes of a flow in a window over the mean of that window.
    shares: Vec<f64>,
    total_bytes: f64,
}

/// The summary of all windows, as the rows of both fairness benchmarks print it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ShareSummary {
    /// Payload over the bits that the bottleneck could have carried.
    pub utilization: f64,
    /// Jain's index of a window: the median of all windows.
    pub jain: f64,
    /// The least of all windows.
    pub jain_least: f64,
    /// Throughput of a flow in a window over the fair share: quantiles over flows and windows.
    pub median: f64,
    /// See `median`.
    pub p1: f64,
    /// See `median`.
    pub p99: f64,
}

impl Shares {
    /// Adds a window: the bytes of each flow that sent in it, out of `flows`.
    pub fn add_window(&mut self, bytes: &[f64], flows: u32) {
        let sum: f64 = bytes.iter().sum();
        self.jains.push(jain(bytes));
        self.shares.extend(bytes.iter().map(|bytes| bytes * f64::from(flows) / sum.max(1.0)));
        self.total_bytes += sum;
    }

    /// The summary for windows of this length behind a bottleneck of this rate.
    pub fn summary(&self, window_s: f64, bits_per_s: f64) -> ShareSummary {
        ShareSummary {
            utilization: self.total_bytes * 8.0 / (self.jains.len() as f64 * window_s) / bits_per_s,
            jain: quantile(&self.jains, 0.5),
            jain_least: quantile(&self.jains, 0.0),
            median: quantile(&self.shares, 0.5),
            p1: quantile(&self.shares, 0.01),
            p99: quantile(&self.shares, 0.99),
        }
    }

    /// The share at every twentieth of the distribution, from 0 to 100 %, for drawing.
    pub fn curve(&self) -> Vec<f64> {
        (0..=20).map(|step| quantile(&self.shares, f64::from(step) / 20.0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_the_mean_of_their_window() {
        let mut shares = Shares::default();
        shares.add_window(&[500_000.0, 1_500_000.0], 2);
        shares.add_window(&[750_000.0, 750_000.0], 2);
        let summary = shares.summary(2.0, 8e6);
        assert_eq!((summary.median, summary.p1, summary.p99), (1.0, 0.5, 1.5));
        assert!((summary.utilization - 3.5 / 4.0).abs() < 1e-9, "{}", summary.utilization);
        assert!((summary.jain_least - 0.8).abs() < 1e-9, "{}", summary.jain_least);
        assert!(shares.curve().is_sorted());
    }
}
