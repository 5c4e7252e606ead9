//! How long one host waits for blocks that it has asked of many at once.

use crate::quantile;
use serde::Serialize;

/// Times from a request until every answer was complete, µs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Completion {
    /// The median.
    pub p50_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
}

impl Completion {
    /// The quantiles of these times.
    pub fn of(took_us: &[f64]) -> Self {
        Self { p50_us: quantile(took_us, 0.5), p99_us: quantile(took_us, 0.99) }
    }
}

/// The payload of all senders at the rate of the bottleneck, µs.
pub fn wire_us(senders: u32, kib: u64, bits_per_s: f64) -> f64 {
    f64::from(senders) * (kib << 13) as f64 / (bits_per_s / 1e6)
}
