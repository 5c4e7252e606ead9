//! Urgent bytes (`MSG_OOB`). In both rings they stay at their position of the stream (`SO_OOBINLINE`).

use crate::sys;
use rustix::fd::BorrowedFd;

const SIOCATMARK: libc::Ioctl = 0x8905;

/// The bytes of `sent..tail` to send next, and the flags. `urgent` is the position after the newest urgent byte,
/// `done` the one after the last that was sent as urgent.
pub fn part(sent: u32, tail: u32, urgent: Option<u32>, done: Option<u32>) -> (u32, i32) {
    let all = tail.wrapping_sub(sent);
    match urgent.filter(|urgent| Some(*urgent) != done).map(|urgent| urgent.wrapping_sub(sent)) {
        // The urgent byte must be the last of its call.
        Some(1) => (1, libc::MSG_OOB),
        Some(ahead) if ahead > 1 && ahead <= all => (ahead - 1, 0),
        _ => (all, 0),
    }
}

/// True if the next byte to be read is the urgent byte.
pub fn is_next(fd: BorrowedFd<'_>) -> bool {
    sys::ioctl_int(fd, SIOCATMARK).is_some_and(|at| at != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_urgent_byte_goes_by_itself() {
        assert_eq!(part(10, 20, None, None), (10, 0));
        assert_eq!(part(10, 20, Some(15), None), (4, 0));
        assert_eq!(part(14, 20, Some(15), None), (1, libc::MSG_OOB));
        assert_eq!(part(15, 20, Some(15), Some(15)), (5, 0));
        assert_eq!(part(10, 12, Some(15), None), (2, 0), "it is not there yet");
        assert_eq!(part(16, 20, Some(15), None), (4, 0), "it has gone already");
        let wrapped = u32::MAX - 1;
        assert_eq!(part(wrapped, 3, Some(1), None), (2, 0));
    }
}
