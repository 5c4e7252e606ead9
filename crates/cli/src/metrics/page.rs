//! A page in the format of OpenMetrics.

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
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
    samples: Vec<(Labels, f64)>,
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
    fn add(
        &mut self,
        name: &'static str,
        help: &'static str,
        kind: MetricType,
        samples: impl IntoIterator<Item = (Labels, f64)>,
    ) {
        let escaped = |(name, value): (_, String)| (name, escaped(&value));
        let samples = samples.into_iter().map(|(labels, value)| (labels.into_iter().map(escaped).collect(), value));
        let samples: Vec<(Labels, f64)> = samples.collect();
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
                let sample = family.encode_family(labels)?;
                match kind {
                    MetricType::Counter => ConstCounter::new(*value).encode(sample)?,
                    _ => ConstGauge::new(*value).encode(sample)?,
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
        page.gauge("towpath_nothing", "No sample, so it is not there.", []);
        assert_eq!(
            page.text(),
            "# HELP towpath_drops Dropped.\n# TYPE towpath_drops counter\n\
             towpath_drops_total{reason=\"a \\\"b\\\"\\\\\\n\"} 3.0\n\
             # HELP towpath_up It answers.\n# TYPE towpath_up gauge\ntowpath_up{stack=\"home\"} 1.0\n# EOF\n"
        );
    }
}
