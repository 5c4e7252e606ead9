//! `towpath cores observe` and `enforce`: one decision a second.

use super::{Which, journal, restore};
use clap::Args;
use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, set_parent_process_death_signal};
use serde::Serialize;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use towpath_anp::{Journal, Knob, Machine, Pool, Restored, SHORTEST, Sample, Tree, outcome_of};
use towpath_cores::{Config, Decision, Observation, Outcome, Reason, State, step};

/// Decides every second.
#[derive(Args, Clone)]
pub struct Arguments {
    #[command(flatten)]
    which: Which,
    /// Most CPUs to reserve [default: half of them]
    #[arg(long, value_name = "N")]
    most: Option<u32>,
    /// Reserve exactly so many and decide nothing
    #[arg(long, value_name = "N", conflicts_with = "most")]
    cpus: Option<u32>,
    /// A datagram socket to make, where applications say how they do
    #[arg(long, value_name = "PATH")]
    feedback: Option<PathBuf>,
    /// End after so many decisions
    #[arg(long, value_name = "N")]
    times: Option<u64>,
    /// JSON lines
    #[arg(long)]
    json: bool,
    /// Does the work; the process without it watches over this one
    #[arg(long, hide = true)]
    watched: bool,
}

/// One decision, for the log.
#[derive(Serialize)]
struct Entry<'a> {
    tick: u64,
    cores: u32,
    reason: &'a str,
    why: &'a str,
    busy: f64,
    pressure: bool,
    app_busy: f64,
    app_waiting: f64,
    offered: f64,
    throughput: Option<f64>,
    latency_us: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    commands: Vec<String>,
}

/// Where applications say how they do.
struct Feedback(Option<(UnixDatagram, PathBuf)>);

impl Feedback {
    fn open(path: Option<&Path>) -> Result<Self, String> {
        let Some(path) = path else { return Ok(Self(None)) };
        let failed = |error: std::io::Error| format!("the feedback socket {}: {error}", path.display());
        let socket = UnixDatagram::bind(path).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        Ok(Self(Some((socket, path.to_owned()))))
    }
    /// The last thing that was said since the last time.
    fn last(&self) -> Option<Outcome> {
        let (socket, _) = self.0.as_ref()?;
        let (mut line, mut last) = ([0; 512], None);
        while let Ok(len) = socket.recv(&mut line) {
            last = std::str::from_utf8(&line[..len]).ok().and_then(outcome_of).or(last);
        }
        last
    }
}

impl Drop for Feedback {
    fn drop(&mut self) {
        if let Some((_, path)) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Who does what is decided.
trait Actor {
    /// From so many reserved CPUs to so many.
    fn set(&mut self, pool: &Pool, from: u32, to: u32) -> Result<(), String>;
    /// In every tick: has somebody else changed something?
    fn look(&mut self);
}

/// Changes nothing.
struct Observer;

impl Actor for Observer {
    fn set(&mut self, _: &Pool, _: u32, _: u32) -> Result<(), String> {
        Ok(())
    }
    fn look(&mut self) {}
}

/// Changes it.
struct Enforcer {
    tree: Tree,
    boot_id: String,
    journal: Option<Journal>,
    /// What somebody else has changed: it is set again once, and then left alone.
    asserted: Vec<String>,
}

impl Enforcer {
    /// Everything is as it was before.
    fn put_back(&mut self) -> Result<Vec<Restored>, String> {
        self.journal = None;
        let restored = Journal::restore(&journal(), &self.tree, &self.boot_id).map_err(|error| error.to_string())?;
        Ok(restored.unwrap_or_default())
    }
}

impl Actor for Enforcer {
    fn set(&mut self, pool: &Pool, from: u32, to: u32) -> Result<(), String> {
        if to == 0 {
            return self.put_back().map(drop);
        }
        let plan = pool.plan(from, to).map_err(|error| error.to_string())?;
        let journal = match &mut self.journal {
            Some(journal) => journal,
            none => none.insert(Journal::create(&journal(), &self.boot_id).map_err(|error| error.to_string())?),
        };
        journal.apply(&self.tree, &plan.knobs).map_err(|error| error.to_string())
    }

    fn look(&mut self) {
        let Some(journal) = &mut self.journal else { return };
        for (path, ours, theirs) in journal.drifted(&self.tree) {
            if self.asserted.contains(&path) {
                continue;
            }
            crate::complain(&format!("{path} was {ours} and is {theirs} now: set again, once"));
            self.asserted.push(path.clone());
            if let Err(error) = journal.apply(&self.tree, &[Knob::new(path, ours, "")]) {
                crate::complain(&error.to_string());
            }
        }
    }
}

/// Decides and changes nothing.
pub fn observe(arguments: &Arguments) -> Result<String, String> {
    decide(arguments, &mut Observer).map(|()| String::new())
}

/// Decides and does it. The work is done by a child, so that there is somebody to put everything back if that is killed.
pub fn enforce(arguments: &Arguments) -> Result<String, String> {
    let tree = Tree::default();
    let machine = Machine::read(&tree);
    if arguments.watched {
        return work(arguments, Enforcer { tree, boot_id: machine.boot_id, journal: None, asserted: Vec::new() });
    }
    arguments.which.pool(&machine, &tree)?;
    if !rustix::process::geteuid().is_root() {
        return Err("this needs root: sudo towpath cores enforce ...".into());
    }
    let back = |why: &str| {
        let restored = Journal::restore(&journal(), &tree, &machine.boot_id).map_err(|error| error.to_string())?;
        if let Some(restored) = restored {
            crate::complain(&format!("{why} could not put everything back:\n{}", restore::text(&restored)));
        }
        Ok::<_, String>(())
    };
    back("an earlier one")?;
    let ended = supervise()?;
    back("the process that did the work")?;
    if ended.success() { Ok(String::new()) } else { Err(format!("the process that did the work: {ended}")) }
}

/// Starts the process that does the work, and waits for its end, which a signal hastens.
fn supervise() -> Result<ExitStatus, String> {
    let signals = towpath_service::daemon::end_signals().map_err(|error| error.to_string())?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).arg("--watched").stdin(Stdio::null());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let pid = Pid::from_child(&child);
    loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            return Ok(status);
        }
        if wait(&signals, Duration::from_millis(50)) {
            let _ = signals.read_signal();
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
    }
}

