//! A descriptor table for one thread.
//!
//! Every accelerated socket costs the service one descriptor. With a table per client process, the limit on open files
//! counts per client. No client can use up the others' descriptors, and opening and closing do not contend for one
//! lock. The price: a descriptor number differs in meaning between tables. Such a thread must neither use nor drop a
//! descriptor that it did not keep or open itself.

use rustix::fd::{AsRawFd, BorrowedFd};
use std::io;

/// `CLOSE_RANGE_UNSHARE`: give the caller a table of its own before closing.
const UNSHARE: libc::c_uint = 2;
/// Standard error, the last of the three descriptors that every table has.
const LAST_STANDARD: u32 = 2;

/// Gives the calling thread a table of its own. It holds standard input, output and error and the descriptors of
/// `keep`, under their present numbers. On an error nothing is closed and the thread stays in the shared table.
pub fn separate(keep: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut kept: Vec<u32> = keep.iter().filter_map(|fd| u32::try_from(fd.as_raw_fd()).ok()).collect();
    kept.push(LAST_STANDARD);
    kept.retain(|number| *number >= LAST_STANDARD);
    kept.sort_unstable();
    kept.dedup();
    // The last range comes first: it has no end, so the kernel copies only the descriptors below it.
    let mut last = u32::MAX;
    let mut flags = UNSHARE;
    for number in kept.iter().rev() {
        if *number < last {
            close_range(number + 1, last, flags)?;
            flags = 0;
        }
        last = number - 1;
    }
    Ok(())
}

fn close_range(first: u32, last: u32, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: the call takes no pointers. The first call of `separate` has UNSHARE, so it fails or acts on a table that
    // no other thread uses. The caller does not use the descriptors that are closed here (see the module).
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Raises the limit on open files as far as possible, and returns it.
pub fn raise_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const ROOT_TRIES: u64 = 1 << 20;
    let limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.unwrap_or(ROOT_TRIES);
    // Exceeding the hard limit needs CAP_SYS_RESOURCE and may not exceed fs.nr_open. The second try stays at the hard
    // limit.
    for wanted in [hard.max(ROOT_TRIES), hard] {
        let raised = Rlimit { current: Some(wanted), maximum: Some(wanted) };
        if setrlimit(Resource::Nofile, raised).is_ok() {
            return wanted;
        }
    }
    limit.current.unwrap_or(ROOT_TRIES)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::fd::AsFd;

    fn open_in_this_thread() -> Vec<u32> {
        let dir = std::fs::read_dir("/proc/thread-self/fd").unwrap();
        dir.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect()
    }

    #[test]
    fn keeps_only_what_it_is_told_and_leaves_the_others_alone() {
        let files: Vec<_> = (0..6).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let keep = [files[4].as_fd(), files[1].as_fd()];
                separate(&keep).unwrap();
                let open = open_in_this_thread();
                let number = |i: usize| files[i].as_raw_fd() as u32;
                assert!(open.contains(&number(1)) && open.contains(&number(4)), "{open:?}");
                for closed in [0, 2, 3, 5] {
                    assert!(rustix::io::fcntl_getfd(&files[closed]).is_err(), "{closed} is still open");
                }
                // Standard descriptors, the two kept, and the directory being read.
                assert!(open.len() <= 6, "{open:?}");
            });
        });
        for file in &files {
            rustix::io::fcntl_getfd(file).expect("open in the shared table");
        }
    }

    #[test]
    fn neighbours_are_kept_and_what_lies_between_is_closed() {
        // In a table of its own, so that the numbers are known.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                separate(&[]).unwrap();
                let files: Vec<_> = (0..9).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
                let keep = [3, 3, 2, 5, 8].map(|at: usize| files[at].as_fd());
                separate(&keep).unwrap();
                // This opens no descriptor, which would get the number of one that is closed.
                let open = files.iter().map(|file| rustix::io::fcntl_getfd(file).is_ok()).collect::<Vec<_>>();
                let standard = (0..3).all(|number| {
                    // SAFETY: it is looked at only.
                    rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) }).is_ok()
                });
                // Another has the numbers of those that are closed.
                std::mem::forget(files);
                assert_eq!(open, [false, false, true, true, false, true, false, false, true]);
                assert!(standard);
            });
        });
    }

    #[test]
    fn the_limit_on_open_files_is_the_one_that_is_said() {
        use rustix::process::{Resource, getrlimit};
        let before = getrlimit(Resource::Nofile);
        let said = raise_limit();
        let after = getrlimit(Resource::Nofile);
        assert_eq!((after.current, after.maximum), (Some(said), Some(said)));
        assert!(before.maximum.is_some_and(|hard| said >= hard));
    }

    #[test]
    fn nothing_to_keep() {
        let file = std::fs::File::open("/dev/null").unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                separate(&[]).unwrap();
                assert!(rustix::io::fcntl_getfd(&file).is_err());
            });
        });
        rustix::io::fcntl_getfd(&file).unwrap();
    }
}
