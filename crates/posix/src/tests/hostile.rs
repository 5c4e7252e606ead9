//! Invalid arguments get the answers of Linux, and no memory is touched.

use super::os::*;
use crate::handler::Posix;
use core::ptr::null_mut;
use libc::{mmsghdr, timespec, timeval};
use towpath_hook::Handler;

#[test]
fn buffers_and_messages_that_are_nowhere_fault() {
    let (ours, theirs) = pair();
    send(theirs, b"four", 0).expect("send");
    // SAFETY: the test is that null is not followed.
    unsafe {
        assert_eq!(Posix::read(ours, null_mut(), 4), Some(Err(libc::EFAULT)));
        assert_eq!(Posix::write(ours, null_mut(), 4), Some(Err(libc::EFAULT)));
        assert_eq!(Posix::recvmsg(ours, null_mut(), 0), Some(Err(libc::EFAULT)));
        assert_eq!(Posix::recvmmsg(ours, null_mut(), 2, 0, null_mut()), Some(Err(libc::EFAULT)));
        assert_eq!(Posix::sendmmsg(ours, null_mut(), 2, 0), Some(Err(libc::EFAULT)));
        assert_eq!(Posix::sendmmsg(ours, null_mut(), 0, 0), Some(Ok(0)));
        assert_eq!(Posix::write(ours, null_mut(), 0), Some(Ok(0)));
        eventually(|| option(ours, libc::SOL_SOCKET, libc::SO_ERROR) == Ok(0) && poll(&[(ours, 1)], 0) == Ok(vec![1]));
        assert_eq!(Posix::recv(ours, null_mut(), 4, libc::MSG_TRUNC), Some(Ok(4)), "thrown away");
    }
    close_both(ours, theirs);
}

#[test]
fn times_that_no_clock_reaches_are_for_ever() {
    let (ours, theirs) = pair();
    let endless = timeval { tv_sec: i64::MAX, tv_usec: 999_999 };
    set_option(ours, libc::SOL_SOCKET, libc::SO_RCVTIMEO, endless).expect("option");
    let sender = later(20, move || send(theirs, b"x", 0));
    let mut byte = 0u8;
    let mut vector = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut endless = timespec { tv_sec: i64::MAX, tv_nsec: 999_999_999 };
    // SAFETY: all zero is a message without a name, and its vector is a local.
    let received = unsafe {
        let mut messages: [mmsghdr; 1] = core::mem::zeroed();
        (messages[0].msg_hdr.msg_iov, messages[0].msg_hdr.msg_iovlen) = (&raw mut vector, 1);
        Posix::recvmmsg(ours, messages.as_mut_ptr(), 1, 0, &raw mut endless)
    };
    assert_eq!((received, byte), (Some(Ok(1)), b'x'));
    sender.join().expect("thread").expect("send");
    close_both(ours, theirs);
}

#[test]
fn select_looks_no_further_than_there_are_descriptors() {
    let (ours, theirs) = pair();
    send(theirs, b"x", 0).expect("send");
    // A set of the usual size, with memory behind it that is not part of the set.
    let mut words = vec![0u64; (1 << 20) / 64];
    words[1 << 10..].fill(u64::MAX);
    let bit = 1u64 << (ours % 64);
    words[ours as usize / 64] = bit;
    let mut time = timeval { tv_sec: 3, tv_usec: 0 };
    // SAFETY: the memory is longer than any set that the call could look at.
    let found = unsafe { Posix::select(1 << 20, words.as_mut_ptr().cast(), null_mut(), null_mut(), &raw mut time) };
    assert_eq!(found, Some(Ok(1)));
    assert_eq!(words[ours as usize / 64], bit);
    assert!(words[1 << 10..].iter().all(|word| *word == u64::MAX), "the memory behind the set is unchanged");
    close_both(ours, theirs);
}
