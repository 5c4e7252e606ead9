//! `towpath cores observe` and `enforce`: one decision a second.

use super::actor::{Actor, Enforcer, Observer};
use super::feedback_sources::Service;
use super::lock::{self, Lock};
use super::outputs::{Outputs, Wanted};
use super::tick::Tick;
use super::{Target, restore};
use clap::Args;
use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::process::{Pid, Signal, set_parent_process_death_signal};
use std::os::fd::AsFd;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use towpath_feedback::{Address, Feedback, Heard};
use towpath_rxcpus::{CpuSet, Journal, Machine, PlanError, Pool, SHORTEST, Sample, Sensed, Sensor, Tree};
use towpath_rxcpus::{journal_place, state_place};
use towpath_scaling::{Config, Decision, PolicyState, step};
use towpath_service::background::exit;

/// Ticks between two checks of the CPUs that services are pinned to.
const DIVIDE_TICKS: u64 = 10;
/// Ticks that services may take to follow a change. Before that, a service that keeps off reserved CPUs may look
/// pinned.
const FOLLOW_TICKS: u64 = 3;

/// Decides every second.
#[derive(Args, Clone)]
#[group(id = "deciding")]
pub struct Arguments {
    #[command(flatten)]
    which: Target,
    /// Most CPUs to reserve [default: half of them]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    most: Option<u32>,
    /// Reserve exactly this many and decide nothing
    #[arg(long, value_name = "N", conflicts_with = "most", value_parser = clap::value_parser!(u32).range(1..))]
    cpus: Option<u32>,
    /// A source of feedback from applications: unix:PATH (a datagram socket to make), redis://HOST:PORT,
    /// memcached://HOST:PORT, http://HOST:PORT/PATH#name=METRIC (Prometheus), towpath; may be repeated
    #[arg(long, value_name = "SOURCE")]
    feedback: Vec<Address>,
    /// End after this many decisions
    #[arg(long, value_name = "N")]
    pub times: Option<u64>,
    #[command(flatten)]
    pub wanted: Wanted,
    /// This process is the worker; the process of this number watches it
    #[arg(long, hide = true)]
    watched: Option<u32>,
}

/// Decides and changes nothing.
pub fn observe(arguments: &Arguments) -> Result<String, String> {
    decide(arguments, "observe", &mut Observer).map(|()| String::new())
}

/// Decides and carries it out. A child does the work. If the child is killed, this process puts everything back.
/// `None`: the child has failed, and has said why.
pub fn enforce(arguments: &Arguments) -> Result<Option<String>, String> {
    let tree = Tree::default();
    let machine = Machine::read(&tree);
    if let Some(watching) = arguments.watched {
        return work(arguments, watching, Enforcer::new(tree, machine.boot_id, journal_place())).map(Some);
    }
    let pool = arguments.which.pool(&machine, &tree)?;
    arguments.config(&machine, &pool)?;
    if !rustix::process::geteuid().is_root() {
        return Err("this needs root: sudo towpath cores enforce ...".into());
    }
    refuse_read_only(&pool)?;
    let alone = Lock::take(&lock::usual_place(), "enforce")?;
    let back = |why: &str| {
        let restored =
            Journal::restore(&journal_place(), &tree, &machine.boot_id).map_err(|error| error.to_string())?;
        // Its status file is no longer true.
        let _ = std::fs::remove_file(state_place());
        let Some(restored) = restored else { return Ok::<_, String>(()) };
        crate::complain(&format!("{why} could not put everything back:\n{}", restore::text(&restored)));
        restore::refuse_failures(&restored)
    };
    back("an earlier one")?;
    alone.share().map_err(|error| error.to_string())?;
    let ended = supervise()?;
    outcome(ended, back("the process that did the work"))
}

/// What is left to say when the child has ended and everything is put back: with `--json` a command prints one error.
fn outcome(child: ExitStatus, back: Result<(), String>) -> Result<Option<String>, String> {
    match (child.code(), back) {
        (Some(0), back) => back.map(|()| Some(String::new())),
        (Some(code), back) if code == i32::from(exit::FAILED) => {
            back.unwrap_or_else(|why| crate::complain(&why));
            Ok(None)
        }
        (_, back) => back.and(Err(format!("the process that did the work: {child}"))),
    }
}

