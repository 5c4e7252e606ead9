//! Metrics for Prometheus, in its text format (version 0.0.4).

use super::decider_status::DeciderStatus;
use super::show::Entry;
use crate::metrics::page::escaped;
use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use towpath_scaling::Reason;

/// Reasons of changes that take another one back.
const REVERTS: [Reason; 5] = [Reason::Worse, Reason::NoCure, Reason::NoBetter, Reason::FeedbackLost, Reason::Fused];

/// Counters since the start.
pub struct Metrics {
    decisions: BTreeMap<&'static str, u64>,
    changes: u64,
    reverts: u64,
}

/// A page that is being written.
struct MetricsPage(String);

impl MetricsPage {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP towpath_cores_{name} {help}\n# TYPE towpath_cores_{name} {kind}");
    }
    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "towpath_cores_{name}{labels} {value}");
    }
    fn gauge(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: impl Display) {
        self.head(name, "gauge", help);
        self.sample(name, labels, value);
    }
}

impl Metrics {
    /// All counters at 0.
    pub fn new() -> Self {
        Self { decisions: Reason::ALL.iter().map(|reason| (reason.name(), 0)).collect(), changes: 0, reverts: 0 }
    }

    /// Counts a decision.
    pub fn count(&mut self, reason: Reason, entry: &Entry) {
        *self.decisions.entry(reason.name()).or_default() += 1;
        if entry.from != entry.cores {
            self.changes += 1;
            self.reverts += u64::from(REVERTS.contains(&reason));
        }
    }

    /// The page.
    pub fn text(&self, status: &DeciderStatus, entry: &Entry) -> String {
        let mut page = MetricsPage(String::with_capacity(4096));
        let device = &[("interface", status.interface.as_str())][..];
        let about = [("version", env!("CARGO_PKG_VERSION")), ("mode", &status.mode), device[0], ("way", &status.way)];
        page.gauge("info", "What decides, and of what.", &about, 1);
        page.gauge("reserved_cpus", "CPUs reserved for receiving.", device, entry.cores);
        page.head("decisions_total", "counter", "Decisions by reason; one a second.");
        for (reason, count) in &self.decisions {
            page.sample("decisions_total", &[device[0], ("reason", reason)], count);
        }
        page.head("changes_total", "counter", "Changes of the number of reserved CPUs.");
        page.sample("changes_total", device, self.changes);
        page.head("reverts_total", "counter", "Changes that took another one back.");
        page.sample("reverts_total", device, self.reverts);
        page.gauge("receive_busy_cpus", "Receive work, CPU seconds per second.", device, entry.busy);
        page.gauge("application_busy_cpus", "CPU time of programs, seconds per second.", device, entry.app_busy);
        let waiting = "Part of the time in which programs wait for a CPU.";
        page.gauge("application_waiting_ratio", waiting, device, entry.app_waiting);
        page.gauge(
            "pressure",
            "1 while packets are lost or the kernel runs out of time.",
            device,
            u8::from(entry.pressure),
        );
        page.gauge("received_packets_per_second", "Packets that the network device receives.", device, entry.offered);
        let micros = 1e-6;
        let told = [
            ("requests_per_second", "What applications achieve, if they say so.", entry.throughput),
            ("latency_seconds", "Average latency that applications report.", entry.latency_us.map(|us| us * micros)),
            ("latency_p99_seconds", "99th percentile that applications report.", entry.p99_us.map(|us| us * micros)),
        ];
        for (name, help, value) in told {
            // Without feedback there is no value, not the value 0.
            if let Some(value) = value {
                page.gauge(name, help, device, value);
            }
        }
        page.gauge("drifted_settings", "Settings that somebody else has changed.", device, status.drifted.len());
        page.head("alarm", "gauge", "1 while this calls for somebody to look.");
        for (kind, held) in [
            ("saturated", entry.reason == Reason::Saturated.name()),
            ("fused", entry.reason == Reason::Fused.name()),
            ("drift", !status.drifted.is_empty()),
        ] {
            page.sample("alarm", &[device[0], ("kind", kind)], u8::from(held));
        }
        let time = format!("{:.3}", entry.time_ms as f64 / 1000.0);
        page.gauge("last_decision_timestamp_seconds", "When the last decision was made, since 1970.", device, time);
        page.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry { time_ms: 1_700_000_000_250, busy: 0.5, reason: "steady".into(), ..Entry::default() }
    }

    #[test]
    fn the_page_is_what_prometheus_reads() {
        let status = DeciderStatus {
            interface: "e\"\\\nth".into(),
            mode: "enforce".into(),
            way: "irq".into(),
            ..DeciderStatus::default()
        };
        let mut metrics = Metrics::new();
        metrics.count(Reason::Busy, &Entry { from: 1, cores: 2, ..entry() });
        metrics.count(Reason::Worse, &Entry { from: 2, cores: 1, ..entry() });
        metrics.count(Reason::Worse, &Entry { from: 1, cores: 1, ..entry() });
        let text = metrics.text(&status, &Entry { cores: 1, latency_us: Some(250.0), ..entry() });
        let device = r#"interface="e\"\\\nth""#;
        for line in [
            format!("towpath_cores_reserved_cpus{{{device}}} 1"),
            format!("towpath_cores_decisions_total{{{device},reason=\"worse\"}} 2"),
            format!("towpath_cores_decisions_total{{{device},reason=\"idle\"}} 0"),
            format!("towpath_cores_changes_total{{{device}}} 2"),
            format!("towpath_cores_reverts_total{{{device}}} 1"),
            format!("towpath_cores_latency_seconds{{{device}}} 0.00025"),
            format!("towpath_cores_last_decision_timestamp_seconds{{{device}}} 1700000000.250"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\nis not in\n{text}");
        }
        assert!(!text.contains("requests_per_second"), "nobody has said it");
        // Every sample follows its HELP and TYPE lines, which are there once.
        let mut named: Vec<&str> = Vec::new();
        for line in text.lines() {
            match line.strip_prefix("# TYPE ") {
                Some(rest) => {
                    let name = rest.split(' ').next().unwrap_or_default();
                    assert!(!named.contains(&name), "{name} twice");
                    named.push(name);
                }
                None if line.starts_with("# HELP ") => {}
                None => assert_eq!(line.split(['{', ' ']).next(), named.last().copied(), "{line}"),
            }
        }
    }
}
