//! Posts completions to the program's rings, by IORING_OP_MSG_RING from a ring of the library's own. So only the kernel
//! writes a completion queue.

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
    /// The kernel lets a NOP be given its result (Linux 6.9).
    injects: bool,
    /// The kernel lets a MSG_RING carry a completion's flags (Linux 6.3).
    passes_flags: bool,
}

struct Shared {
    lock: Lock,
    own: UnsafeCell<Option<Own>>,
}

// SAFETY: `with` is the only access to `own`, and it holds the lock.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared { lock: Lock::new(), own: UnsafeCell::new(None) };

fn with<R>(work: impl FnOnce(&mut Option<Own>) -> R) -> Option<R> {
    let _locked = SHARED.lock.lock()?;
    // SAFETY: the lock is held, so this is the only reference.
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

/// In a forked child: the ring is its parent's.
pub fn forked() {
    SHARED.lock.reset();
    with(|own| {
        if let Some(own) = own.take() {
            descriptors::unprotect(own.fd);
            // The mappings were not inherited (MADV_DONTFORK), so they must not be unmapped.
            core::mem::forget((own.submission, own.completion, own.entries));
        }
    });
}

/// Can a NOP stand in an operation's place and complete with its result?
pub fn injects() -> bool {
    with(|own| own.as_ref().is_some_and(|own| own.injects)) == Some(true)
}

/// Can posted completions have flags, to announce more completions or to name a buffer?
pub fn passes_flags() -> bool {
    with(|own| own.as_ref().is_some_and(|own| own.passes_flags)) == Some(true)
}

/// Posts a completion to a program's ring. `to` is the library's own descriptor of that ring. False: it could not be
/// posted.
/// `flags` are IORING_CQE_F_*, and 0 unless the kernel [`passes_flags`].
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

/// A MSG_RING entry that posts no completion of its own if it succeeds.
fn message(to: i32, user_data: u64, result: i32) -> Sqe {
    let (opcode, flags) = (op::MSG_RING, flag::CQE_SKIP_SUCCESS);
    Sqe { opcode, flags, fd: to, off: user_data, len: result as u32, ..Sqe::default() }
}

impl Own {
    fn new() -> Sys<Self> {
        let mut params = Params::default();
        let arguments = [ENTRIES.into(), &raw mut params as u64, 0, 0, 0, 0];
        // SAFETY: `params` is alive and has the size that the kernel fills in.
        let fd = unsafe { kernel(libc::SYS_io_uring_setup, arguments) }? as i32;
        // SAFETY: the kernel has just returned this descriptor, and nobody else has it.
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

    /// Finds out what this kernel supports.
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
        // SAFETY: the kernel has given this offset of a word within the ring, and the mapping covers the ring.
        unsafe { AtomicU32::from_ptr(mapping.at(offset).cast::<u32>().cast_mut()) }
    }

    /// Submits one entry, which the kernel carries out at once.
    fn submit(&mut self, entry: &Sqe) -> Sys<()> {
        let offsets = &self.params.sq_off;
        let tail = Self::word(&self.submission, offsets.tail);
        let mask = self.params.sq_entries - 1;
        let (position, before) = (tail.load(Ordering::Relaxed) & mask, tail.load(Ordering::Relaxed));
        // SAFETY: the mask keeps `position` within the entries. Only this thread writes them, because it holds the
        // lock.
        unsafe { self.entries.at(0).cast::<Sqe>().cast_mut().add(position as usize).write(*entry) };
        Self::word(&self.submission, offsets.seventh + position * size_of::<u32>() as u32)
            .store(position, Ordering::Relaxed);
        tail.store(before.wrapping_add(1), Ordering::Release);
        loop {
            // SAFETY: the call reads no memory but the ring's, which is mapped.
            match unsafe { kernel(libc::SYS_io_uring_enter, [self.fd as u64, 1, 0, GETEVENTS, 0, 0]) } {
                Ok(_) => return Ok(()),
                Err(libc::EINTR) => {}
                Err(errno) => {
                    // The kernel has not taken the entry, so it can be withdrawn.
                    if Self::word(&self.submission, offsets.head).load(Ordering::Acquire) == before {
                        tail.store(before, Ordering::Release);
                    }
                    return Err(errno);
                }
            }
        }
    }

    /// Takes the oldest completion.
    fn take(&mut self) -> Option<Cqe> {
        let offsets = &self.params.cq_off;
        let head = Self::word(&self.completion, offsets.head);
        let at = head.load(Ordering::Relaxed);
        if at == Self::word(&self.completion, offsets.tail).load(Ordering::Acquire) {
            return None;
        }
        let position = (at & (self.params.cq_entries - 1)) as usize;
        // SAFETY: the mask keeps `position` within the queue, and the tail says that the kernel has written this
        // completion.
        let completion = unsafe { self.completion.at(offsets.sixth).cast::<Cqe>().add(position).read() };
        head.store(at.wrapping_add(1), Ordering::Release);
        Some(completion)
    }
}
