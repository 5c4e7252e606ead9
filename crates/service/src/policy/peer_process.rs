//! The process at the other end of a connection, as the kernel noted it when that process connected.
//!
//! A number of a process passes to another one once its owner has been waited for. So whatever is read by number counts
//! only while the process that connected is known to live.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::{ClockId, clock_gettime};

/// Groups asked for at first. Most processes have fewer.
const SOME_GROUPS: usize = 64;

/// Ticks of `/proc/PID/stat` since the machine has started.
pub fn ticks_now() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    ticks(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs(), rustix::param::clock_ticks_per_second())
}

/// So many seconds and nanoseconds in ticks.
fn ticks(s: u64, ns: u64, per_s: u64) -> u64 {
    s * per_s + ns * per_s / 1_000_000_000
}

/// Its supplementary groups (`SO_PEERGROUPS`).
pub fn groups(socket: impl AsFd) -> Result<Vec<u32>, Errno> {
    let mut bytes = vec![0; SOME_GROUPS * size_of::<u32>()];
    let length = match get(&socket, libc::SO_PEERGROUPS, &mut bytes) {
        // The kernel says how much it would have written. The list does not change.
        (Err(Errno::RANGE), length) => {
            bytes.resize(length, 0);
            let (result, length) = get(&socket, libc::SO_PEERGROUPS, &mut bytes);
            result.map(|()| length)?
        }
        (result, length) => result.map(|()| length)?,
    };
    let words = bytes.get(..length).unwrap_or_default().chunks_exact(size_of::<u32>());
    Ok(words.filter_map(|word| Some(u32::from_ne_bytes(word.try_into().ok()?))).collect())
}

/// A pidfd of it. `accepted`: [`ticks_now`] when the connection was accepted. Kernels before 6.5 cannot name the process;
/// there it is the one of this number, if that was there when the connection was accepted.
pub fn process(socket: impl AsFd, pid: i32, accepted: u64) -> Result<OwnedFd, Errno> {
    let mut number = [0; size_of::<i32>()];
    match get(&socket, libc::SO_PEERPIDFD, &mut number).0 {
        // SAFETY: the kernel has made this descriptor for us.
        Ok(()) => Ok(unsafe { OwnedFd::from_raw_fd(i32::from_ne_bytes(number)) }),
        Err(Errno::NOPROTOOPT) => by_number(pid, accepted),
        Err(error) => Err(error),
    }
}

/// A pidfd of the process of this number, if it began no later than this.
fn by_number(pid: i32, latest: u64) -> Result<OwnedFd, Errno> {
    let process = pidfd_open(Pid::from_raw(pid).ok_or(Errno::SRCH)?, PidfdFlags::empty())?;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    if started(&stat).is_some_and(|at| at <= latest) { Ok(process) } else { Err(Errno::SRCH) }
}

/// Does it live? If so, what was read by its number before was its own.
pub fn lives(process: &OwnedFd) -> bool {
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    poll(&mut ended, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
}

/// When the process of this `/proc/PID/stat` began, in ticks.
fn started(stat: &str) -> Option<u64> {
    // Its name may have spaces and parentheses.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Reads an option of the socket level, and the length that the kernel gives.
fn get(socket: impl AsFd, option: i32, value: &mut [u8]) -> (Result<(), Errno>, usize) {
    let mut length = value.len() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `value` has room for `length` bytes.
    let result = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, value.as_mut_ptr().cast(), &raw mut length) };
    let last = || Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL);
    (if result == 0 { Ok(()) } else { Err(last()) }, length as usize)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn a_start_is_read_behind_any_name() {
        let rest = (4..23).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(started(&format!("7 (a) 1 (b)) S {rest}")), Some(22));
        assert_eq!(started(""), None);
    }

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn groups_are_those_of_whoever_connected_however_many_they_are() {
        let (own, _other) = pair();
        let ours: Vec<u32> = rustix::process::getgroups().unwrap().iter().map(|group| group.as_raw()).collect();
        assert_eq!(groups(&own).unwrap(), ours);
        if !rustix::process::geteuid().is_root() {
            return;
        }
        for count in [0, 1, SOME_GROUPS, SOME_GROUPS + 1, 5 * SOME_GROUPS] {
            let many: Vec<u32> = (0..count as u32).map(|number| 70_000 + number).collect();
            // The groups are this thread's alone, which ends here.
            let set = || {
                // SAFETY: the kernel reads `count` numbers.
                assert_eq!(unsafe { libc::syscall(libc::SYS_setgroups, count, many.as_ptr()) }, 0);
                groups(pair().0).unwrap()
            };
            assert_eq!(std::thread::scope(|scope| scope.spawn(set).join().unwrap()), many, "{count}");
        }
    }

    #[test]
    fn what_has_no_peer_has_no_groups_and_no_process() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(groups(&file).unwrap_err(), Errno::NOTSOCK);
        assert_eq!(process(&file, 1, u64::MAX).unwrap_err(), Errno::NOTSOCK);
    }

    #[test]
    fn a_process_of_a_number_is_taken_only_if_it_began_in_time() {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let began = started(&std::fs::read_to_string("/proc/self/stat").unwrap()).unwrap();
        assert!(lives(&by_number(own, began).unwrap()) && by_number(own, began + 1).is_ok());
        assert_eq!(by_number(own, began - 1).unwrap_err(), Errno::SRCH, "it has had the number only since");
        assert_eq!(by_number(0, u64::MAX).unwrap_err(), Errno::SRCH);
    }

    #[test]
    fn a_process_lives_until_it_has_ended() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let process = by_number(child.id().cast_signed(), u64::MAX).unwrap();
        assert!(lives(&process));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!lives(&process));
    }

    #[test]
    fn a_time_has_the_ticks_that_are_over() {
        let at = |s, ns| ticks(s, ns, 100);
        assert_eq!([at(0, 9_999_999), at(0, 10_000_000), at(3, 0), at(3, 999_999_999)], [0, 1, 300, 399]);
    }

    #[test]
    fn this_process_began_before_now() {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let began = started(&stat).unwrap();
        assert!(began <= ticks_now() && began + 24 * 3600 * 1000 > ticks_now(), "{began} {}", ticks_now());
    }
}