/// In most containers `/sys` and `/proc` are read-only. This says so before the first write fails.
fn refuse_read_only(pool: &Pool) -> Result<(), String> {
    let knobs = pool.plan(0, 1).map_or(Vec::new(), |plan| plan.knobs);
    let read_only = |path: &str| statvfs(path).is_ok_and(|about| about.f_flag.contains(StatVfsMountFlags::RDONLY));
    let found = knobs.into_iter().find(|knob| knob.path.starts_with('/') && read_only(&knob.path));
    found.map_or(Ok(()), |knob| {
        Err(format!(
            "{} can only be read, as in most containers: run this where /sys and /proc can be written (mount -o remount,rw /sys)",
            knob.path
        ))
    })
}

/// Starts the worker process and waits for its end. A signal is passed on to it.
fn supervise() -> Result<ExitStatus, String> {
    let signals = towpath_service::daemon::end_signals().map_err(|error| error.to_string())?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).arg(format!("--watched={}", std::process::id())).stdin(Stdio::null());
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

fn work(arguments: &Arguments, watching: u32, mut enforcer: Enforcer) -> Result<String, String> {
    // If the watching process is killed, this one gets SIGTERM, and puts everything back itself.
    let _ = set_parent_process_death_signal(Some(Signal::TERM));
    if std::os::unix::process::parent_id() != watching {
        return Err("the process that watches has ended already".into());
    }
    let decided = decide(arguments, "enforce", &mut enforcer);
    let restored = enforcer.put_back()?;
    decided?;
    Ok(if arguments.wanted.json { String::new() } else { restore::text(&restored) })
}

