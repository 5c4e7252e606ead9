//! The application's marks in its stream: urgent bytes (`MSG_OOB`), flushes of a cork, records (`MSG_EOR`). Urgent bytes
//! stay at their position of the stream in both rings (`SO_OOBINLINE`).

use crate::sys;
use rustix::fd::BorrowedFd;
use towpath_runtime::clients::AppMarks;

const SIOCATMARK: libc::Ioctl = 0x8905;

/// The bytes of `sent..tail` to send next, and the flags. `marks` are the application's, `done` those that have been
/// dealt with.
pub fn part(sent: u32, tail: u32, marks: &AppMarks, done: &AppMarks) -> (u32, i32) {
    let (mut len, mut flags) = urgent_part(sent, tail, marks.urgent, done.urgent);
    let ahead = |mark: Option<u32>, done: Option<u32>| Some(mark.filter(|_| mark != done)?.wrapping_sub(sent));
    // What follows a flush is still held. So the cork is taken off for a moment when all before it has been sent.
    if let Some(flush) = ahead(marks.flush, done.flush).filter(|ahead| (1..len).contains(ahead)) {
        (len, flags) = (flush, 0);
    }
    match ahead(marks.record, done.record) {
        Some(end) if end == len && len != 0 => (len, flags | libc::MSG_EOR),
        Some(end) if (1..len).contains(&end) => (end, libc::MSG_EOR),
        _ => (len, flags),
    }
}

/// The same for the newest urgent byte alone: the positions after it, and after the last that was sent as urgent.
fn urgent_part(sent: u32, tail: u32, urgent: Option<u32>, done: Option<u32>) -> (u32, i32) {
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
        assert_eq!(urgent_part(10, 20, None, None), (10, 0));
        assert_eq!(urgent_part(10, 20, Some(15), None), (4, 0));
        assert_eq!(urgent_part(14, 20, Some(15), None), (1, libc::MSG_OOB));
        assert_eq!(urgent_part(15, 20, Some(15), Some(15)), (5, 0));
        assert_eq!(urgent_part(10, 12, Some(15), None), (2, 0), "it is not there yet");
        assert_eq!(urgent_part(16, 20, Some(15), None), (4, 0), "it has gone already");
        let wrapped = u32::MAX - 1;
        assert_eq!(urgent_part(wrapped, 3, Some(1), None), (2, 0));
    }

    #[test]
    fn a_part_ends_where_a_record_or_a_flush_does() {
        let none = AppMarks::default();
        let record = AppMarks { record: Some(15), ..none };
        assert_eq!(part(10, 20, &record, &none), (5, libc::MSG_EOR));
        assert_eq!(part(10, 15, &record, &none), (5, libc::MSG_EOR));
        assert_eq!(part(15, 20, &record, &none), (5, 0), "it has gone already");
        assert_eq!(part(10, 12, &record, &none), (2, 0), "it is not there yet");
        assert_eq!(part(10, 20, &record, &record), (10, 0));
        let flush = AppMarks { flush: Some(15), ..none };
        assert_eq!(part(10, 20, &flush, &none), (5, 0));
        assert_eq!(part(10, 20, &flush, &flush), (10, 0));
        let all = AppMarks { urgent: Some(18), flush: Some(16), record: Some(14) };
        assert_eq!(part(10, 20, &all, &none), (4, libc::MSG_EOR));
        assert_eq!(part(14, 20, &all, &none), (2, 0));
        assert_eq!(part(17, 20, &AppMarks { record: Some(18), ..all }, &none), (1, libc::MSG_OOB | libc::MSG_EOR));
    }
}
