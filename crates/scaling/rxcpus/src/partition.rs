//! The reserved CPUs as a partition of control groups (version 2): the kernel takes them away from all other groups
//! (Documentation/admin-guide/cgroup-v2.rst, *cpuset.cpus.partition*).

use crate::cgroup::MOUNTS;
use crate::cpulist::CpuSet;
use crate::error::PlanError;
use crate::knob::Knob;
use crate::setting::Setting;
use crate::tree::Tree;
use std::collections::BTreeSet;

/// The control group of the reserved CPUs. Before Linux 6.7 only a child of the root can be a partition.
const NAME: &str = "towpath-rxcpus";

/// Since this version the kernel remembers a thread's own affinity apart from the CPUs that its group allows.
const REMEMBERS: (u32, u32) = (6, 2);

/// How the scheduler treats the reserved CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionKind {
    /// They are a scheduling domain: threads there are balanced among them.
    Root,
    /// They are in no scheduling domain: a thread there stays where it was put.
    Isolated,
}

impl PartitionKind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Root, Self::Isolated];

    /// As the kernel writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Isolated => "isolated",
        }
    }
    /// The kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// The control group of the reserved CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    kind: PartitionKind,
    /// The group's folder.
    folder: String,
    /// True if a group can claim CPUs that no other group gets (`cpuset.cpus.exclusive`, Linux 6.7).
    exclusive: bool,
}

impl Partition {
    /// The partition of this machine, if its control groups offer one.
    pub fn find(tree: &Tree, kind: PartitionKind) -> Result<Self, PlanError> {
        let lists = |mount: &str, file: &str| {
            tree.text(&format!("{mount}/{file}"))
                .is_some_and(|text| text.split_whitespace().any(|name| name == "cpuset"))
        };
        let mount = MOUNTS.into_iter().find(|mount| lists(mount, "cgroup.controllers"));
        let mount = mount.ok_or(PlanError::NoPartition)?;
        if !lists(mount, "cgroup.subtree_control") {
            return Err(PlanError::NotDelegated(format!("{mount}/cgroup.subtree_control")));
        }
        // The root group does not have this file.
        let has_exclusive = |name: &String| tree.has(&format!("{mount}/{name}/cpuset.cpus.exclusive"));
        let exclusive = tree.names(mount).iter().any(has_exclusive);
        Ok(Self { kind, folder: format!("{mount}/{NAME}"), exclusive })
    }
    /// The group's folder.
    pub fn folder(&self) -> &str {
        &self.folder
    }

    /// Processes with threads that are pinned to some of their group's CPUs, if this kernel would forget the pinning.
    ///
    /// Before Linux 6.2, when a group loses a CPU, the kernel keeps only the CPUs that are left.
    pub fn forgets(&self, tree: &Tree) -> BTreeSet<u32> {
        let release = tree.text("/proc/sys/kernel/osrelease").unwrap_or_default();
        let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>());
        let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return BTreeSet::new() };
        if (major, minor) >= REMEMBERS {
            return BTreeSet::new();
        }
        let pids = tree.names("/proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
        pids.filter(|pid| self.pinned(tree, *pid)).collect()
    }
    /// True if a thread of the process may not run on all CPUs of its group.
    fn pinned(&self, tree: &Tree, pid: u32) -> bool {
        let allowed = |group: &str| {
            let mount = self.folder.strip_suffix(NAME)?.trim_end_matches('/');
            // A group without a cpuset uses its parent's.
            let groups = std::iter::successors(Some(group), |group| Some(group.rsplit_once('/')?.0));
            let mut files = groups.map(|group| format!("{mount}{}/cpuset.cpus.effective", group.trim_end_matches('/')));
            CpuSet::of_list(&files.find_map(|file| tree.text(&file))?)
        };
        let groups = tree.text(&format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let Some(all) = groups.lines().find_map(|line| allowed(line.strip_prefix("0::")?)) else { return false };
        let cpus = |tid: &String| {
            let status = tree.text(&format!("/proc/{pid}/task/{tid}/status"))?;
            // Kernel threads have no `VmSize`. Bound ones stay bound.
            let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            field("VmSize:").and_then(|_| CpuSet::of_list(field("Cpus_allowed_list:")?))
        };
        // A thread that is not pinned is also allowed CPUs that do not exist.
        tree.names(&format!("/proc/{pid}/task")).iter().filter_map(cpus).any(|cpus| !all.without(&cpus).is_empty())
    }

    /// Makes the group and gives it its CPUs.
    pub(crate) fn group(&self, reserved: &CpuSet) -> Vec<Knob> {
        let cpus = |file: &str, why: &str| Knob::new(format!("{}/{file}", self.folder), reserved.list(), why);
        let made = Setting::Group(self.folder.clone()).to_string();
        let mut knobs = vec![
            Knob::new(made, Setting::PRESENT.into(), "a control group for the reserved CPUs"),
            cpus("cpuset.cpus", "its CPUs"),
        ];
        if self.exclusive {
            knobs.push(cpus("cpuset.cpus.exclusive", "no other group gets them"));
        }
        knobs
    }
    /// Makes the group a partition: all other groups leave its CPUs.
    pub(crate) fn made(&self) -> Knob {
        let path = format!("{}/cpuset.cpus.partition", self.folder);
        Knob::new(path, self.kind.name().into(), "all other groups leave these CPUs")
    }
}
