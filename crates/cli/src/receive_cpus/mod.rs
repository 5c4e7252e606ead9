//! `towpath cores`: receive CPUs, reserved for the receive path of this host's kernel.

mod actor;
mod advise;
mod complaint;
mod cpu_owners;
mod decide;
mod decider_status;
mod explain;
mod explanation;
#[cfg(test)]
mod fake_machine;
mod feedback_sources;
#[cfg(test)]
mod fuzz_tests;
mod lock;
mod log;
mod metrics;
mod outputs;
mod plan;
mod recorder;
mod replay;
mod restore;
pub mod screen;
mod set;
mod show;
mod status;
mod tick;

pub use cpu_owners::overlaps;

use clap::Args;
use clap::builder::PossibleValuesParser;
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;
use towpath_rxcpus::{
    CpuSet, FEWEST_CPUS, Machine, Partition, PartitionKind, PlanError, Pool, StackThread, SteeringWay, Tree,
};
use towpath_rxcpus::{reserved, state_place};
use towpath_service::background::exit;

/// Why the taken CPUs are never reserved.
const TAKEN: &str = "threads of a service are pinned to them, or the kernel isolates them (isolcpus)";
/// The folder of the machine's service. Its owner may name stack threads.
const SERVICE_FOLDER: &str = "/run/towpath";

/// Reserves CPUs for the kernel's receive path, as many as pays off, and keeps applications off them.
#[derive(Args)]
#[command(after_help = "Examples:
  towpath cores plan --interface eth1 --cpus 2            what would be written, and why
  towpath cores --interface eth1                          decide, show each decision, change nothing (observe)
  towpath cores advise --interface eth1 --once            what to type to do better, if anything; exit code 2 if so
  sudo towpath cores enforce --interface eth1 --cgroup /system.slice/nginx.service
  towpath cores status --watch                            who has which CPU and why, and whether all is well
  towpath cores explain                                   what the last decisions were made of
  sudo towpath cores restore                              put back what somebody who was killed has left

How applications do is said by the sources of --feedback: servers that are asked (redis://127.0.0.1:6379), or lines like
`thr=12000 lat_us=83 p99_us=240` to a datagram socket; without any only load, losses and waiting decide.")]
#[command(args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    observe: decide::Arguments,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Show what would be written for a number of CPUs
    #[command(after_help = "Example:\n  towpath cores plan --interface eth1 --cpus 2 --json")]
    Plan(plan::Arguments),
    /// Decide every second, show each decision and the commands that it stands for, and change nothing
    #[command(after_help = "Example:\n  towpath cores observe --interface eth1")]
    Observe(decide::Arguments),
    /// Decide every second, and print what to type whenever another number of CPUs would be better
    #[command(after_help = advise::HELP)]
    Advise(advise::Arguments),
    /// Decide every second and carry it out; everything is put back at the end, even after a kill
    #[command(
        after_help = "Example:\n  sudo towpath cores enforce --interface eth1 --cgroup /system.slice/nginx.service"
    )]
    Enforce(decide::Arguments),
    /// Show who has which CPU and why, and how a running `enforce` stands
    #[command(after_help = status::HELP)]
    Status(status::Arguments),
    /// Show the last decisions with their observations, and what the next one waits for
    #[command(after_help = "Example:\n  towpath cores explain")]
    Explain(explain::Arguments),
    /// Ask the policy again about the observations of `--record`
    #[command(after_help = replay::HELP)]
    Replay(replay::Arguments),
    /// Put everything back that a killed `enforce` has left
    #[command(after_help = "Example:\n  sudo towpath cores restore")]
    Restore(restore::Arguments),
    /// Set how many threads the stack of a service has
    #[command(after_help = "Examples:
  towpath cores set 2                    whatever happens, until the service ends
  towpath cores set --stack kernel auto  as its configuration says (`cores = \"1-4\"`)")]
    Set(set::Arguments),
}

impl Arguments {
    /// Is the output to be JSON?
    fn json(&self) -> bool {
        match &self.action {
            None => self.observe.wanted.json,
            // It has a reason in its own object.
            Some(Action::Plan(_)) => false,
            Some(Action::Observe(watch) | Action::Enforce(watch)) => watch.wanted.json,
            Some(Action::Advise(advise)) => advise.watch.wanted.json,
            Some(Action::Status(status)) => status.json,
            Some(Action::Explain(explain)) => explain.json,
            Some(Action::Replay(replay)) => replay.json,
            Some(Action::Restore(restore)) => restore.json,
            Some(Action::Set(set)) => set.json,
        }
    }
}

/// The network device, the applications, and the way of steering.
#[derive(Args, Clone)]
struct Target {
    /// The network interface; needed for the one with the default route
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// The control group of the application, which is kept off the reserved CPUs
    #[arg(long, value_name = "PATH")]
    cgroup: Option<String>,
    /// A process without a control group of its own, whose threads are kept off the reserved CPUs one by one
    #[arg(long = "pid", value_name = "PID")]
    pids: Vec<u32>,
    /// How packets are brought to the reserved CPUs [default: the first that the network device offers]
    #[arg(long, value_name = "WAY", value_parser = PossibleValuesParser::new(SteeringWay::ALL.map(SteeringWay::name)))]
    way: Option<String>,
    /// Deal out the device's send queues to the CPUs (XPS) as well
    #[arg(long)]
    xps: bool,
    /// Make the reserved CPUs a partition of control groups (version 2): all other groups leave them. root: threads
    /// there are balanced among them; isolated: threads stay where they were put
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(PartitionKind::ALL.map(PartitionKind::name)))]
    partition: Option<String>,
    /// Also on machines with few CPUs; also a partition for which the kernel forgets the affinity of threads
    #[arg(long)]
    force: bool,
}

