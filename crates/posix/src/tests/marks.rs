//! Marks in the stream: how far a cork was off for a moment, and the ends of records.

use super::os::*;
use crate::fd::table;
use std::sync::atomic::Ordering::Relaxed;
use towpath_ring::lines::app_flags;

/// The stack may look only after the cork is on again.
#[test]
fn what_was_held_for_a_moment_is_marked_as_flushed() {
    let (ours, theirs) = pair();
    let socket = table::socket(ours).expect("accelerated");
    let flushed = || {
        let flags = socket.app().flags.load(Relaxed);
        (flags & app_flags::CORK != 0, (flags & app_flags::FLUSH != 0).then(|| socket.app().flush().load(Relaxed)))
    };
    let cork = |on| set_option(ours, libc::IPPROTO_TCP, libc::TCP_CORK, on).expect("option");
    cork(1);
    assert_eq!(send(ours, &[1; 10], 0), Ok(10));
    assert_eq!(flushed(), (true, None));
    cork(0);
    cork(1);
    assert_eq!(flushed(), (true, Some(10)));
    cork(0);
    assert_eq!(send(ours, &[1; 5], libc::MSG_MORE), Ok(5));
    assert_eq!(flushed(), (true, Some(10)));
    assert_eq!(send(ours, &[1; 5], 0), Ok(5));
    assert_eq!(send(ours, &[1; 5], libc::MSG_MORE), Ok(5));
    assert_eq!(flushed(), (true, Some(20)));
    cork(1);
    assert_eq!(send(ours, &[1; 5], 0), Ok(5));
    assert_eq!(flushed(), (true, Some(20)), "the cork holds on");
    set_option(ours, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).expect("option");
    assert_eq!(flushed(), (true, Some(30)));
    close_both(ours, theirs);
}

#[test]
fn the_end_of_a_record_is_shown_with_its_last_byte() {
    let (ours, theirs) = pair();
    let socket = table::socket(ours).expect("accelerated");
    let record = || {
        let flags = socket.app().flags.load(Relaxed);
        (flags & app_flags::RECORD != 0).then(|| socket.app().record().load(Relaxed))
    };
    assert_eq!((send(ours, &[1; 10], 0), record()), (Ok(10), None));
    assert_eq!((send(ours, &[1; 10], libc::MSG_EOR), record()), (Ok(10), Some(20)));
    assert_eq!((send(ours, &[1; 10], 0), record()), (Ok(10), Some(20)));
    let all = [1; 100_000];
    let taken = send(ours, &all, libc::MSG_EOR | libc::MSG_DONTWAIT).expect("some bytes");
    assert!(taken < all.len(), "the ring is smaller");
    assert_eq!(record(), Some(20), "the record has not ended");
    close_both(ours, theirs);
}
