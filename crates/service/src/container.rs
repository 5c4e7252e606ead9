//! Whether a process stands in a container, by what the kernel says of it.
//!
//! Root of a container has the machine's user number 0, or a user's own, and may have the service's socket. It gives that
//! service no orders.

use crate::policy::peer_process;
use crate::privileged;
use rustix::fd::BorrowedFd;
use std::io;

/// What differs in a container: how many process namespaces deep it is, and which users it has.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    depth: usize,
    users: String,
}

/// Does the process at the other end of a socket stand elsewhere than the service? `None`: it has ended, or cannot be seen. `pid`
/// is that of `SO_PEERCRED`; the connection was `accepted` at this time ([`peer_process::ticks_now`]).
pub fn stands_apart(socket: BorrowedFd<'_>, pid: i32, accepted: u64) -> Option<bool> {
    let process = peer_process::process(socket, pid, accepted).ok()?;
    let theirs = place(&pid.to_string()).ok()?;
    let ours = place(&privileged::service_process().to_string()).ok()?;
    // A living process keeps its number, so the place is its own.
    peer_process::lives(&process).then(|| theirs != ours)
}

fn place(process: &str) -> io::Result<Place> {
    let read = |name| std::fs::read_to_string(format!("/proc/{process}/{name}"));
    Ok(Place { depth: depth(&read("status")?), users: read("uid_map")? })
}

/// The process namespaces that a process is in, of those that this one sees: it has a number in each.
fn depth(status: &str) -> usize {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.map_or(1, |numbers| numbers.split_whitespace().count())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn this_process_stands_where_its_service_does() {
        let (one, _other) = UnixStream::pair().unwrap();
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        assert_eq!(stands_apart(one.as_fd(), pid, peer_process::ticks_now()), Some(false));
    }

    #[test]
    fn a_process_has_a_number_in_each_namespace() {
        assert_eq!(depth("Name:\tsh\nNSpid:\t4711\nNSpgid:\t4711\n"), 1);
        assert_eq!(depth("Name:\tsh\nNSpid:\t4711\t1\nNSpgid:\t4711\t1\n"), 2);
        // A kernel that was built without such namespaces.
        assert_eq!(depth("Name:\tsh\n"), 1);
    }
}
