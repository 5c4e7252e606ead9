//! Recorded observations: lines of JSON. The first has the machine and the limits.

use crate::config::{Config, ConfigError};
use crate::decision::{Decision, Reason};
use crate::observation::Observation;
use crate::policy::{PolicyState, step};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Version of the format.
const VERSION: u64 = 1;
/// Most ticks that are read: a month of seconds.
const MOST: usize = 31 * 86_400;

/// Why a text is not a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The first line is not that of a trace.
    #[error("the first line is no header of a trace: {0}")]
    Header(String),
    /// It was written by a later version.
    #[error("it is of version {0}, and this reads version {VERSION}")]
    Version(u64),
    /// Its limits are impossible.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A line is no observation.
    #[error("line {0}: {1}")]
    Line(usize, String),
    /// There are too many.
    #[error("more than {MOST} lines")]
    TooLong,
}

/// The first line.
#[derive(Serialize, Deserialize)]
struct Header {
    towpath_cores_trace: u64,
    /// Length of a tick, ms.
    tick_ms: u64,
    /// A description of the machine, for people.
    #[serde(default)]
    machine: String,
    /// The number of cores at the beginning.
    #[serde(default)]
    cores: u32,
    config: Value,
}

/// Every other line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct TickLine {
    /// The number of cores in this tick.
    cores: u32,
    #[serde(flatten)]
    seen: Observation,
}

/// Observations, tick by tick.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// Length of a tick, ms.
    pub tick_ms: u64,
    /// A description of the machine, for people.
    pub machine: String,
    /// The policy's limits.
    pub config: Config,
    /// The number of cores at the beginning.
    pub cores: u32,
    /// The number of cores, and the observation.
    pub ticks: Vec<(u32, Observation)>,
}

/// The policy's answer to one tick of a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Replayed {
    /// The tick, from 1 on.
    pub tick: u64,
    /// Cores before.
    pub from: u32,
    /// Cores from then on.
    pub cores: u32,
    /// Why.
    pub reason: Reason,
    /// The observation.
    pub seen: Observation,
}

impl Trace {
    /// The first line of a trace, with its newline.
    pub fn header(config: &Config, tick_ms: u64, cores: u32, machine: &str) -> String {
        let config = serde_json::to_value(config).unwrap_or_default();
        let header = Header { towpath_cores_trace: VERSION, tick_ms, machine: machine.into(), cores, config };
        serde_json::to_string(&header).unwrap_or_default() + "\n"
    }
    /// A tick's line, with its newline. Empty for an impossible observation.
    pub fn line(cores: u32, seen: &Observation) -> String {
        if !seen.is_sound() {
            return String::new();
        }
        serde_json::to_string(&TickLine { cores, seen: *seen }).map_or(String::new(), |line| line + "\n")
    }

    /// Reads a trace. Limits that it does not name have their defaults.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let first = lines.next().map_or("", |(_, line)| line);
        let wrong = |error: serde_json::Error| TraceError::Header(error.to_string());
        let version = serde_json::from_str::<Value>(first).map_err(wrong)?;
        match version.get("towpath_cores_trace").and_then(Value::as_u64) {
            Some(VERSION) => {}
            Some(later) => return Err(TraceError::Version(later)),
            None => return Err(TraceError::Header("it does not say towpath_cores_trace".into())),
        }
        let header: Header = serde_json::from_str(first).map_err(wrong)?;
        let config = config_of(&header.config).map_err(wrong)?;
        config.check()?;
        let mut ticks = Vec::new();
        for (number, line) in lines {
            if ticks.len() == MOST {
                return Err(TraceError::TooLong);
            }
            let line: TickLine =
                serde_json::from_str(line).map_err(|error| TraceError::Line(number + 1, error.to_string()))?;
            ticks.push((line.cores, line.seen));
        }
        Ok(Self { tick_ms: header.tick_ms, machine: header.machine, config, cores: header.cores, ticks })
    }

    /// Asks the policy about each tick. The observations stay as recorded, whatever it decides.
    pub fn replay(&self) -> impl Iterator<Item = Replayed> {
        let mut state = PolicyState::new(self.cores, &self.config);
        self.ticks.iter().map(move |(_, seen)| {
            let from = state.cores();
            let (after, _, reason) = step(&self.config, state.clone(), seen);
            state = after;
            Replayed { tick: state.tick(), from, cores: state.cores(), reason, seen: *seen }
        })
    }
}

impl Replayed {
    /// The decision.
    pub fn decision(&self) -> Decision {
        if self.from == self.cores { Decision::Hold } else { Decision::Change { from: self.from, to: self.cores } }
    }
}

/// The default limits, overridden by those that are named.
fn config_of(named: &Value) -> serde_json::Result<Config> {
    let total = named.get("total").and_then(Value::as_u64).and_then(|total| u32::try_from(total).ok());
    let mut config = serde_json::to_value(Config::new(total.unwrap_or(0)))?;
    if let (Some(config), Some(named)) = (config.as_object_mut(), named.as_object()) {
        config.extend(named.clone());
    }
    serde_json::from_value(config)
}
