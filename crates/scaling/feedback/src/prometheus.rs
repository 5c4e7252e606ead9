//! Pages that Prometheus can scrape: text of samples, some of them selected.
//!
//! A selection is `name=METRIC`, with labels if need be (`requests_total{code="200",method="GET"}`), and optionally
//! `latency=METRIC` and `unit=s|ms|us`, joined by `&`.
//!
//! The growth of a counter is a number of requests. A gauge is requests per second. A histogram or summary has both the
//! number and the times. All series that have the labels are added up.

use crate::buckets::Buckets;
use crate::endpoint::{AddressError, Endpoint};
use crate::http::page;
use crate::reading::{Amount, Reading};
use crate::server::{Server, plain};
use std::str::FromStr;

/// A metric, and the labels that its series must have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    name: String,
    labels: Labels,
}

/// The metrics of a page that count.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    requests: Selector,
    latency: Selector,
    /// µs that a unit of the latency metric has.
    unit_us: f64,
}

impl FromStr for Selector {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError(format!("{text} is no metric: METRIC or METRIC{{label=\"value\"}}"));
        let (name, labels, rest) = series(text).ok_or_else(wrong)?;
        rest.is_empty().then_some(Self { name: name.to_owned(), labels }).ok_or_else(wrong)
    }
}

impl FromStr for Selection {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (mut requests, mut latency, mut unit) = (None, None, None);
        for part in text.split('&') {
            match part.split_once('=') {
                Some(("name", selector)) => requests = Some(selector.parse::<Selector>()?),
                Some(("latency", selector)) => latency = Some(selector.parse::<Selector>()?),
                Some(("unit", "s")) => unit = Some(1e6),
                Some(("unit", "ms")) => unit = Some(1e3),
                Some(("unit", "us")) => unit = Some(1.0),
                _ => return Err(AddressError(format!("{part} is none of name=METRIC, latency=METRIC, unit=s|ms|us"))),
            }
        }
        let requests = requests.ok_or_else(|| AddressError("name=METRIC is missing".into()))?;
        let latency = latency.unwrap_or_else(|| requests.clone());
        let unit_us = unit.unwrap_or_else(|| usual_unit(&latency.name));
        Ok(Self { requests, latency, unit_us })
    }
}

/// By Prometheus' naming rules times are in seconds, unless the name says otherwise.
fn usual_unit(name: &str) -> f64 {
    match name {
        _ if name.ends_with("_milliseconds") || name.ends_with("_ms") => 1e3,
        _ if name.ends_with("_microseconds") || name.ends_with("_us") => 1.0,
        _ => 1e6,
    }
}

/// Labels and their values.
type Labels = Vec<(String, String)>;

/// A series' name, its labels, and the rest of the line.
fn series(text: &str) -> Option<(&str, Labels, &str)> {
    let valid = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let end = text.find(|c| !valid(c)).unwrap_or(text.len());
    let (name, mut rest) = text.split_at(end);
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let mut labels = Vec::new();
    let Some(inside) = rest.strip_prefix('{') else { return Some((name, labels, rest)) };
    rest = inside.trim_start();
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return Some((name, labels, after));
        }
        let (label, after) = rest.split_once('=')?;
        let (value, after) = quoted(after.trim_start().strip_prefix('"')?)?;
        labels.push((label.trim().to_owned(), value));
        let after = after.trim_start();
        rest = after.strip_prefix(',').unwrap_or(after).trim_start();
    }
}

/// The text up to the closing quotation mark, and the rest.
fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut chars) = (String::new(), text.char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                c => value.push(c),
            },
            c => value.push(c),
        }
    }
    None
}

/// The values of a metric's series, added up.
#[derive(Default)]
struct Family {
    gauge: bool,
    plain: Option<f64>,
    count: Option<f64>,
    sum: Option<f64>,
    p99: Option<f64>,
    /// Cumulative: each bucket includes all below it.
    buckets: Buckets,
}

impl Family {
    /// Adds a line of the page.
    fn see(&mut self, line: &str, selector: &Selector, unit_us: f64) {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let mut words = kind.split_whitespace();
            if words.next() == Some(&selector.name) {
                self.gauge = words.next() == Some("gauge");
            }
            return;
        }
        // Most lines end here, so this test is cheap.
        let Some(suffix) = line.strip_prefix(selector.name.as_str()) else { return };
        let suffix = suffix.split(['{', ' ', '\t']).next().unwrap_or("");
        if !matches!(suffix, "" | "_count" | "_sum" | "_bucket") {
            return;
        }
        let Some((_, labels, rest)) = series(line) else { return };
        let label = |name: &str| labels.iter().find(|(label, _)| label == name).map(|(_, value)| value.as_str());
        if !selector.labels.iter().all(|(name, value)| label(name) == Some(value)) {
            return;
        }
        let value = rest.split_whitespace().next().and_then(|value| value.parse::<f64>().ok());
        let Some(value) = value.filter(|value| value.is_finite() && *value >= 0.0) else { return };
        let add = |to: &mut Option<f64>, value: f64| *to = Some(to.unwrap_or(0.0) + value);
        match (suffix, label("quantile"), label("le")) {
            ("_count", ..) => add(&mut self.count, value),
            ("_sum", ..) => add(&mut self.sum, value * unit_us),
            ("_bucket", _, Some(bound)) => {
                let bound = bound.parse::<f64>().unwrap_or(f64::NAN);
                self.buckets.add(bound * unit_us, value);
            }
            ("", Some(quantile), _) if quantile.parse() == Ok(0.99) => {
                self.p99 = Some(self.p99.unwrap_or(0.0).max(value * unit_us));
            }
            ("", None, _) => add(&mut self.plain, value),
            _ => {}
        }
    }
}