/// Waits for this time, or for a signal. True: there is one.
fn wait(signals: &SignalFd, time: Duration) -> bool {
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    let mut ready = [PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
    poll(&mut ready, Some(&time)).is_ok_and(|ready| ready > 0)
}

/// The observations, second by second.
pub struct Seconds {
    signals: SignalFd,
    sensor: Sensor,
    feedback: Feedback,
    before: Sample,
    at: Instant,
}

impl Seconds {
    /// Begins to observe.
    pub fn begin(arguments: &Arguments, pool: &Pool, tree: &Tree) -> Result<Self, String> {
        let mut sensor = Sensor::new(tree, &pool.interface.name, pool.application.as_deref(), &pool.processes);
        Ok(Self {
            signals: towpath_service::daemon::end_signals().map_err(|error| error.to_string())?,
            feedback: Feedback::open(&arguments.feedback, || Box::new(Service))?,
            before: sample(&mut sensor)?,
            sensor,
            at: Instant::now(),
        })
    }
    /// The next observation, with these CPUs reserved. `None`: a signal has come.
    pub fn next(&mut self, reserved: &CpuSet) -> Result<Option<Sensed>, String> {
        if wait(&self.signals, SHORTEST) {
            return Ok(None);
        }
        let now = sample(&mut self.sensor)?;
        let seen = now.since(&self.before, self.at.elapsed(), reserved, self.feedback.now());
        (self.before, self.at) = (now, Instant::now());
        Ok(Some(seen))
    }
    /// The news of each source of feedback in the last second.
    pub fn heard(&self) -> &[Heard] {
        self.feedback.heard()
    }
}

fn sample(sensor: &mut Sensor) -> Result<Sample, String> {
    sensor.read().ok_or_else(|| "nothing can be watched: /proc/stat is not there".into())
}

/// The CPUs that are reserved for this number.
pub fn reserved(pool: &Pool, cores: u32) -> CpuSet {
    pool.plan(cores, cores).map(|plan| plan.reserved).unwrap_or_default()
}

/// Makes one decision a second, until a signal comes or the number of decisions is reached.
fn decide(arguments: &Arguments, mode: &str, actor: &mut dyn Actor) -> Result<(), String> {
    let tree = Tree::default();
    let machine = Machine::read(&tree);
    let mut pool = arguments.pool(&machine, &tree)?;
    let config = arguments.config(&machine, &pool)?;
    let mut outputs = Outputs::open(&arguments.wanted, mode, &pool, &tree, &machine)?;
    let mut seconds = Seconds::begin(arguments, &pool, &tree)?;
    let mut state = PolicyState::new(0, &config);
    // CPUs that were isolated at the start. The kernel also counts partitions that are made later.
    let isolated = super::isolated(&tree);
    let mut changed = 0;
    while arguments.times.is_none_or(|times| state.tick() < times) {
        let from = state.cores();
        // An observer has reserved none, whatever it decides.
        let there = if mode == "enforce" { reserved(&pool, from) } else { CpuSet::default() };
        let Some(sensed) = seconds.next(&there)? else { return Ok(()) };
        let (after, decision, reason) = step(&config, state, &sensed.observation);
        state = after;
        if let Decision::Change { to, .. } = decision {
            actor.set(&mut pool, from, to)?;
            changed = state.tick();
        }
        actor.look(&mut pool)?;
        if state.tick().is_multiple_of(DIVIDE_TICKS) && state.tick() >= changed + FOLLOW_TICKS {
            let taken = super::taken(&machine, &tree, isolated.clone());
            make_room(&mut pool, actor, taken, config.most(), state.cores())?;
        }
        let (drifted, pool) = (actor.drifted(), &pool);
        outputs.tell(&Tick {
            pool,
            config: &config,
            state: &state,
            from,
            reason,
            sensed: &sensed,
            heard: seconds.heard(),
            drifted,
        });
    }
    Ok(())
}

/// Moves the reserved CPUs when services that are pinned to CPUs come and go. If `most` CPUs could not be reserved any
/// more, everything stays, and `status` reports the overlap.
fn make_room(pool: &mut Pool, actor: &mut dyn Actor, taken: CpuSet, most: u32, cores: u32) -> Result<(), String> {
    if taken == pool.taken {
        return Ok(());
    }
    let before = std::mem::replace(&mut pool.taken, taken);
    if pool.order().most() < most {
        pool.taken = before;
        return Ok(());
    }
    if cores > 0 { actor.set(pool, cores, cores) } else { Ok(()) }
}

impl Arguments {
    /// The network device, and the applications that keep off its CPUs.
    pub fn pool(&self, machine: &Machine, tree: &Tree) -> Result<Pool, String> {
        self.which.pool(machine, tree)
    }
    /// The policy's limits. A tick is a second here, so the waiting times have fewer ticks than by default.
    pub fn config(&self, machine: &Machine, pool: &Pool) -> Result<Config, String> {
        let total = machine.cpus.len() as u32;
        let usual = Config::new(total);
        let can = pool.order().most();
        let wanted = self.cpus.unwrap_or(1);
        if wanted > can {
            let error = PlanError::TooMany { wanted, most: can, all: machine.cpus.len() };
            return Err(super::with_taken(&error, pool));
        }
        let most = self.cpus.or(self.most).unwrap_or(usual.max).min(can);
        let config = Config {
            min: if self.cpus.is_some() { most } else { usual.min },
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
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::receive_cpus::fake_machine::{Cpus, Fake};
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn one_of_the_two_processes_says_why_it_failed() {
        let (done, failed, panicked) = (0, 1 << 8, 101 << 8);
        let outcome = |status, back| outcome(ExitStatus::from_raw(status), back);
        let error = || Err::<(), _>("no way back".to_string());
        assert_eq!((outcome(done, Ok(())), outcome(failed, Ok(()))), (Ok(Some(String::new())), Ok(None)));
        assert_eq!((outcome(done, error()), outcome(failed, error())), (Err("no way back".into()), Ok(None)));
        // A child that was killed has said nothing.
        for status in [9, panicked] {
            assert!(outcome(status, Ok(())).unwrap_err().starts_with("the process that did the work: "), "{status}");
        }
    }

    #[test]
    fn what_services_are_pinned_to_is_given_to_them_and_the_device_gets_others_if_there_are_any() {
        let fake = Fake::new("room", &Cpus::default());
        let tree = fake.tree();
        let mut pool = Pool::find(&Machine::read(&tree), Some("eth1")).unwrap();
        let mut enforcer = Enforcer::new(tree.clone(), "boot".into(), fake.place("journal"));
        enforcer.set(&mut pool, 0, 2).unwrap();
        let steered = || CpuSet::of_mask(&tree.text("/sys/class/net/eth1/queues/rx-0/rps_cpus").unwrap()).unwrap();
        assert_eq!(steered().list(), "1-2");
        let mut look = |taken: &str| {
            make_room(&mut pool, &mut enforcer, CpuSet::of_list(taken).unwrap(), 2, 2).unwrap();
            (steered().list(), pool.taken.list())
        };
        assert_eq!(look("2"), ("1,3".into(), "2".into()), "a service has come");
        assert_eq!(look("1-2"), ("1,3".into(), "2".into()), "for two of them there is no room: everything stays");
        assert_eq!(look(""), ("1-2".into(), String::new()), "they have gone");
        enforcer.put_back().unwrap();
        assert_eq!(steered().list(), "");
    }
}
