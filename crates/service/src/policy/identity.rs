//! The identity of a client's process, from the kernel. Nothing in it comes from the process itself.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The program that loads others (`towpath run --hook inject`).
const LOADER: &str = "towpath-loader";

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
    /// The identity of the process at the other end of a socket. User, primary group and process are its `SO_PEERCRED`.
    /// A field that cannot be read stays unknown (see `ProcessFilter::matches`).
    pub fn of(uid: u32, gid: u32, pid: i32) -> Self {
        let known = Self { uid, groups: vec![gid], pid, ..Self::default() };
        Self::read(uid, gid, pid).unwrap_or(known)
    }

    fn read(uid: u32, gid: u32, pid: i32) -> io::Result<Self> {
        let process = pidfd_open(Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?, PidfdFlags::empty())?;
        let file = |name: &str| format!("/proc/{pid}/{name}");
        let status = std::fs::read_to_string(file("status"))?;
        let program = std::fs::read_link(file("exe")).unwrap_or_default();
        let program = if program.ends_with(LOADER) { loaded(&file("cmdline")).unwrap_or(program) } else { program };
        let program = program.to_string_lossy().into_owned();
        let cgroup = cgroup(&std::fs::read_to_string(file("cgroup")).unwrap_or_default());
        // A living process keeps its number. If it still lives, everything above was read from it.
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        if poll(&mut ended, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? != 0 {
            return Err(io::ErrorKind::NotFound.into());
        }
        // The number has passed to another process before the pidfd was opened.
        if numbers(&status, "Uid:").get(1) != Some(&uid) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut groups = numbers(&status, "Groups:");
        groups.insert(0, gid);
        Ok(Self { uid, groups, program, cgroup, pid })
    }

    /// The identity of a process of this machine, by number.
    pub fn running(pid: i32) -> Option<Self> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let effective = |title| numbers(&status, title).get(1).copied();
        Some(Self::of(effective("Uid:")?, effective("Gid:")?, pid))
    }

    /// The program's name: the last part of its path.
    pub fn name(&self) -> &str {
        self.program.rsplit('/').next().unwrap_or_default()
    }
}

/// The program that the loader has become: its first argument. The kernel knows no more. That is enough, because
/// anybody can give a program any name.
fn loaded(command_line: &str) -> Option<PathBuf> {
    let words = std::fs::read(command_line).ok()?;
    let path = words.split(|byte| *byte == 0).nth(1).filter(|path| path.starts_with(b"/"))?;
    std::fs::canonicalize(OsStr::from_bytes(path)).ok()
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

    #[test]
    fn this_process_is_known_by_its_executable_user_and_groups() {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let identity = Identity::of(uid, gid, std::process::id() as i32);
        assert_eq!(identity.program, std::env::current_exe().unwrap().to_string_lossy());
        assert_eq!((identity.uid, identity.groups[0]), (uid, gid));
        assert!(identity.program.ends_with(identity.name()) && !identity.name().is_empty());
    }

    #[test]
    fn another_users_process_of_the_same_number_is_not_believed() {
        let identity = Identity::of(54_321, 54_322, std::process::id() as i32);
        assert_eq!((identity.uid, identity.groups.as_slice(), identity.program.as_str()), (54_321, &[54_322][..], ""));
    }

    #[test]
    fn control_groups_of_both_versions_are_read() {
        assert_eq!(cgroup("0::/system.slice/nginx.service\n"), "/system.slice/nginx.service");
        assert_eq!(cgroup("12:pids:/p\n1:name=systemd:/user.slice\n"), "/user.slice");
        assert_eq!(cgroup("1:name=systemd:/old\n0::/new\n"), "/new");
        assert_eq!(cgroup(""), "");
    }
}