impl Selection {
    /// The values on a page. `None`: it does not have the metric.
    pub fn of(&self, page: &str) -> Option<Reading> {
        let (mut requests, mut latency) = (Family::default(), Family::default());
        for line in page.lines() {
            requests.see(line, &self.requests, 1.0);
            latency.see(line, &self.latency, self.unit_us);
        }
        let amount = match (requests.plain, requests.count) {
            (Some(rate), _) if requests.gauge => Amount::Rate(rate),
            (Some(total), _) | (None, Some(total)) => Amount::Total(total),
            (None, None) => return None,
        };
        let gauge = latency.plain.filter(|_| latency.gauge && self.latency != self.requests);
        Some(Reading {
            spent: latency.sum.zip(latency.count),
            buckets: latency.buckets.of_cumulative(),
            latency_us: gauge.map(|value| value * self.unit_us),
            p99_us: latency.p99,
            ..Reading::new(amount)
        })
    }
}

/// A server that can be scraped.
pub(crate) struct Prometheus {
    pub(crate) endpoint: Endpoint,
    pub(crate) path: String,
    pub(crate) selection: Selection,
}

impl Server for Prometheus {
    fn ask(&mut self) -> Result<Reading, String> {
        let page = page(&self.endpoint, &self.path).map_err(|error| plain(&error.to_string()))?;
        self.selection
            .of(&page)
            .ok_or_else(|| format!("there is no metric {} on the page", self.selection.requests.name))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::Duration;
    use towpath_scaling::Outcome;

    fn between(selection: &str, before: &str, after: &str) -> Option<Outcome> {
        let selection: Selection = selection.parse().unwrap();
        selection.of(after)?.since(&selection.of(before)?, Duration::from_secs(2))
    }

    #[test]
    fn series_of_a_counter_with_these_labels_are_added_up() {
        let page = |get: u32, post: u32| {
            format!(
                "# HELP requests_total All.\n# TYPE requests_total counter\nrequests_total{{method=\"GET\",code=\"200\"}} {get} 1700000000\n\
                 requests_total{{code=\"200\", method=\"POST\",}} {post}\nrequests_total{{code=\"500\"}} 77\nrequests_total_x 5\n"
            )
        };
        let (before, after) = (page(100, 50), page(300, 150));
        let throughput = |selection| between(selection, &before, &after).map(|outcome| outcome.throughput);
        assert_eq!(throughput("name=requests_total"), Some(150.0));
        assert_eq!(throughput("name=requests_total{code=\"200\"}"), Some(150.0));
        assert_eq!(throughput("name=requests_total{code=\"200\",method=\"GET\"}"), Some(100.0));
        assert_eq!(throughput("name=requests_total{code=\"404\"}"), None);
        assert_eq!(throughput("name=requests"), None);
    }

    #[test]
    fn a_histogram_says_how_many_and_how_long() {
        let page = |a: u32, b: u32, sum: f64| {
            format!(
                "# TYPE t_seconds histogram\nt_seconds_bucket{{le=\"0.001\"}} {a}\nt_seconds_bucket{{le=\"0.01\"}} {b}\n\
                 t_seconds_bucket{{le=\"+Inf\"}} {b}\nt_seconds_sum {sum}\nt_seconds_count {b}\n"
            )
        };
        let outcome = between("name=t_seconds", &page(10, 10, 0.01), &page(910, 1010, 1.01)).unwrap();
        assert_eq!((outcome.throughput, outcome.latency_us.round()), (500.0, 1000.0));
        assert_eq!(outcome.p99_us.round(), 9100.0);
    }

    #[test]
    fn a_summary_beside_a_counter_and_units() {
        let page = |count: u32| {
            format!(
                "n_total {count}\n# TYPE wait_ms summary\nwait_ms{{quantile=\"0.5\"}} 1\nwait_ms{{quantile=\"0.99\"}} 7\n\
                 wait_ms{{quantile=\"0.99\",shard=\"2\"}} NaN\nwait_ms_sum {}\nwait_ms_count {count}\n",
                count * 2
            )
        };
        let outcome = between("name=n_total&latency=wait_ms", &page(100), &page(300)).unwrap();
        assert_eq!(outcome, Outcome { throughput: 100.0, latency_us: 2000.0, p99_us: 7000.0 });
        let outcome = between("name=n_total&latency=wait_ms&unit=us", &page(100), &page(300)).unwrap();
        assert_eq!((outcome.latency_us, outcome.p99_us), (2.0, 7.0));
    }

    #[test]
    fn gauges_are_taken_as_they_are() {
        let page = "# TYPE ops gauge\nops 5000\n# TYPE mean_us gauge\nmean_us 80\n";
        let outcome = between("name=ops&latency=mean_us", page, page).unwrap();
        assert_eq!(outcome, Outcome { throughput: 5000.0, latency_us: 80.0, p99_us: 0.0 });
    }

    #[test]
    fn what_selects_nothing_is_refused() {
        for text in
            ["", "name", "name=", "name=1a", "name=a{", "name=a{b}", "name=a{b=\"c\"", "name=a&unit=h", "latency=a"]
        {
            assert!(text.parse::<Selection>().is_err(), "{text}");
        }
        let escaped: Selector = r#"a{b="c\"\\\n"}"#.parse().unwrap();
        assert_eq!(escaped.labels, [("b".to_owned(), "c\"\\\n".to_owned())]);
    }
}
