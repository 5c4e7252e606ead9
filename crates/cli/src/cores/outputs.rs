//! Where decisions go: to standard output, to the file that `status` and `explain` read, to a log, to Prometheus.

use super::complaint::Complaint;
use super::explain::Explanation;
use super::exporter::{self, Exporter};
use super::feedback::Said;
use super::log::Log;
use super::metrics::Metrics;
use super::record::Recorder;
use super::show::{Entry, now_ms};
use super::standing::{Standing, is_ours, replace};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use towpath_anp::{Machine, Pool, Sensed, Tree, state_place};
use towpath_cores::{Config, Reason, State};
use towpath_feedback::Heard;

/// Where decisions are to go.
#[derive(clap::Args, Clone)]
pub struct Wanted {
    /// The file that `status` and `explain` are to read [default for enforce: beside the journal; else none]
    #[arg(long, value_name = "PATH")]
    state: Option<PathBuf>,
    /// A log to append to: a JSON line whenever something else is decided; moved to PATH.1 at 16 MiB
    #[arg(long, value_name = "PATH")]
    log: Option<PathBuf>,
    /// Log every decision
    #[arg(long, requires = "log")]
    log_every: bool,
    /// Serve metrics for Prometheus here; a port alone is one of 127.0.0.1
    #[arg(long, value_name = "[ADDR:]PORT", value_parser = exporter::address)]
    metrics: Option<SocketAddr>,
    /// Write metrics to a file every second, for node_exporter's textfile collector (NAME.prom)
    #[arg(long, value_name = "PATH")]
    metrics_file: Option<PathBuf>,
    /// Write down what is observed, for `replay`
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// JSON lines
    #[arg(long)]
    pub json: bool,
}

/// One tick.
pub struct Turn<'a> {
    /// The card and the machine.
    pub pool: &'a Pool,
    /// The policy's limits.
    pub config: &'a Config,
    /// After the decision.
    pub state: &'a State,
    /// CPUs reserved before it.
    pub from: u32,
    /// Why.
    pub reason: Reason,
    /// What was seen.
    pub sensed: &'a Sensed,
    /// What each source of feedback said.
    pub heard: &'a [Heard],
    /// Settings that somebody else has changed.
    pub drifted: Vec<String>,
}

/// All of them.
pub struct Outputs {
    json: bool,
    path: Option<PathBuf>,
    standing: Standing,
    log: Option<Log>,
    trace: Option<(PathBuf, Recorder)>,
    metrics: Metrics,
    exporter: Option<Exporter>,
    metrics_file: Option<PathBuf>,
    /// What has been said of each file.
    complaints: BTreeMap<PathBuf, Complaint>,
}

impl Outputs {
    /// Opens what is wanted.
    pub fn open(wanted: &Wanted, mode: &str, pool: &Pool, tree: &Tree, machine: &Machine) -> Result<Self, String> {
        let mut standing = Standing::begin(mode, tree, &machine.boot_id);
        standing.interface = pool.interface.name.clone();
        standing.way = pool.best(1).map_or("", |(way, _)| way.name()).into();
        standing.cgroup = pool.application.clone();
        standing.applications = machine.online().list();
        standing.taken = pool.taken.list();
        standing.time_ms = now_ms();
        standing.housekeeping = pool.housekeeping().list();
        let path = wanted.state.clone().or_else(|| (mode == "enforce").then(state_place));
        if let Some(other) = path.iter().chain(&wanted.metrics_file).find(|path| !is_ours(path)) {
            return Err(format!("{} is no regular file: it would be replaced each second", other.display()));
        }
        let mut outputs = Self {
            json: wanted.json,
            path,
            standing,
            log: wanted.log.as_ref().map(|path| Log::open(path, wanted.log_every)).transpose()?,
            trace: wanted
                .record
                .as_ref()
                .map(|path| Ok::<_, String>((path.clone(), Recorder::open(path, mode == "observe")?)))
                .transpose()?,
            metrics: Metrics::new(),
            exporter: wanted.metrics.map(Exporter::open).transpose()?.map(|(exporter, _)| exporter),
            metrics_file: wanted.metrics_file.clone(),
            complaints: BTreeMap::new(),
        };
        outputs.write();
        Ok(outputs)
    }

    /// Tells everybody.
    pub fn tell(&mut self, turn: &Turn) {
        let entry = self.record(turn);
        let line = if self.json { entry.json() } else { entry.text() };
        // A reader that has gone, or does not read (a stopped terminal, a full pipe), is no reason to leave things as they are.
        let stdout = std::io::stdout();
        let mut ready = [PollFd::new(&stdout, PollFlags::OUT)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut ready, Some(&at_once)).is_ok_and(|ready| ready > 0) {
            let _ = stdout.lock().write_all(line.as_bytes());
        }
    }

    /// Tells everybody but who reads the standard output.
    pub fn record(&mut self, turn: &Turn) -> Entry {
        let mut entry = Entry::new(turn.pool, turn.state, turn.from, turn.reason, turn.sensed);
        entry.feedback = turn.heard.iter().map(Said::of).collect();
        let (pool, standing) = (turn.pool, &mut self.standing);
        standing.cores = entry.cores;
        let plan = pool.plan(entry.cores, entry.cores).ok();
        standing.reserved = plan.as_ref().map_or_else(String::new, |plan| plan.reserved.list());
        if let Some(plan) = &plan {
            standing.way = plan.way.name().into();
        }
        standing.applications = plan.map_or(pool.machine.online(), |plan| plan.applications).list();
        standing.taken = pool.taken.list();
        standing.drifted.clone_from(&turn.drifted);
        standing.explanation = Explanation::new(&turn.state.view(turn.config), turn.config);
        if let Some(log) = &mut self.log {
            log.tell(&entry);
        }
        if let Some((path, recorder)) = &mut self.trace {
            let (path, written) = (path.clone(), recorder.tell(turn));
            self.complain(&path, written);
        }
        self.metrics.count(turn.reason, &entry);
        self.measure(&entry);
        self.standing.tell(entry.clone());
        self.write();
        entry
    }

    fn measure(&mut self, entry: &Entry) {
        if self.exporter.is_none() && self.metrics_file.is_none() {
            return;
        }
        let text = self.metrics.text(&self.standing, entry);
        if let Some(path) = self.metrics_file.clone() {
            let written = replace(&path, text.as_bytes());
            self.complain(&path, written);
        }
        if let Some(exporter) = &self.exporter {
            exporter.set(text);
        }
    }

    fn write(&mut self) {
        if let Some(path) = self.path.clone() {
            let written = self.standing.write(&path);
            self.complain(&path, written);
        }
    }

    /// Says once of each file that it cannot be written, and then that it can again: decisions do not depend on it.
    fn complain(&mut self, path: &Path, written: std::io::Result<()>) {
        let words = self.complaints.entry(path.to_owned()).or_default().after(&path.display(), written);
        if let Some(words) = words {
            crate::complain(&words);
        }
    }
}

impl Drop for Outputs {
    fn drop(&mut self) {
        // Old figures would pass for those of now.
        for path in self.path.iter().chain(&self.metrics_file).filter(|path| is_ours(path)) {
            let _ = std::fs::remove_file(path);
        }
    }
}
