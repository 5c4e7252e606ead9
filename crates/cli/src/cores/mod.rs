//! `towpath cores`: CPUs of their own for the receive path of this host's kernel.

mod actor;
mod advise;
mod complaint;
mod explain;
mod exporter;
#[cfg(test)]
mod fake;
mod feedback;
#[cfg(test)]
mod fuzz_tests;
mod lock;
mod log;
mod metrics;
mod outputs;
mod owners;
mod plan;
mod record;
mod replay;
mod restore;
mod screen;
mod set;
mod show;
mod standing;
mod status;
mod watch;

pub use owners::overlaps;

use clap::Args;
use clap::builder::PossibleValuesParser;
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;
use towpath_anp::{CpuSet, FEWEST_CPUS, Machine, Partition, PartitionKind, PlanError, Pool, StackThread, Tree, Way};
use towpath_anp::{reserved, state_place};

/// Whose the CPUs are that are never reserved.
const TAKEN: &str = "threads of a service are pinned to them, or the kernel isolates them (isolcpus)";
/// Where the machine's service has its socket.
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
    observe: watch::Arguments,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Show what would be written for a number of CPUs
    #[command(after_help = "Example:\n  towpath cores plan --interface eth1 --cpus 2 --json")]
    Plan(plan::Arguments),
    /// Decide every second, show each decision and the commands that it stands for, and change nothing
    #[command(after_help = "Example:\n  towpath cores observe --interface eth1")]
    Observe(watch::Arguments),
    /// Decide every second, and print what to type whenever another number of CPUs would be better
    #[command(after_help = advise::HELP)]
    Advise(advise::Arguments),
    /// Decide every second and do it; everything is put back at the end, whatever end it is
    #[command(
        after_help = "Example:\n  sudo towpath cores enforce --interface eth1 --cgroup /system.slice/nginx.service"
    )]
    Enforce(watch::Arguments),
    /// Show who has which CPU and why, and how a running `enforce` stands
    #[command(after_help = status::HELP)]
    Status(status::Arguments),
    /// Show the last decisions, what they were made of, and what the next one waits for
    #[command(after_help = "Example:\n  towpath cores explain")]
    Explain(explain::Arguments),
    /// Ask the policy again about what `--record` has written down
    #[command(after_help = replay::HELP)]
    Replay(replay::Arguments),
    /// Put everything back that an `enforce` has left that could not do so itself
    #[command(after_help = "Example:\n  sudo towpath cores restore")]
    Restore(restore::Arguments),
    /// Say how many threads the stack of a service has
    #[command(after_help = "Examples:
  towpath cores set 2                    whatever happens, until the service ends
  towpath cores set --stack kernel auto  as its configuration says (`cores = \"1-4\"`)")]
    Set(set::Arguments),
}

/// What is to be set, and where.
#[derive(Args, Clone)]
struct Which {
    /// The network interface; needed for the one with the default route
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// The control group of the application, which is kept off the reserved CPUs
    #[arg(long, value_name = "PATH")]
    cgroup: Option<String>,
    /// A process without a control group of its own, whose threads are kept off the reserved CPUs one by one
    #[arg(long = "pid", value_name = "PID")]
    pids: Vec<u32>,
    /// How packets are brought to the reserved CPUs [default: the first that the card offers]
    #[arg(long, value_name = "WAY", value_parser = PossibleValuesParser::new(Way::ALL.map(Way::name)))]
    way: Option<String>,
    /// Deal out the card's send queues to the CPUs (XPS) as well
    #[arg(long)]
    xps: bool,
    /// Make the reserved CPUs a partition of control groups (version 2): nobody else runs there. root: what does is balanced among them;
    /// isolated: it stays where it was put
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(PartitionKind::ALL.map(PartitionKind::name)))]
    partition: Option<String>,
    /// Also on machines with few CPUs; also a partition for which the kernel forgets what threads are pinned to
    #[arg(long)]
    force: bool,
}

impl Which {
    /// What there is in place of a card that is not.
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
        pool.way = self.way.as_deref().and_then(Way::named);
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

/// The CPUs that threads of services are pinned to, and these isolated ones. Anybody can give a thread any name: only root's, one's own and those of the user whose
/// the place of the machine's service is count.
fn taken(machine: &Machine, tree: &Tree, isolated: CpuSet) -> CpuSet {
    let service = std::fs::metadata(SERVICE_FOLDER).map(|about| about.uid());
    let whose = [Some(0), Some(rustix::process::geteuid().as_raw()), service.ok()];
    let threads = StackThread::find(tree, &machine.online(), &reserved(&state_place(), tree));
    let pinned = threads.into_iter().filter(|thread| thread.pinned && whose.contains(&Some(thread.uid)));
    CpuSet(pinned.flat_map(|thread| thread.cpus.0).chain(isolated.0).collect())
}

/// Without `/sys` nothing is known.
fn refuse_unknown(machine: &Machine) -> Result<(), String> {
    let known = !machine.cpus.is_empty();
    known.then_some(()).ok_or_else(|| "/sys/devices/system/cpu/online names no CPUs: is /sys mounted?".into())
}

/// CPUs that whoever started the kernel keeps for something else (`isolcpus=`).
fn isolated(tree: &Tree) -> CpuSet {
    tree.text("/sys/devices/system/cpu/isolated").and_then(|text| CpuSet::of_list(&text)).unwrap_or_default()
}

/// Why there is no plan, and which CPUs were not there to choose from.
fn with_taken(error: &PlanError, pool: &Pool) -> String {
    match error {
        PlanError::TooMany { .. } if !pool.taken.is_empty() => {
            format!("{error}; not to be had: {}: {TAKEN}", pool.taken.named())
        }
        _ => error.to_string(),
    }
}

/// The file that says on which CPUs a control group may run, of version 2 or 1.
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
        Action::Observe(watch) => watch::observe(watch),
        Action::Advise(advise) => match advise::run(advise) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Action::Enforce(watch) => watch::enforce(watch),
        Action::Status(status) => return status::run(status),
        Action::Explain(explain) => explain::run(explain),
        Action::Restore(restore) => restore::run(restore),
        Action::Replay(replay) => replay::run(replay),
        Action::Set(set) => set::run(set),
    };
    match done {
        Ok(text) => crate::report(Ok(text)),
        Err(error) => {
            crate::complain(&error);
            ExitCode::FAILURE
        }
    }
}
