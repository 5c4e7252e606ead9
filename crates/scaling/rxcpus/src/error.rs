//! Why no plan can be made.

use towpath_scaling::counted;

/// On a machine with fewer CPUs, applications need a CPU more than the receive path does.
pub const FEWEST_CPUS: usize = 4;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No network device has that name.
    #[error("there is no network interface {0}; `ip link` lists them")]
    NoInterface(String),
    /// It carries the machine's own traffic, and was not named.
    #[error("{0} has the default route: name it with --interface if it is meant")]
    DefaultRoute(String),
    /// Nothing can be moved.
    #[error("{0} has neither interrupts that can be moved nor queues that software can steer: nothing can be set")]
    NothingToSet(String),
    /// The device does not offer the way that was asked for.
    #[error("{interface} cannot be set in the way {way}: {why}")]
    NotThisWay {
        /// The network device.
        interface: String,
        /// The way.
        way: &'static str,
        /// Why not.
        why: &'static str,
    },
    /// That number cannot be reserved.
    #[error(
        "{} cannot be reserved: {most} of this machine's {all} can, and at least one stays for applications",
        counted(*wanted, "CPU")
    )]
    TooMany {
        /// The number that was wanted.
        wanted: u32,
        /// The largest number that can be.
        most: u32,
        /// The CPUs of the machine.
        all: usize,
    },
    /// The machine has no control groups that can be partitioned.
    #[error(
        "the control groups of version 2 have no cpusets here (version 1 may have them), so nothing can be a partition: --cgroup and --pid work all the same"
    )]
    NoPartition,
    /// No group below the root may have a cpuset.
    #[error("groups have no cpusets yet, so none can be a partition: echo +cpuset > {0}")]
    NotDelegated(String),
    /// The machine has too few CPUs for this to pay.
    #[error(
        "this machine has {}, and reserving one of fewer than {FEWEST_CPUS} costs applications more than it gives; --force plans it all the same",
        counted(*.0, "CPU")
    )]
    TooSmall(usize),
}
