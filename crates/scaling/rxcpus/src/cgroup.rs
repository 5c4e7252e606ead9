//! Control groups: where they can be, and the meaning of `cpuset.cpus.partition`.

/// Where version 2 is mounted, alone or beside version 1.
pub(crate) const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// The folder that all control groups are in.
pub(crate) const ROOT: &str = "/sys/fs/cgroup";
/// The partition file of a control group that is no partition.
const MEMBER: &str = "member";

/// The folder, if a control group can be there.
pub(crate) fn folder(folder: &str) -> Option<String> {
    let below = folder.strip_prefix(ROOT).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    (below && !folder.split('/').any(|part| part == "..")).then(|| folder.to_owned())
}

/// True if the file says whether a control group is a partition, and of which kind.
pub(crate) fn is_partition_file(path: &str) -> bool {
    path.ends_with("/cpuset.cpus.partition")
}

/// True if the kernel has made `now` out of our value by itself. A partition that cannot be one any more says why:
/// `root invalid (...)`.
pub(crate) fn invalidated(path: &str, now: &str, ours: &str) -> bool {
    is_partition_file(path) && now.trim().strip_prefix(ours.trim()).is_some_and(|rest| rest.starts_with(" invalid"))
}

/// The value to write to get `now` again.
pub(crate) fn writable(path: &str, now: String) -> String {
    if is_partition_file(path) && now.contains(" invalid") { MEMBER.to_owned() } else { now }
}

/// The value to write before `value`, if one is needed. The kernel ignores a value that an invalid partition already
/// has.
pub(crate) fn write_first(path: &str, now: &str, value: &str) -> Option<&'static str> {
    invalidated(path, now, value).then_some(MEMBER)
}
