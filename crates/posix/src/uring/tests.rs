//! io_uring operations on a listener with a kernel half.

use super::abi::{self, CQE_F_MORE, Cqe, OFF_CQ_RING, OFF_SQ_RING, OFF_SQES, Params, Sqe, op};
use super::{Mapping, enter, kernel, post, set_up};
use crate::fd::table::{self, Descriptor};
use crate::tests::halves::Halves;
use crate::tests::os::{close, eventually, wait_for};
use core::sync::atomic::{AtomicU32, Ordering};
use libc::{POLLIN, c_int};
use std::time::Duration;
use towpath_client::sys;

/// A program's ring.
struct Ring {
    fd: c_int,
    params: Params,
    submission: Mapping,
    completion: Mapping,
    entries: Mapping,
}

fn word(mapping: &Mapping, offset: u32) -> &AtomicU32 {
    // SAFETY: the kernel has given this offset of a word within the ring.
    unsafe { AtomicU32::from_ptr(mapping.at(offset).cast::<u32>().cast_mut()) }
}

impl Ring {
    fn new() -> Self {
        crate::tests::os::start();
        let mut params = Params::default();
        // SAFETY: `params` is a local.
        let fd = unsafe { set_up(8, (&raw mut params).cast()) }.expect("ours").expect("a ring");
        let (submissions, completions) = (params.sq_entries as usize, params.cq_entries as usize);
        let submission = Mapping::of(fd, OFF_SQ_RING, params.sq_off.seventh as usize + submissions * 4).expect("mmap");
        let completion = Mapping::of(fd, OFF_CQ_RING, params.cq_off.sixth as usize + completions * size_of::<Cqe>());
        let entries = Mapping::of(fd, OFF_SQES, submissions * size_of::<Sqe>()).expect("mmap");
        Self { fd, params, submission, completion: completion.expect("mmap"), entries }
    }

    fn submit(&self, entry: Sqe) {
        let tail = word(&self.submission, self.params.sq_off.tail);
        let at = tail.load(Ordering::Relaxed);
        let place = at & (self.params.sq_entries - 1);
        // SAFETY: the place is within the entries, which only this thread writes.
        unsafe { self.entries.at(0).cast::<Sqe>().cast_mut().add(place as usize).write(entry) };
        word(&self.submission, self.params.sq_off.seventh + place * 4).store(place, Ordering::Relaxed);
        tail.store(at.wrapping_add(1), Ordering::Release);
        assert_eq!(enter(self.fd, 1), None);
        // SAFETY: the ring's memory is mapped.
        unsafe { kernel(libc::SYS_io_uring_enter, [self.fd as u64, 1, 0, 0, 0, 0]) }.expect("io_uring_enter");
    }

    fn next(&self) -> Option<(u64, i32, bool)> {
        let head = word(&self.completion, self.params.cq_off.head);
        let at = head.load(Ordering::Relaxed);
        if at == word(&self.completion, self.params.cq_off.tail).load(Ordering::Acquire) {
            return None;
        }
        let place = at & (self.params.cq_entries - 1);
        // SAFETY: the kernel has written this completion.
        let it = unsafe { self.completion.at(self.params.cq_off.sixth).cast::<Cqe>().add(place as usize).read() };
        head.store(at.wrapping_add(1), Ordering::Release);
        Some((it.user_data, it.res, it.flags & CQE_F_MORE != 0))
    }

    #[track_caller]
    fn completion(&self) -> (u64, i32, bool) {
        wait_for(|| self.next())
    }

    fn quiet(&self) {
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(self.next(), None);
    }

    fn end(self) {
        close(self.fd).expect("close");
    }
}

fn accept(fd: c_int, user_data: u64, flags: u16) -> Sqe {
    Sqe { opcode: op::ACCEPT, fd, ioprio: flags, user_data, ..Sqe::default() }
}

fn poll(fd: c_int, user_data: u64, len: u32) -> Sqe {
    Sqe { opcode: op::POLL_ADD, fd, len, op_flags: POLLIN as u32, user_data, ..Sqe::default() }
}

/// Closes an accepted connection. True: the kernel half has accepted it.
fn of_kernel(fd: i32) -> bool {
    assert!(fd >= 0, "{fd}");
    let kernels = table::get(fd) == Descriptor::Kernel;
    close(fd).expect("close");
    kernels
}

#[test]
fn an_accept_takes_from_either_half_at_once_and_later() {
    let (halves, ring) = (Halves::new(), Ring::new());
    for waits in [false, true] {
        for by_kernel in [true, false] {
            let submit = || ring.submit(accept(halves.fd, 7, 0));
            if waits {
                submit();
                ring.quiet();
            }
            let ends = if by_kernel { (Some(halves.by_kernel()), -1) } else { (None, halves.by_slot()) };
            if !waits {
                eventually(|| crate::tests::os::poll(&[(halves.fd, POLLIN)], 0) == Ok(vec![POLLIN]));
                submit();
            }
            let (data, accepted, more) = ring.completion();
            assert_eq!((data, of_kernel(accepted), more), (7, by_kernel, false), "{waits}");
            ring.quiet();
            if ends.1 >= 0 {
                close(ends.1).expect("close");
            }
        }
    }
    ring.end();
    halves.end();
}

