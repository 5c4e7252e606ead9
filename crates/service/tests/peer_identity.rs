//! A process that has connected and ended, and another one that has its number: the service reads nothing of that one.
#![allow(clippy::unwrap_used)]

use rustix::fd::{AsFd, AsRawFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use towpath_service::policy::{Identity, peer_process};

/// `clone3` with a number of our choice for the child. Returns the child's number, 0 in the child, or -errno.
fn fork_as(pid: i32) -> i32 {
    let mut set_tid = [pid];
    // SAFETY: all zeros are a valid value.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.exit_signal = libc::SIGCHLD as u64;
    if pid != 0 {
        (args.set_tid, args.set_tid_size) = (set_tid.as_mut_ptr() as u64, 1);
    }
    // SAFETY: as fork. The children below make system calls only.
    let child = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) };
    if child < 0 { -std::io::Error::last_os_error().raw_os_error().unwrap() } else { child as i32 }
}

fn reap(pid: i32) {
    // SAFETY: no pointer is given.
    assert_eq!(unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) }, pid);
}

#[test]
fn the_heir_of_a_number_is_not_taken_for_the_process_that_connected() {
    assert!(rustix::process::geteuid().is_root(), "a number can be chosen by root only");
    let make = || rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (listener, connecting) = (make().unwrap(), make().unwrap());
    let name = format!("towpath-peer-{}", std::process::id());
    let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    rustix::net::bind(&listener, &name).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    let first = fork_as(0);
    if first == 0 {
        let groups = [4711u32, 4712];
        // SAFETY: only system calls are made, and the child ends.
        unsafe {
            libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr());
            let done = rustix::net::connect(&connecting, &name);
            libc::_exit(i32::from(done.is_err()));
        }
    }
    assert!(first > 0);
    reap(first);
    let heir = fork_as(first);
    if heir == 0 {
        // SAFETY: only system calls are made.
        unsafe { libc::pause() };
    }
    assert_eq!(heir, first, "the number is free again");
    let socket = rustix::net::accept(&listener).unwrap();
    let credentials = sockopt::socket_peercred(&socket).unwrap();
    let pid = credentials.pid.as_raw_nonzero().get();
    let (uid, gid) = (credentials.uid.as_raw(), credentials.gid.as_raw());
    let identity = Identity::of_peer(socket.as_fd(), uid, gid, pid, peer_process::ticks_now());
    // SAFETY: the heir is our child, and no pointer is given.
    unsafe { libc::kill(heir, libc::SIGKILL) };
    reap(heir);
    assert_eq!(pid, heir, "socket {}", socket.as_raw_fd());
    assert_eq!(identity.groups, [gid, 4711, 4712], "those of the process that connected");
    // A kernel that cannot name the process knows no better than that the number was there.
    let kernel = rustix::system::uname();
    let version = kernel.release().to_str().unwrap().split('.').map(|n| n.parse::<u32>().unwrap_or(0)).take(2);
    if version.collect::<Vec<_>>() >= vec![6, 5] {
        assert_eq!((identity.program.as_str(), identity.cgroup.as_str()), ("", ""));
    }
}
