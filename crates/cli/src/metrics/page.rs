//! A page in the format of OpenMetrics.

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;

/// All metrics, in their order.
#[derive(Debug, Default)]
pub struct Page(Vec<Family>);

/// Name and value of each label.
pub type Labels = Vec<(&'static str, String)>;

#[derive(Debug)]
struct Family {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    samples: Vec<(Labels, Sample)>,
}

#[derive(Clone, Debug)]
enum Sample {
    Number(f64),
    Spread(Histogram),
}

/// Counts by bucket.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// Each bucket's upper bound, and how many are in this bucket alone. The last bound is `f64::MAX`, which reads `+Inf`.
    pub buckets: Vec<(f64, u64)>,
    /// The sum of all that were counted.
    pub sum: f64,
}

impl Page {
    /// What only grows. The sample's name ends in `_total`.
    pub fn counter(
        &mut self,
        name: &'static str,
        help: &'static str,
        samples: impl IntoIterator<Item = (Labels, f64)>,
    ) {
        self.add(name, help, MetricType::Counter, samples);
    }
    /// What grows and shrinks.
    pub fn gauge(&mut self, name: &'static str, help: &'static str, samples: impl IntoIterator<Item = (Labels, f64)>) {
        self.add(name, help, MetricType::Gauge, samples);
    }
    /// How a quantity is spread. The samples' names end in `_bucket`, `_sum` and `_count`.
    pub fn histogram(
        &mut self,
        name: &'static str,
        help: &'static str,
        samples: impl IntoIterator<Item = (Labels, Histogram)>,
    ) {
        let samples = samples.into_iter().map(|(labels, histogram)| (labels, Sample::Spread(histogram)));
        self.add_all(name, help, MetricType::Histogram, samples);
    }
    fn add(
        &mut self,
        name: &'static str,
        help: &'static str,
        kind: MetricType,
        samples: impl IntoIterator<Item = (Labels, f64)>,
    ) {
        let samples = samples.into_iter().map(|(labels, value)| (labels, Sample::Number(value)));
        self.add_all(name, help, kind, samples);
    }
    fn add_all(
        &mut self,
        name: &'static str,
        help: &'static str,
        kind: MetricType,
        samples: impl Iterator<Item = (Labels, Sample)>,
    ) {
        let escaped = |(name, value): (_, String)| (name, escaped(&value));
        let samples = samples.map(|(labels, value)| (labels.into_iter().map(escaped).collect(), value));
        let samples: Vec<(Labels, Sample)> = samples.collect();
        if !samples.is_empty() {
            self.0.push(Family { name, help, kind, samples });
        }
    }

    /// The text.
    pub fn text(self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        // Memory takes everything.
        let _ = encode(&mut text, &registry);
        text
    }
}

/// A label's value, as both formats have it. The library writes it as it is.
pub fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

impl prometheus_client::collector::Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        for Family { name, help, kind, samples } in &self.0 {
            let mut family = encoder.encode_descriptor(name, help, None, *kind)?;
            for (labels, value) in samples {
                let mut sample = family.encode_family(labels)?;
                match (value, kind) {
                    (Sample::Number(value), MetricType::Counter) => ConstCounter::new(*value).encode(sample)?,
                    (Sample::Number(value), _) => ConstGauge::new(*value).encode(sample)?,
                    (Sample::Spread(Histogram { buckets, sum }), _) => {
                        let count = buckets.iter().map(|(_, count)| count).sum();
                        sample.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)?;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_what_openmetrics_says() {
        let mut page = Page::default();
        page.counter("towpath_drops", "Dropped.", [(vec![("reason", "a \"b\"\\\n".to_owned())], 3.0)]);
        page.gauge("towpath_up", "It answers.", [(vec![("stack", "home".to_owned())], 1.0)]);
        let buckets = vec![(0.5, 2), (1.0, 0), (f64::MAX, 1)];
        page.histogram(
            "towpath_seconds",
            "Times.",
            [(vec![("stack", "home".to_owned())], Histogram { buckets, sum: 7.5 })],
        );
        page.gauge("towpath_nothing", "No sample, so it is not there.", []);
        assert_eq!(
            page.text(),
            "# HELP towpath_drops Dropped.\n# TYPE towpath_drops counter\n\
             towpath_drops_total{reason=\"a \\\"b\\\"\\\\\\n\"} 3.0\n\
             # HELP towpath_up It answers.\n# TYPE towpath_up gauge\ntowpath_up{stack=\"home\"} 1.0\n\
             # HELP towpath_seconds Times.\n# TYPE towpath_seconds histogram\n\
             towpath_seconds_sum{stack=\"home\"} 7.5\ntowpath_seconds_count{stack=\"home\"} 3\ntowpath_seconds_bucket{le=\"0.5\",stack=\"home\"} 2\n\
             towpath_seconds_bucket{le=\"1.0\",stack=\"home\"} 2\ntowpath_seconds_bucket{le=\"+Inf\",stack=\"home\"} 3\n# EOF\n"
        );
    }
}
