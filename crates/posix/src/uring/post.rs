//! Posting completions to the program's rings: by IORING_OP_MSG_RING from a ring of the library's own, so that the kernel is the only
//! one that writes a completion queue.

use super::abi::{
    CQE_F_MORE, Cqe, MSG_RING_FLAGS_PASS, NOP_INJECT_RESULT, OFF_CQ_RING, OFF_SQ_RING, OFF_SQES, Params, Sqe, flag, op,
};
use super::{Mapping, kernel};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering};
use rustix::fd::{FromRawFd, OwnedFd};
use towpath_client::descriptors;
use towpath_client::lock::Lock;
use towpath_client::sys::Sys;

/// Entries of the library's own ring.
const ENTRIES: u32 = 8;
const GETEVENTS: u64 = 1;

/// The library's own ring.
struct Own {
    fd: i32,
    submission: Mapping,
    completion: Mapping,
    entries: Mapping,
    params: Params,
    /// A NOP can be given its result.
    injects: bool,
    /// A MSG_RING can carry a completion's flags.
    passes_flags: bool,
}

struct Shared {
    lock: Lock,
    own: UnsafeCell<Option<Own>>,
}

// SAFETY: only used under the lock.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared { lock: Lock::new(), own: UnsafeCell::new(None) };

fn with<R>(work: impl FnOnce(&mut Option<Own>) -> R) -> Option<R> {
    let _locked = SHARED.lock.lock()?;
    // SAFETY: locked.
    Some(work(unsafe { &mut *SHARED.own.get() }))
}

/// Makes the ring, if there is none yet.
pub fn start() -> Sys<()> {
    let started = with(|own| {
        if own.is_none() {
            *own = Some(Own::new()?);
        }
        Ok(())
    });
    started.unwrap_or(Err(libc::EAGAIN))
}

/// In a forked child, whose parent has it.
pub fn forked() {
    SHARED.lock.reset();
    with(|own| {
        if let Some(own) = own.take() {
            descriptors::unprotect(own.fd);
            // They were not inherited.
            core::mem::forget((own.submission, own.completion, own.entries));
        }
    });
}

/// Can a completion with this result take the place of an operation?
pub fn injects() -> bool {
    with(|own| own.as_ref().is_some_and(|own| own.injects)) == Some(true)
}

/// Can completions have flags: say that more will come, and name a buffer?
pub fn passes_flags() -> bool {
    with(|own| own.as_ref().is_some_and(|own| own.passes_flags)) == Some(true)
}

/// Posts a completion to the ring behind `to`, a descriptor of the library's own. False = it could not be.
/// `flags`: IORING_CQE_F_*, none unless the kernel [`passes_flags`].
pub fn post(to: i32, user_data: u64, result: i32, flags: u32) -> bool {
    let posted = with(|own| {
        let own = own.as_mut()?;
        let mut entry = message(to, user_data, result);
        if flags != 0 {
            entry.op_flags = MSG_RING_FLAGS_PASS;
            entry.file_index = flags as i32;
        }
        own.submit(&entry).ok()?;
        own.take().is_none().then_some(())
    });
    posted.flatten().is_some()
}

/// A message that says nothing of its own success.
fn message(to: i32, user_data: u64, result: i32) -> Sqe {
    let (opcode, flags) = (op::MSG_RING, flag::CQE_SKIP_SUCCESS);
    Sqe { opcode, flags, fd: to, off: user_data, len: result as u32, ..Sqe::default() }
}

