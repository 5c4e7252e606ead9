//! The outputs of decisions: standard output, the status file of `status` and `explain`, a log, and Prometheus.

use super::complaint::Complaint;
use super::decider_status::{DeciderStatus, is_ours, replace};
use super::explanation::Explanation;
use super::feedback_sources::Said;
use super::log::Log;
use super::metrics::Metrics;
use super::recorder::Recorder;
use super::show::{Entry, now_ms};
use super::tick::Tick;
use crate::metrics::exporter::{Address, Exporter};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use towpath_rxcpus::{Machine, Pool, Tree, state_place};

/// The outputs that are wanted.
#[derive(clap::Args, Clone)]
pub struct Wanted {
    /// The status file for `status` and `explain` [default for enforce: beside the journal; else none]
    #[arg(long, value_name = "PATH")]
    state: Option<PathBuf>,
    /// A log to append to: a JSON line whenever the decision changes; moved to PATH.1 at 16 MiB
    #[arg(long, value_name = "PATH")]
    log: Option<PathBuf>,
    /// Log every decision
    #[arg(long, requires = "log")]
    log_every: bool,
    /// Serve metrics for Prometheus here, or at unix:PATH; a port alone is one of 127.0.0.1
    #[arg(long, value_name = "[ADDR:]PORT")]
    metrics: Option<Address>,
    /// Write metrics to a file every second, for node_exporter's textfile collector (NAME.prom)
    #[arg(long, value_name = "PATH")]
    metrics_file: Option<PathBuf>,
    /// Record the observations, for `replay`
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// JSON lines
    #[arg(long)]
    pub json: bool,
}

/// All outputs.
pub struct Outputs {
    json: bool,
    path: Option<PathBuf>,
    status: DeciderStatus,
    log: Option<Log>,
    trace: Option<(PathBuf, Recorder)>,
    metrics: Metrics,
    exporter: Option<Exporter>,
    metrics_file: Option<PathBuf>,
    /// The failed writes of each file.
    complaints: BTreeMap<PathBuf, Complaint>,
}

impl Outputs {
    /// Opens the wanted outputs.
    pub fn open(wanted: &Wanted, mode: &str, pool: &Pool, tree: &Tree, machine: &Machine) -> Result<Self, String> {
        let mut status = DeciderStatus::begin(mode, tree, &machine.boot_id);
        status.interface = pool.interface.name.clone();
        status.way = pool.best(1).map_or("", |(way, _)| way.name()).into();
        status.cgroup = pool.application.clone();
        status.applications = machine.online().list();
        status.taken = pool.taken.list();
        status.time_ms = now_ms();
        status.housekeeping = pool.housekeeping().list();
        let path = wanted.state.clone().or_else(|| (mode == "enforce").then(state_place));
        if let Some(other) = path.iter().chain(&wanted.metrics_file).find(|path| !is_ours(path)) {
            return Err(format!("{} is no regular file: it would be replaced each second", other.display()));
        }
        let mut outputs = Self {
            json: wanted.json,
            path,
            status,
            log: wanted.log.as_ref().map(|path| Log::open(path, wanted.log_every)).transpose()?,
            trace: wanted
                .record
                .as_ref()
                .map(|path| Ok::<_, String>((path.clone(), Recorder::open(path, mode == "observe")?)))
                .transpose()?,
            metrics: Metrics::new(),
            exporter: wanted.metrics.as_ref().map(Exporter::open).transpose()?,
            metrics_file: wanted.metrics_file.clone(),
            complaints: BTreeMap::new(),
        };
        outputs.write();
        Ok(outputs)
    }

    /// Writes a tick to all outputs.
    pub fn tell(&mut self, tick: &Tick) {
        let entry = self.record(tick);
        let line = if self.json { entry.json() } else { entry.text() };
        // A reader that has gone, or does not read (a stopped terminal, a full pipe), must not hold up decisions.
        let stdout = std::io::stdout();
        let mut ready = [PollFd::new(&stdout, PollFlags::OUT)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut ready, Some(&at_once)).is_ok_and(|ready| ready > 0) {
            let _ = stdout.lock().write_all(line.as_bytes());
        }
    }

    /// Writes a tick to all outputs but standard output.
    pub fn record(&mut self, tick: &Tick) -> Entry {
        let mut entry = Entry::new(tick.pool, tick.state, tick.from, tick.reason, tick.sensed);
        entry.feedback = tick.heard.iter().map(Said::of).collect();
        let (pool, status) = (tick.pool, &mut self.status);
        status.cores = entry.cores;
        let plan = pool.plan(entry.cores, entry.cores).ok();
        status.reserved = plan.as_ref().map_or_else(String::new, |plan| plan.reserved.list());
        if let Some(plan) = &plan {
            status.way = plan.way.name().into();
        }
        status.applications = plan.map_or(pool.machine.online(), |plan| plan.applications).list();
        status.taken = pool.taken.list();
        status.drifted.clone_from(&tick.drifted);
        status.explanation = Explanation::new(&tick.state.view(tick.config), tick.config);
        if let Some(log) = &mut self.log {
            log.tell(&entry);
        }
        if let Some((path, recorder)) = &mut self.trace {
            let (path, written) = (path.clone(), recorder.tell(tick));
            self.complain(&path, written);
        }
        self.metrics.count(tick.reason, &entry);
        self.measure(&entry);
        self.status.tell(entry.clone());
        self.write();
        entry
    }

    fn measure(&mut self, entry: &Entry) {
        if self.exporter.is_none() && self.metrics_file.is_none() {
            return;
        }
        let text = self.metrics.text(&self.status, entry);
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
            let written = self.status.write(&path);
            self.complain(&path, written);
        }
    }

    /// Reports a failed write once, and its end. Decisions do not depend on it.
    fn complain(&mut self, path: &Path, written: std::io::Result<()>) {
        let words = self.complaints.entry(path.to_owned()).or_default().after(&path.display(), written);
        if let Some(words) = words {
            crate::complain(&words);
        }
    }
}

impl Drop for Outputs {
    fn drop(&mut self) {
        // Old values would be taken for present ones.
        for path in self.path.iter().chain(&self.metrics_file).filter(|path| is_ours(path)) {
            let _ = std::fs::remove_file(path);
        }
    }
}