#[test]
fn a_multishot_accept_takes_from_both_until_it_is_cancelled() {
    let (halves, ring) = (Halves::new(), Ring::new());
    if !post::passes_flags() {
        return;
    }
    ring.submit(accept(halves.fd, 1, abi::accept::MULTISHOT));
    let mut kept = Vec::new();
    let mut kernels = 0;
    for round in 0..10 {
        match round % 3 {
            0 => drop(halves.by_kernel()),
            1 => kept.push(halves.by_slot()),
            _ => {
                drop(halves.by_kernel());
                kept.push(halves.by_slot());
            }
        }
        for _ in 0..1 + u32::from(round % 3 == 2) {
            let (data, accepted, more) = ring.completion();
            assert_eq!((data, more), (1, true), "round {round}");
            kernels += u32::from(of_kernel(accepted));
        }
    }
    assert_eq!((kernels, kept.len()), (7, 6));
    ring.submit(Sqe { opcode: op::ASYNC_CANCEL, fd: -1, addr: 1, user_data: 2, ..Sqe::default() });
    let mut ended = [ring.completion(), ring.completion()];
    ended.sort_unstable();
    assert_eq!(ended, [(1, -libc::ECANCELED, false), (2, 0, false)]);
    let waiting = halves.by_kernel();
    ring.quiet();
    drop(waiting);
    kept.into_iter().for_each(|fd| _ = close(fd).expect("close"));
    ring.end();
    halves.end();
}

#[test]
fn a_poll_tells_of_each_connection_of_either_half() {
    let (halves, ring) = (Halves::new(), Ring::new());
    ring.submit(poll(halves.fd, 1, 0));
    ring.quiet();
    let waiting = halves.by_kernel();
    assert_eq!(ring.completion(), (1, POLLIN.into(), false));
    ring.submit(poll(halves.fd, 2, 0));
    assert_eq!(ring.completion(), (2, POLLIN.into(), false), "it is still so");
    assert!(halves.accept());
    drop(waiting);
    if post::passes_flags() {
        ring.submit(poll(halves.fd, 3, abi::poll::ADD_MULTI));
        ring.quiet();
        for _ in 0..3 {
            let waiting = halves.by_kernel();
            assert_eq!(ring.completion(), (3, POLLIN.into(), true));
            ring.quiet();
            let other = halves.by_slot();
            assert_eq!(ring.completion(), (3, POLLIN.into(), true));
            assert_ne!(halves.accept(), halves.accept());
            drop(waiting);
            close(other).expect("close");
        }
    }
    ring.end();
    halves.end();
}

#[test]
fn an_accept_outlives_the_descriptor_as_in_the_kernel() {
    let (halves, ring) = (Halves::new(), Ring::new());
    ring.submit(accept(halves.fd, 1, 0));
    ring.quiet();
    close(halves.fd).expect("close");
    let waiting = halves.by_kernel();
    let (data, accepted, _) = ring.completion();
    assert_eq!((data, of_kernel(accepted)), (1, true));
    drop(waiting);
    ring.end();
    assert_eq!(sys::fcntl(accepted, libc::F_GETFD, 0), Err(libc::EBADF));
}

#[test]
fn a_listener_that_is_shut_down_ends_its_accepts() {
    let (halves, ring) = (Halves::new(), Ring::new());
    ring.submit(accept(halves.fd, 1, 0));
    ring.submit(accept(halves.fd, 2, 0));
    ring.quiet();
    crate::tests::os::shutdown(halves.fd, libc::SHUT_RD).expect("shutdown");
    let ended = [ring.completion(), ring.completion()];
    assert_eq!(ended, [(1, -libc::EINVAL, false), (2, -libc::EINVAL, false)]);
    ring.end();
    halves.end();
}

#[test]
fn a_listener_whose_service_is_gone_goes_on() {
    let (halves, ring) = (Halves::new(), Ring::new());
    ring.submit(accept(halves.fd, 1, 0));
    ring.submit(accept(halves.fd, 2, 0));
    ring.quiet();
    crate::lifecycle::kernel_half::give_back(halves.fd, &halves.socket);
    for data in [1, 2] {
        let waiting = halves.by_kernel();
        let (user_data, accepted, _) = ring.completion();
        assert_eq!((user_data, of_kernel(accepted)), (data, true));
        drop(waiting);
    }
    ring.end();
    halves.end();
}
