//! A decision, as text or as a JSON line.

use super::feedback_sources::Said;
use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};
use towpath_rxcpus::{Pool, Sensed};
use towpath_scaling::{PolicyState, Reason, counted};

/// One decision, for logs. docs/guide/cores.md describes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Since 1970, ms.
    pub time_ms: u64,
    /// Seconds since the start.
    pub tick: u64,
    /// CPUs reserved before it, and from now on.
    pub from: u32,
    /// From now on.
    pub cores: u32,
    /// One word.
    pub reason: String,
    /// A sentence.
    pub why: String,
    /// Receive work, CPUs.
    pub busy: f64,
    /// The source of that measurement.
    #[serde(default)]
    pub busy_from: String,
    /// True if there were losses.
    pub pressure: bool,
    /// The losses, by the kernel's names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub losses: Vec<String>,
    /// CPUs that programs use.
    pub app_busy: f64,
    /// The part of their time in which they wait for a CPU.
    pub app_waiting: f64,
    /// The source of that measurement.
    #[serde(default)]
    pub waiting_from: String,
    /// Packets per second.
    pub offered: f64,
    /// Requests per second, with feedback.
    pub throughput: Option<f64>,
    /// Average, µs.
    pub latency_us: Option<f64>,
    /// 99th percentile, µs.
    pub p99_us: Option<f64>,
    /// The report of each source of feedback.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub feedback: Vec<Said>,
    /// The commands that do the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
}

/// Now, since 1970, ms.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

impl Entry {
    /// The decision of this tick.
    pub fn new(pool: &Pool, state: &PolicyState, from: u32, reason: Reason, sensed: &Sensed) -> Self {
        let seen = &sensed.observation;
        let cores = state.cores();
        let changes = cores != from && cores > 0;
        let said = |value: f64| (value > 0.0).then_some(value);
        Self {
            time_ms: now_ms(),
            tick: state.tick(),
            from,
            cores,
            reason: reason.name().into(),
            why: reason.sentence().into(),
            busy: seen.busy,
            busy_from: sensed.busy_from.clone(),
            pressure: seen.pressure,
            losses: sensed.losses.iter().map(ToString::to_string).collect(),
            app_busy: seen.app_busy,
            app_waiting: seen.app_waiting,
            waiting_from: sensed.waiting_from.into(),
            offered: seen.offered,
            throughput: seen.outcome.map(|outcome| outcome.throughput),
            latency_us: seen.outcome.and_then(|outcome| said(outcome.latency_us)),
            p99_us: seen.outcome.and_then(|outcome| said(outcome.p99_us)),
            feedback: Vec::new(),
            commands: changes.then(|| pool.plan(from, cores).ok()).flatten().map_or(Vec::new(), |plan| plan.commands()),
        }
    }

    /// As a JSON line.
    pub fn json(&self) -> String {
        crate::json::line(self)
    }
    /// As a line for people, with the commands below it.
    pub fn text(&self) -> String {
        let Self { tick, cores, busy, app_busy, offered, why, .. } = self;
        let waiting = 100.0 * self.app_waiting;
        let told = self.throughput.map_or_else(String::new, |throughput| format!("  {throughput:.0} requests/s"));
        let latency = self.latency_us.map_or_else(String::new, |latency| format!(" in {latency:.0} µs"));
        let mut line = format!(
            "{tick:>5} s  {}  receive {busy:.2}  programs {app_busy:.2}  waiting {waiting:.0} %  {offered:.0} packets/s{told}{latency}  {why}\n",
            counted(*cores, "CPU")
        );
        let silent = self.feedback.iter().filter_map(Said::silence);
        silent.for_each(|silence| line.push_str(&format!("         {silence}\n")));
        self.commands.iter().for_each(|command| line.push_str(&format!("         {command}\n")));
        line
    }
}

/// A text from outside, made safe for a terminal: no character moves the cursor.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The same for several lines.
pub fn plain_lines(text: &str) -> String {
    text.lines().map(|line| plain(line) + "\n").collect()
}
