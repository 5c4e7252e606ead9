//! The reserved CPUs as a partition of control groups (version 2): the kernel takes them away from everybody else
//! (Documentation/admin-guide/cgroup-v2.rst, *cpuset.cpus.partition*).

use crate::cpulist::CpuSet;
use crate::knob::Knob;
use crate::plan::PlanError;
use crate::setting::Setting;
use crate::tree::Tree;
use std::collections::BTreeSet;

/// Where version 2 is mounted, alone or beside version 1.
pub(crate) const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// The control group that is made for the card's CPUs. Before Linux 6.7 only a child of the root can be a partition.
const NAME: &str = "towpath-card";
/// What a control group is that is no partition.
const MEMBER: &str = "member";

/// Since this version the kernel keeps what a thread was pinned to apart from what its group allows.
const REMEMBERS: (u32, u32) = (6, 2);

/// What the reserved CPUs are to the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionKind {
    /// A domain of their own: what runs there is balanced among them.
    Root,
    /// No domain: what runs there stays where it was put.
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
    /// Of its name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// The control group that the reserved CPUs are to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    kind: PartitionKind,
    /// The group's folder.
    folder: String,
    /// Can CPUs be named that no other group gets (`cpuset.cpus.exclusive`, Linux 6.7)?
    exclusive: bool,
}

impl Partition {
    /// On this machine, if its control groups offer it.
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
        // Only groups below the root have that file.
        let has_exclusive = |name: &String| tree.has(&format!("{mount}/{name}/cpuset.cpus.exclusive"));
        let exclusive = tree.names(mount).iter().any(has_exclusive);
        Ok(Self { kind, folder: format!("{mount}/{NAME}"), exclusive })
    }
    /// The group's folder.
    pub fn folder(&self) -> &str {
        &self.folder
    }

    /// Processes with threads that are pinned to some of their group's CPUs, where the kernel would forget that as soon as a group loses a CPU:
    /// before Linux 6.2 it keeps only what is left. None: it forgets nothing.
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
    /// Has the process a thread that may not run wherever its group may?
    fn pinned(&self, tree: &Tree, pid: u32) -> bool {
        let allowed = |group: &str| {
            let mount = self.folder.strip_suffix(NAME)?.trim_end_matches('/');
            // A group without a cpuset has its parent's.
            let groups = std::iter::successors(Some(group), |group| Some(group.rsplit_once('/')?.0));
            let mut files = groups.map(|group| format!("{mount}{}/cpuset.cpus.effective", group.trim_end_matches('/')));
            CpuSet::of_list(&files.find_map(|file| tree.text(&file))?)
        };
        let groups = tree.text(&format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let Some(all) = groups.lines().find_map(|line| allowed(line.strip_prefix("0::")?)) else { return false };
        let cpus = |tid: &String| {
            let status = tree.text(&format!("/proc/{pid}/task/{tid}/status"))?;
            // The kernel's own threads have no memory of their own, and bound ones stay bound.
            let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            field("VmSize:").and_then(|_| CpuSet::of_list(field("Cpus_allowed_list:")?))
        };
        // One that is not pinned is also allowed CPUs that are not there.
        tree.names(&format!("/proc/{pid}/task")).iter().filter_map(cpus).any(|cpus| !all.without(&cpus).is_empty())
    }

    /// The group and its CPUs.
    pub(crate) fn group(&self, reserved: &CpuSet) -> Vec<Knob> {
        let cpus = |file: &str, why: &str| Knob::new(format!("{}/{file}", self.folder), reserved.list(), why);
        let made = Setting::Group(self.folder.clone()).to_string();
        let mut knobs = vec![
            Knob::new(made, Setting::PRESENT.into(), "a control group for the card's CPUs"),
            cpus("cpuset.cpus", "its CPUs"),
        ];
        if self.exclusive {
            knobs.push(cpus("cpuset.cpus.exclusive", "no other group gets them"));
        }
        knobs
    }
    /// What makes the group a partition: everybody else leaves its CPUs.
    pub(crate) fn made(&self) -> Knob {
        let path = format!("{}/cpuset.cpus.partition", self.folder);
        Knob::new(path, self.kind.name().into(), "everybody else leaves these CPUs")
    }
}

/// Does the file say what a control group is a partition of?
pub(crate) fn is_kind(path: &str) -> bool {
    path.ends_with("/cpuset.cpus.partition")
}

/// Is this what `ours` has become without anybody's doing? A partition that cannot be one (any more) says why: `root invalid (...)`.
pub(crate) fn spoilt(path: &str, now: &str, ours: &str) -> bool {
    is_kind(path) && now.trim().strip_prefix(ours.trim()).is_some_and(|rest| rest.starts_with(" invalid"))
}

/// What can be written to have the same again.
pub(crate) fn writable(path: &str, now: String) -> String {
    if is_kind(path) && now.contains(" invalid") { MEMBER.to_owned() } else { now }
}

/// What has to be written before a value. One that is invalid is not looked at again when the same is written.
pub(crate) fn first(path: &str, now: &str, value: &str) -> Option<&'static str> {
    spoilt(path, now, value).then_some(MEMBER)
}
