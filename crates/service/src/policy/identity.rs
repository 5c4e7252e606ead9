//! The identity of a client's process, from the kernel. Nothing in it comes from the process itself.

use super::peer_process;
use crate::privileged;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;

/// One process of a client, as it was when it registered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Effective user.
    pub uid: u32,
    /// Primary and supplementary groups.
    pub groups: Vec<u32>,
    /// Path of its executable, as the service sees it. Empty if it is unknown.
    pub program: String,
    /// Its control group (`/system.slice/nginx.service`), of version 2 if there is one. Empty if it is unknown.
    pub cgroup: String,
    /// Its process.
    pub pid: i32,
}

impl Identity {
    /// The identity of the process at the other end of a socket. User, primary group and process are its `SO_PEERCRED`;
    /// the connection was `accepted` at this time ([`peer_process::ticks_now`]). A field that cannot be read stays
    /// unknown (see `ProcessFilter::matches`). The groups are known in any case: the kernel has noted them.
    pub fn of_peer(socket: BorrowedFd<'_>, uid: u32, gid: u32, pid: i32, accepted: u64) -> Self {
        let noted = peer_process::groups(socket).ok();
        let process = peer_process::process(socket, pid, accepted).ok();
        Self::of(uid, gid, pid, process, noted)
    }

    /// `noted`: the supplementary groups if the kernel has noted them, else they are read as the rest is.
    fn of(uid: u32, gid: u32, pid: i32, process: Option<OwnedFd>, noted: Option<Vec<u32>>) -> Self {
        let mut identity = Self { uid, pid, ..Self::default() };
        let read = process.and_then(|process| Self::read(uid, pid, &process).ok());
        let (program, cgroup, groups) = read.unwrap_or_default();
        (identity.program, identity.cgroup) = (program, cgroup);
        identity.groups = noted.unwrap_or(groups);
        identity.groups.insert(0, gid);
        identity
    }

    /// Its program, control group and supplementary groups.
    fn read(uid: u32, pid: i32, process: &OwnedFd) -> io::Result<(String, String, Vec<u32>)> {
        let file = |name: &str| format!("/proc/{pid}/{name}");
        let status = std::fs::read_to_string(file("status"))?;
        let program = privileged::program(pid).unwrap_or_default().to_string_lossy().into_owned();
        let cgroup = cgroup(&std::fs::read_to_string(file("cgroup")).unwrap_or_default());
        // A living process keeps its number. If it still lives, everything above was read from it.
        if !peer_process::lives(process) {
            return Err(io::ErrorKind::NotFound.into());
        }
        // It has become another user's since it connected.
        if numbers(&status, "Uid:").get(1) != Some(&uid) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok((program, cgroup, numbers(&status, "Groups:")))
    }

    /// The identity of a process of this machine, by number.
    pub fn running(pid: i32) -> Option<Self> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let effective = |title| numbers(&status, title).get(1).copied();
        let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok();
        Some(Self::of(effective("Uid:")?, effective("Gid:")?, pid, process, None))
    }

    /// The program's name: the last part of its path.
    pub fn name(&self) -> &str {
        self.program.rsplit('/').next().unwrap_or_default()
    }
}

/// The numbers of one line of `/proc/PID/status`.
fn numbers(status: &str, title: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix(title)).unwrap_or_default();
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// The control group in `/proc/PID/cgroup`: the line of version 2, or that of systemd's own hierarchy.
fn cgroup(text: &str) -> String {
    let of = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
    let named = || text.lines().find_map(|line| line.split_once(":name=systemd:").map(|(_, path)| path));
    of("0::").or_else(named).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::fd::AsFd;

    fn ours(program: bool) -> (u32, u32, i32, Option<OwnedFd>) {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let pid = rustix::process::getpid();
        (uid, gid, pid.as_raw_nonzero().get(), program.then(|| pidfd_open(pid, PidfdFlags::empty()).unwrap()))
    }

    #[test]
    fn this_process_is_known_by_its_executable_user_and_groups() {
        let (uid, gid, pid, process) = ours(true);
        let identity = Identity::of(uid, gid, pid, process, None);
        assert_eq!(identity.program, std::env::current_exe().unwrap().to_string_lossy());
        assert_eq!((identity.uid, identity.groups[0]), (uid, gid));
        assert!(identity.program.ends_with(identity.name()) && !identity.name().is_empty());
        assert_eq!(Identity::running(pid), Some(identity));
    }

    #[test]
    fn whoever_connected_is_known_from_the_socket_alone() {
        let (uid, gid, pid, _) = ours(false);
        let (kind, flags) = (rustix::net::SocketType::STREAM, rustix::net::SocketFlags::CLOEXEC);
        let (one, _other) = rustix::net::socketpair(rustix::net::AddressFamily::UNIX, kind, flags, None).unwrap();
        let identity = Identity::of_peer(one.as_fd(), uid, gid, pid, peer_process::ticks_now());
        assert_eq!(Some(identity), Identity::running(pid));
        // The kernel's word on the groups counts, and nothing that is read by a wrong number.
        let stranger = Identity::of_peer(one.as_fd(), uid, gid, i32::MAX, 0);
        assert_eq!((stranger.program.as_str(), stranger.groups.first()), ("", Some(&gid)));
    }

    #[test]
    fn a_number_that_nobody_has_is_no_process() {
        assert_eq!(Identity::running(i32::MAX), None);
    }

    #[test]
    fn numbers_stand_behind_their_title() {
        let status = "Name:\tx\nUid:\t1\t2\t3\t4\nGroups:\t5 6 \n";
        assert_eq!((numbers(status, "Uid:"), numbers(status, "Groups:")), (vec![1, 2, 3, 4], vec![5, 6]));
        assert_eq!(numbers(status, "Gid:"), Vec::<u32>::new());
    }

    #[test]
    fn another_users_process_of_the_same_number_is_not_believed() {
        let (_, _, pid, process) = ours(true);
        let identity = Identity::of(54_321, 54_322, pid, process, None);
        assert_eq!((identity.uid, identity.groups.as_slice(), identity.program.as_str()), (54_321, &[54_322][..], ""));
    }

    #[test]
    fn what_the_kernel_has_noted_is_known_of_a_process_that_has_gone() {
        let (uid, gid, pid, _) = ours(false);
        let identity = Identity::of(uid, gid, pid, None, Some(vec![7, 8]));
        assert_eq!((identity.groups, identity.program, identity.cgroup), (vec![gid, 7, 8], "".into(), "".into()));
    }

    #[test]
    fn control_groups_of_both_versions_are_read() {
        assert_eq!(cgroup("0::/system.slice/nginx.service\n"), "/system.slice/nginx.service");
        assert_eq!(cgroup("12:pids:/p\n1:name=systemd:/user.slice\n"), "/user.slice");
        assert_eq!(cgroup("1:name=systemd:/old\n0::/new\n"), "/new");
        assert_eq!(cgroup(""), "");
    }
}