fn work(arguments: &Arguments, mut enforcer: Enforcer) -> Result<String, String> {
    // If who watches is killed, this one ends as by a signal, and puts everything back itself.
    let _ = set_parent_process_death_signal(Some(Signal::TERM));
    let decided = decide(arguments, &mut enforcer);
    let restored = enforcer.put_back()?;
    decided?;
    Ok(if arguments.json { String::new() } else { restore::text(&restored) })
}

/// Waits so long, or for a signal. True = there is one.
fn wait(signals: &SignalFd, time: Duration) -> bool {
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    let mut ready = [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
    poll(&mut ready, Some(&time)).is_ok_and(|ready| ready > 0)
}

/// One decision a second, until a signal comes or there have been as many as were asked for.
fn decide(arguments: &Arguments, actor: &mut dyn Actor) -> Result<(), String> {
    let signals = towpath_service::daemon::end_signals().map_err(|error| error.to_string())?;
    let tree = Tree::default();
    let machine = Machine::read(&tree);
    let pool = arguments.which.pool(&machine, &tree)?;
    let config = config(arguments, &machine, &pool)?;
    let feedback = Feedback::open(arguments.feedback.as_deref())?;
    let interface = &pool.interface.name;
    let nothing = || format!("{interface} cannot be watched: /proc/stat is not there");
    let mut state = State::new(0, &config);
    let (mut before, mut at) = (Sample::read(&tree, interface).ok_or_else(nothing)?, Instant::now());
    while arguments.times.is_none_or(|times| state.tick() < times) {
        if wait(&signals, SHORTEST) {
            return Ok(());
        }
        let now = Sample::read(&tree, interface).ok_or_else(nothing)?;
        let seen = now.since(&before, at.elapsed(), feedback.last());
        (before, at) = (now, Instant::now());
        let from = state.cores();
        let (after, decision, reason) = step(&config, state, &seen);
        state = after;
        if let Decision::Change { to, .. } = decision {
            actor.set(&pool, from, to)?;
        }
        show(arguments, &pool, &state, from, reason, &seen);
        actor.look();
    }
    Ok(())
}

/// The policy's limits. Its ticks are seconds here: what it waits for in tenths of seconds elsewhere would be minutes.
fn config(arguments: &Arguments, machine: &Machine, pool: &Pool) -> Result<Config, String> {
    let total = machine.cpus.len() as u32;
    let usual = Config::new(total);
    let most = arguments.cpus.or(arguments.most).unwrap_or(usual.max).min(pool.order().most());
    let config = Config {
        min: if arguments.cpus.is_some() { most } else { usual.min },
        max: most,
        app_min: total.saturating_sub(most).max(1),
        down_ticks: 10,
        settle_ticks: 2,
        trial_ticks: 5,
        explore_ticks: 20,
        ..usual
    };
    config.check().map(|()| config).map_err(|error| error.to_string())
}

fn show(arguments: &Arguments, pool: &Pool, state: &State, from: u32, reason: Reason, seen: &Observation) {
    let cores = state.cores();
    let commands =
        if cores != from && cores > 0 { pool.plan(from, cores).map(|plan| plan.commands()) } else { Ok(Vec::new()) };
    let entry = Entry {
        tick: state.tick(),
        cores,
        reason: reason.name(),
        why: reason.sentence(),
        busy: seen.busy,
        pressure: seen.pressure,
        app_busy: seen.app_busy,
        app_waiting: seen.app_waiting,
        offered: seen.offered,
        throughput: seen.outcome.map(|outcome| outcome.throughput),
        latency_us: seen.outcome.map(|outcome| outcome.latency_us),
        commands: commands.unwrap_or_default(),
    };
    let mut out = std::io::stdout().lock();
    // A reader that has gone is no reason to leave things as they are: the next signal ends it.
    let _ = if arguments.json {
        serde_json::to_string(&entry).map_or(Ok(()), |line| writeln!(out, "{line}"))
    } else {
        let Entry { tick, busy, app_busy, app_waiting, offered, why, .. } = &entry;
        let mut line = format!(
            "{tick:>5} s  {cores} CPUs  receive {busy:.2}  programs {app_busy:.2}  waiting {:.0} %  {offered:.0} packets/s  {why}",
            100.0 * app_waiting
        );
        entry.commands.iter().for_each(|command| line.push_str(&format!("\n         {command}")));
        writeln!(out, "{line}")
    };
}