impl Own {
    fn new() -> Sys<Self> {
        let mut params = Params::default();
        let arguments = [ENTRIES.into(), &raw mut params as u64, 0, 0, 0, 0];
        // SAFETY: room for the parameters.
        let fd = unsafe { kernel(libc::SYS_io_uring_setup, arguments) }? as i32;
        // SAFETY: a fresh descriptor.
        let fd = descriptors::protect(unsafe { OwnedFd::from_raw_fd(fd) })?;
        let map = || {
            let submission = params.sq_off.seventh as usize + params.sq_entries as usize * size_of::<u32>();
            let completion = params.cq_off.sixth as usize + params.cq_entries as usize * size_of::<Cqe>();
            Ok((
                Mapping::of(fd, OFF_SQ_RING, submission)?,
                Mapping::of(fd, OFF_CQ_RING, completion)?,
                Mapping::of(fd, OFF_SQES, params.sq_entries as usize * size_of::<Sqe>())?,
            ))
        };
        let (submission, completion, entries) = map().inspect_err(|_: &i32| descriptors::unprotect(fd))?;
        let mut own = Self { fd, submission, completion, entries, params, injects: false, passes_flags: false };
        own.probe();
        Ok(own)
    }

    /// Finds out what this kernel can.
    fn probe(&mut self) {
        const RESULT: i32 = -4000;
        let nop =
            Sqe { opcode: op::NOP, len: RESULT as u32, op_flags: NOP_INJECT_RESULT, user_data: 1, ..Sqe::default() };
        if self.submit(&nop).is_ok() {
            self.injects = self.take().is_some_and(|completion| completion.res == RESULT);
        }
        let mut passing = message(self.fd, 1, 0);
        passing.op_flags = MSG_RING_FLAGS_PASS;
        passing.file_index = CQE_F_MORE as i32;
        if self.submit(&passing).is_ok() {
            self.passes_flags = self.take().is_some_and(|completion| completion.flags == CQE_F_MORE);
        }
        while self.take().is_some() {}
    }

    fn word(mapping: &Mapping, offset: u32) -> &AtomicU32 {
        // SAFETY: the kernel says that a word of the ring is there, within what has been mapped.
        unsafe { AtomicU32::from_ptr(mapping.at(offset).cast::<u32>().cast_mut()) }
    }

    /// One entry, which the kernel carries out at once.
    fn submit(&mut self, entry: &Sqe) -> Sys<()> {
        let offsets = &self.params.sq_off;
        let tail = Self::word(&self.submission, offsets.tail);
        let mask = self.params.sq_entries - 1;
        let (position, before) = (tail.load(Ordering::Relaxed) & mask, tail.load(Ordering::Relaxed));
        // SAFETY: within the entries, which only this thread writes now.
        unsafe { self.entries.at(0).cast::<Sqe>().cast_mut().add(position as usize).write(*entry) };
        Self::word(&self.submission, offsets.seventh + position * size_of::<u32>() as u32)
            .store(position, Ordering::Relaxed);
        tail.store(before.wrapping_add(1), Ordering::Release);
        loop {
            // SAFETY: no memory but the ring's.
            match unsafe { kernel(libc::SYS_io_uring_enter, [self.fd as u64, 1, 0, GETEVENTS, 0, 0]) } {
                Ok(_) => return Ok(()),
                Err(libc::EINTR) => {}
                Err(errno) => {
                    // Not taken: nobody else looks at it.
                    if Self::word(&self.submission, offsets.head).load(Ordering::Acquire) == before {
                        tail.store(before, Ordering::Release);
                    }
                    return Err(errno);
                }
            }
        }
    }

    /// The oldest completion.
    fn take(&mut self) -> Option<Cqe> {
        let offsets = &self.params.cq_off;
        let head = Self::word(&self.completion, offsets.head);
        let at = head.load(Ordering::Relaxed);
        if at == Self::word(&self.completion, offsets.tail).load(Ordering::Acquire) {
            return None;
        }
        let position = (at & (self.params.cq_entries - 1)) as usize;
        // SAFETY: within the queue; the kernel has written it.
        let completion = unsafe { self.completion.at(offsets.sixth).cast::<Cqe>().add(position).read() };
        head.store(at.wrapping_add(1), Ordering::Release);
        Some(completion)
    }
}