impl Target {
    /// The error for a missing network device. It names those that exist.
    fn no_interface(&self, machine: &Machine, tree: &Tree) -> String {
        let names: Vec<&str> = machine.interfaces.iter().map(|interface| interface.name.as_str()).collect();
        let there = if names.is_empty() { "there is none".into() } else { format!("there are {}", names.join(", ")) };
        match &self.interface {
            Some(name) if tree.has(&format!("/sys/class/net/{name}")) => {
                format!("{name} is no network card: nothing can be set for it; {there}")
            }
            Some(name) => format!("there is no network interface {name}; {there}"),
            None => {
                format!("no network interface has interrupts that can be moved: name one with --interface; {there}")
            }
        }
    }
    fn pool(&self, machine: &Machine, tree: &Tree) -> Result<Pool, String> {
        refuse_unknown(machine)?;
        if machine.cpus.len() < FEWEST_CPUS && !self.force {
            return Err(PlanError::TooSmall(machine.cpus.len()).to_string());
        }
        let mut pool = Pool::find(machine, self.interface.as_deref()).map_err(|error| match error {
            PlanError::NoInterface(_) => self.no_interface(machine, tree),
            error => error.to_string(),
        })?;
        pool.taken = taken(machine, tree, isolated(tree));
        pool.way = self.way.as_deref().and_then(SteeringWay::named);
        pool.xps = self.xps;
        pool.processes.clone_from(&self.pids);
        pool.refresh(tree);
        if let Some(pid) = self.pids.iter().find(|pid| !pool.threads.iter().any(|task| task.process == **pid)) {
            return Err(format!("there is no process {pid}"));
        }
        let partition = self.partition.as_deref().and_then(PartitionKind::named);
        let partition = partition.map(|kind| Partition::find(tree, kind)).transpose();
        pool.partition = partition.map_err(|error| error.to_string())?;
        let forgotten =
            pool.partition.as_ref().filter(|_| !self.force).map(|group| group.forgets(tree)).unwrap_or_default();
        if !forgotten.is_empty() {
            return Err(format!(
                "this kernel (before Linux 6.2) would forget to which CPUs threads of the processes {forgotten:?} are pinned; --force makes a partition all the same"
            ));
        }
        pool.application = self.cgroup.as_deref().map(|group| cpuset_of(group, tree)).transpose()?;
        Ok(pool)
    }
}

/// The CPUs that threads of services are pinned to, and the isolated ones.
///
/// Any user can give a thread any name. So only threads of root, of this user and of the owner of the service's folder
/// count.
fn taken(machine: &Machine, tree: &Tree, isolated: CpuSet) -> CpuSet {
    let service = std::fs::metadata(SERVICE_FOLDER).map(|about| about.uid());
    let whose = [Some(0), Some(rustix::process::geteuid().as_raw()), service.ok()];
    let threads = StackThread::find(tree, &machine.online(), &reserved(&state_place(), tree));
    let pinned = threads.into_iter().filter(|thread| thread.pinned && whose.contains(&Some(thread.uid)));
    CpuSet(pinned.flat_map(|thread| thread.cpus.0).chain(isolated.0).collect())
}

/// Refuses a machine without `/sys`: nothing is known of it.
fn refuse_unknown(machine: &Machine) -> Result<(), String> {
    let known = !machine.cpus.is_empty();
    known.then_some(()).ok_or_else(|| "/sys/devices/system/cpu/online names no CPUs: is /sys mounted?".into())
}

/// CPUs that the kernel's command line isolates (`isolcpus=`).
fn isolated(tree: &Tree) -> CpuSet {
    tree.text("/sys/devices/system/cpu/isolated").and_then(|text| CpuSet::of_list(&text)).unwrap_or_default()
}

/// The error, with the CPUs that were not available.
fn with_taken(error: &PlanError, pool: &Pool) -> String {
    match error {
        PlanError::TooMany { .. } if !pool.taken.is_empty() => {
            format!("{error}; not to be had: {}: {TAKEN}", pool.taken.named())
        }
        _ => error.to_string(),
    }
}

/// The cpuset file of a control group, of version 2 or 1.
fn cpuset_of(group: &str, tree: &Tree) -> Result<String, String> {
    let group = group.trim_matches('/');
    if group.is_empty() || group.split('/').any(|part| part == "..") {
        return Err("the root control group cannot be confined: name one below it".into());
    }
    let places = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/cpuset"];
    let files = places.iter().map(|place| format!("{place}/{group}/cpuset.cpus"));
    files.into_iter().find(|file| tree.has(file)).ok_or_else(|| {
        format!("there is no control group /{group} with a cpuset; for version 2: echo +cpuset > /sys/fs/cgroup/cgroup.subtree_control")
    })
}

/// Runs it.
pub fn run(arguments: &Arguments) -> ExitCode {
    let done = match arguments.action.as_ref().unwrap_or(&Action::Observe(arguments.observe.clone())) {
        Action::Plan(plan) => plan::run(plan),
        Action::Observe(watch) => decide::observe(watch),
        Action::Advise(advise) => match advise::run(advise) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Action::Enforce(watch) => match decide::enforce(watch).transpose() {
            Some(done) => done,
            None => return ExitCode::from(exit::FAILED),
        },
        Action::Status(status) => return status::run(status),
        Action::Explain(explain) => explain::run(explain),
        Action::Restore(restore) => restore::run(restore),
        Action::Replay(replay) => replay::run(replay),
        Action::Set(set) => set::run(set),
    };
    match done {
        Ok(text) => crate::print(&text),
        Err(error) => crate::fail(&error, arguments.json(), exit::FAILED),
    }
}
