//! Feedback in logs, and the service of this machine as a source.

use crate::locate::Which;
use serde::{Deserialize, Serialize};
use towpath_feedback::{Amount, Heard, Reading, Server};
use towpath_service::api::{self, Command, Sizing};

/// Asks the service that programs of this user would find.
pub struct Service;

impl Server for Service {
    fn ask(&mut self) -> Result<Reading, String> {
        let socket = Which::default().find().map_err(|error| error.to_string())?;
        let sizing: Sizing = api::ask(&socket, Command::Cores { set: None }).map_err(|error| error.to_string())?;
        if sizing.tick == 0 {
            return Err("the service does not look at what applications achieve: its `cores` are a number".into());
        }
        // Without a throughput there is nothing to do.
        let requests = Amount::Rate(sizing.seen.throughput.unwrap_or(0.0));
        Ok(Reading { latency_us: sizing.seen.latency_us, ..Reading::new(requests) })
    }
}

/// The report of a source of feedback, for logs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Said {
    /// The source, as it was named.
    pub source: String,
    /// Requests per second. `None`: nothing was heard.
    pub throughput: Option<f64>,
    /// Average, µs.
    pub latency_us: Option<f64>,
    /// 99th percentile, µs.
    pub p99_us: Option<f64>,
    /// The problem with it, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl Said {
    /// The report of this source.
    pub fn of(heard: &Heard) -> Self {
        let time = |value: f64| (value > 0.0).then_some(value);
        Self {
            source: heard.source.clone(),
            throughput: heard.outcome.map(|outcome| outcome.throughput),
            latency_us: heard.outcome.and_then(|outcome| time(outcome.latency_us)),
            p99_us: heard.outcome.and_then(|outcome| time(outcome.p99_us)),
            problem: heard.problem.clone(),
        }
    }
    /// For people: why nothing was heard of it, if nothing was.
    pub fn silence(&self) -> Option<String> {
        let why = self.problem.as_deref().or(self.throughput.is_none().then_some("nothing heard"))?;
        Some(format!("{}: {why}", self.source))
    }
}
