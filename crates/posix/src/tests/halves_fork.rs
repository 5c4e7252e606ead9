//! Listeners with a kernel half in epoll descriptors that are inherited over `fork`: one object of the kernel.

use super::halves::Halves;
use super::os::*;
use crate::at_fork;
use libc::{EPOLL_CTL_ADD as ADD, EPOLLIN, c_int};
use std::io::{Read, Write};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// A fork ends that the kernel tells of the first event of any instance in this process.
static FORKING: RwLock<()> = RwLock::new(());

/// As long as this lives, no test forks. For those in which the kernel is to tell of a first event.
pub fn no_fork() -> RwLockReadGuard<'static, ()> {
    FORKING.read().unwrap_or_else(PoisonError::into_inner)
}

/// A forked child that does some work and ends.
pub struct Child(c_int);

impl Child {
    /// The work says whether all was well.
    pub fn new(work: impl FnOnce() -> bool) -> Self {
        let _alone = FORKING.write().unwrap_or_else(PoisonError::into_inner);
        at_fork::before();
        // SAFETY: the child makes calls of the library only, and ends without running the test harness's code.
        match unsafe { libc::fork() } {
            0 => {
                at_fork::in_child();
                // SAFETY: integers only. A child that hangs is killed.
                unsafe {
                    libc::alarm(60);
                    let well = std::panic::catch_unwind(core::panic::AssertUnwindSafe(work)).unwrap_or(false);
                    libc::_exit(c_int::from(!well))
                }
            }
            pid => Self(pid),
        }
    }

    pub fn ends_well(self) -> bool {
        let mut status = -1;
        // SAFETY: `status` is a local.
        unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        status == 0
    }
}

#[test]
fn a_child_that_closes_its_listener_leaves_the_parents_watch_alone() {
    let (halves, epfd) = (Halves::new(), epoll());
    control(epfd, ADD, halves.fd, EPOLLIN, 3).expect("add");
    assert!(Child::new(|| close(halves.fd).is_ok() && close(epfd).is_ok()).ends_well());
    let waiting = halves.by_kernel();
    assert_eq!(wait(epfd, 60_000), [(3, EPOLLIN)]);
    assert!(halves.accept());
    drop(waiting);
    close(epfd).expect("close");
    halves.end();
}

#[test]
fn a_child_waits_on_an_inherited_epoll_descriptor() {
    let (halves, epfd) = (Halves::new(), epoll());
    control(epfd, ADD, halves.fd, EPOLLIN, 4).expect("add");
    let waiting = halves.by_kernel();
    assert!(Child::new(|| wait(epfd, 60_000) == [(4, EPOLLIN)] && halves.accept()).ends_well());
    assert_eq!(wait(epfd, 0), [], "the child has accepted it");
    drop(waiting);
    close(epfd).expect("close");
    halves.end();
}

/// As on Linux the child sees the parent's data.
#[test]
fn a_child_is_told_of_a_listener_that_the_parent_has_added_since() {
    let epfd = epoll();
    let first = Halves::new();
    control(epfd, ADD, first.fd, EPOLLIN, 5).expect("add");
    let ((mut read, mut write), (mut done, mut end)) = (std::io::pipe().expect("pipe"), std::io::pipe().expect("pipe"));
    let child = Child::new(|| {
        let mut byte = [0; 1];
        let heard = read.read_exact(&mut byte).is_ok() && wait(epfd, 60_000) == [(6, EPOLLIN)];
        heard && end.write_all(&byte).is_ok()
    });
    let second = Halves::new();
    control(epfd, ADD, second.fd, EPOLLIN, 6).expect("add");
    let waiting = second.by_kernel();
    write.write_all(b"x").expect("write");
    assert!(child.ends_well());
    drop(end);
    assert_eq!(done.read(&mut [0; 2]).expect("read"), 1);
    drop(waiting);
    close(epfd).expect("close");
    first.end();
    second.end();
}
