//! `towpath cores`: CPUs of their own for the receive path of this host's kernel.

mod plan;
mod restore;
mod watch;

use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;
use towpath_anp::{FEWEST_CPUS, Machine, PlanError, Pool, Tree};

/// Reserves CPUs for the kernel's receive path, as many as pays off, and keeps applications off them.
#[derive(Args)]
#[command(after_help = "Examples:
  towpath cores plan --interface eth1 --cpus 2            what would be written, and why
  towpath cores observe --interface eth1                  decide, show each decision, change nothing
  sudo towpath cores enforce --interface eth1 --cgroup /system.slice/nginx.service
  sudo towpath cores restore                              put back what somebody who was killed has left

While it enforces, an application says how it does by lines like `thr=12000 lat_us=83 p99_us=240` to the
datagram socket of --feedback; without that only load, losses and waiting decide.")]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Show what would be written for a number of CPUs
    #[command(after_help = "Example:\n  towpath cores plan --interface eth1 --cpus 2 --json")]
    Plan(plan::Arguments),
    /// Decide every second, show each decision and the commands that it stands for, and change nothing
    #[command(after_help = "Example:\n  towpath cores observe --interface eth1")]
    Observe(watch::Arguments),
    /// Decide every second and do it; everything is put back at the end, whatever end it is
    #[command(
        after_help = "Example:\n  sudo towpath cores enforce --interface eth1 --cgroup /system.slice/nginx.service"
    )]
    Enforce(watch::Arguments),
    /// Put everything back that an `enforce` has left that could not do so itself
    #[command(after_help = "Example:\n  sudo towpath cores restore")]
    Restore(restore::Arguments),
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
    /// Also on machines with few CPUs
    #[arg(long)]
    force: bool,
}

impl Which {
    fn pool<'a>(&self, machine: &'a Machine, tree: &Tree) -> Result<Pool<'a>, String> {
        if machine.cpus.len() < FEWEST_CPUS && !self.force {
            return Err(PlanError::TooSmall(machine.cpus.len()).to_string());
        }
        let mut pool = Pool::find(machine, self.interface.as_deref()).map_err(|error| error.to_string())?;
        pool.application = self.cgroup.as_deref().map(|group| cpuset_of(group, tree)).transpose()?;
        Ok(pool)
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

/// Where the journal is.
fn journal() -> PathBuf {
    // Only root can enforce; a place of one's own is for tests.
    std::env::var_os("TOWPATH_CORES_JOURNAL").map_or_else(|| PathBuf::from("/run/towpath/cores.journal"), PathBuf::from)
}

/// Runs it.
pub fn run(arguments: &Arguments) -> ExitCode {
    let done = match &arguments.action {
        Action::Plan(plan) => plan::run(plan),
        Action::Observe(watch) => watch::observe(watch),
        Action::Enforce(watch) => watch::enforce(watch),
        Action::Restore(restore) => restore::run(restore),
    };
    match done {
        Ok(text) => crate::report(Ok(text)),
        Err(error) => {
            crate::complain(&error);
            ExitCode::FAILURE
        }
    }
}
