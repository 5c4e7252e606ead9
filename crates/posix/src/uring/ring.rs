//! The program's rings: their descriptors, and where their submission queues are.

use super::Mapping;
use super::abi::{OFF_SQ_RING, OFF_SQES, Params, Sqe, setup};
use crate::fd::table::{self, Descriptor};
use crate::io::user;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use towpath_client::descriptors;
use towpath_client::lock::Lock;
use towpath_client::sys::Sys;

/// The most rings of one process. A program that asks for more is refused them.
const RINGS: usize = 256;

/// One ring. It is never freed, only used for another ring of the program.
pub struct Ring {
    /// One thread at a time looks at the submissions.
    lock: Lock,
    queue: UnsafeCell<Option<Queue>>,
    /// How many descriptors of the program name the ring; 0 = not in use.
    copies: AtomicU32,
    /// A descriptor of the library's own, which the program cannot close.
    own: AtomicI32,
    /// The ring was made with IORING_SETUP_R_DISABLED and is not enabled yet: the kernel takes no entries.
    disabled: AtomicBool,
}

// SAFETY: `queue` is only accessed under the lock.
unsafe impl Sync for Ring {}

static ALL: [Ring; RINGS] = [const {
    Ring {
        lock: Lock::new(),
        queue: UnsafeCell::new(None),
        copies: AtomicU32::new(0),
        own: AtomicI32::new(-1),
        disabled: AtomicBool::new(false),
    }
}; RINGS];

/// The addresses of a submission queue. The program may write there at any time.
pub struct Queue {
    head: *const u32,
    tail: *const u32,
    /// Maps a position to the place of its entry. Null: the place is the position itself (IORING_SETUP_NO_SQARRAY).
    array: *const u32,
    entries: *mut Sqe,
    count: u32,
    /// The distance between entries, in units of [`Sqe`].
    stride: usize,
    /// All entries before this position have been looked at.
    seen: u32,
    /// Copies of the entries that are being looked at, and their addresses.
    copies: Vec<Sqe>,
    places: Vec<*mut Sqe>,
    /// The mappings behind the addresses; none if the program has provided the memory (IORING_SETUP_NO_MMAP).
    _mappings: [Option<Mapping>; 2],
}

impl Queue {
    /// The queue of the ring `fd`, with the parameters that the kernel has filled in.
    pub fn of(fd: i32, params: &Params) -> Sys<Self> {
        let count = params.sq_entries;
        let stride = if params.flags & setup::SQE128 == 0 { 1 } else { 2 };
        let (offsets, has_array) = (&params.sq_off, params.flags & setup::NO_SQARRAY == 0);
        let (ring, entries, mappings) = if params.flags & setup::NO_MMAP == 0 {
            let array = if has_array { offsets.seventh as usize + count as usize * size_of::<u32>() } else { 0 };
            let words = offsets.head.max(offsets.tail) as usize + size_of::<u32>();
            let ring = Mapping::of(fd, OFF_SQ_RING, array.max(words))?;
            let entries = Mapping::of(fd, OFF_SQES, count as usize * stride * size_of::<Sqe>())?;
            (ring.at(0), entries.at(0), [Some(ring), Some(entries)])
        } else {
            (params.cq_off.user_addr as *const u8, offsets.user_addr as *const u8, [None, None])
        };
        let word = |offset: u32| ring.wrapping_add(offset as usize).cast::<u32>();
        Ok(Self {
            head: word(offsets.head),
            tail: word(offsets.tail),
            array: if has_array { word(offsets.seventh) } else { core::ptr::null() },
            entries: entries.cast::<Sqe>().cast_mut(),
            count,
            stride,
            seen: 0,
            copies: Vec::new(),
            places: Vec::new(),
            _mappings: mappings,
        })
    }

    /// Shows `judge` the new entries. `judge` may have some of them replaced.
    fn look(&mut self, judge: impl FnOnce(&[Sqe], &mut dyn FnMut(usize, Sqe))) -> Sys<()> {
        // SAFETY: `user::read` accepts any address, and any bytes are a valid number.
        let (head, tail) = unsafe { (user::read(self.head)?, user::read(self.tail)?) };
        // Another thread of the program may have put the entries there.
        core::sync::atomic::fence(Ordering::Acquire);
        let waiting = tail.wrapping_sub(head);
        if waiting > self.count {
            return Ok(());
        }
        let seen = self.seen.wrapping_sub(head);
        let first = if seen <= waiting { self.seen } else { head };
        self.seen = tail;
        self.copies.clear();
        self.places.clear();
        for ahead in 0..tail.wrapping_sub(first) {
            let mut place = first.wrapping_add(ahead) & (self.count - 1);
            if !self.array.is_null() {
                // SAFETY: `user::read` accepts any address, and any bytes are a valid number.
                place = unsafe { user::read(self.array.wrapping_add(place as usize)) }?;
            }
            if place >= self.count {
                continue;
            }
            let entry = self.entries.wrapping_add(place as usize * self.stride);
            // SAFETY: `user::read` accepts any address, and any bytes are a valid `Sqe`.
            self.copies.push(unsafe { user::read(entry) }?);
            self.places.push(entry);
        }
        let mut put_all = Ok(());
        judge(&self.copies, &mut |at, instead| {
            // SAFETY: `user::write` accepts any address of the program.
            put_all = put_all.and(unsafe { user::write(self.places[at], instead) });
        });
        put_all
    }
}

/// The ring of a number in the descriptor table.
pub fn ring(id: u32) -> &'static Ring {
    &ALL[id as usize % RINGS]
}

/// Records a ring that the kernel has made for the program.
pub fn created(fd: i32, params: &Params) -> Sys<()> {
    let queue = Queue::of(fd, params)?;
    for (id, ring) in ALL.iter().enumerate() {
        if ring.copies.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            continue;
        }
        let made = ring.lock.lock().ok_or(libc::EAGAIN).and_then(|_locked| {
            ring.own.store(descriptors::protected_copy(fd)?, Ordering::Release);
            ring.disabled.store(params.flags & setup::R_DISABLED != 0, Ordering::Relaxed);
            // SAFETY: the lock is held, so nobody else has a reference.
            unsafe { *ring.queue.get() = Some(queue) };
            table::set(fd, Descriptor::Ring(id as u32));
            Ok(())
        });
        return made.inspect_err(|_| ring.copies.store(0, Ordering::Release));
    }
    Err(libc::EMFILE)
}

/// The program has one more descriptor of a ring.
pub fn copied(id: u32) {
    ring(id).copies.fetch_add(1, Ordering::AcqRel);
}

/// The program has one descriptor less of a ring. The last one ends it, and `forget` drops what belongs to it.
pub fn closed(id: u32, forget: impl FnOnce()) {
    let ring = ring(id);
    if ring.copies.load(Ordering::Acquire) == 1 {
        if let Some(_locked) = ring.lock.lock() {
            // SAFETY: the lock is held, so nobody else has a reference.
            unsafe { *ring.queue.get() = None };
        }
        forget();
        let own = ring.own.swap(-1, Ordering::AcqRel);
        if own >= 0 {
            descriptors::unprotect(own);
        }
    }
    ring.copies.fetch_sub(1, Ordering::AcqRel);
}

/// In a forked child: the rings are its parent's.
pub fn forked() {
    for (fd, kind) in table::within(0, u32::MAX) {
        if let Descriptor::Ring(_) = kind {
            table::set(fd, Descriptor::Kernel);
        }
    }
    for ring in &ALL {
        if ring.copies.swap(0, Ordering::Relaxed) == 0 {
            continue;
        }
        ring.lock.reset();
        // The mappings were not inherited (MADV_DONTFORK), so they must not be unmapped.
        // SAFETY: a forked child has one thread.
        core::mem::forget(unsafe { (*ring.queue.get()).take() });
        let own = ring.own.swap(-1, Ordering::Relaxed);
        if own >= 0 {
            descriptors::unprotect(own);
        }
    }
}

impl Ring {
    /// The library's own descriptor of the ring, to which completions are posted.
    pub fn own(&self) -> i32 {
        self.own.load(Ordering::Acquire)
    }

    /// The ring has been enabled: from now on the kernel takes entries.
    pub fn enabled(&self) {
        self.disabled.store(false, Ordering::Relaxed);
    }

    /// Shows `judge` the entries about to be submitted.
    pub fn look(&self, judge: impl FnOnce(&[Sqe], &mut dyn FnMut(usize, Sqe))) {
        if self.disabled.load(Ordering::Relaxed) {
            return;
        }
        let Some(_locked) = self.lock.lock() else { return };
        // SAFETY: the lock is held, so this is the only reference.
        if let Some(queue) = unsafe { &mut *self.queue.get() } {
            // On EFAULT the kernel will find the same, and tell the program.
            let _ = queue.look(judge);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A queue of four entries in the test's own memory.
    struct Memory {
        words: [u32; 2],
        array: [u32; 4],
        entries: [Sqe; 4],
    }

    impl Memory {
        fn new() -> Box<Self> {
            let mut entries = [Sqe::default(); 4];
            entries.iter_mut().zip(0..).for_each(|(entry, number)| entry.user_data = number);
            Box::new(Self { words: [0, 0], array: [0, 1, 2, 3], entries })
        }

        fn queue(&mut self) -> Queue {
            Queue {
                head: &raw const self.words[0],
                tail: &raw const self.words[1],
                array: self.array.as_ptr(),
                entries: self.entries.as_mut_ptr(),
                count: 4,
                stride: 1,
                seen: 0,
                copies: Vec::new(),
                places: Vec::new(),
                _mappings: [None, None],
            }
        }
    }

    fn seen(queue: &mut Queue) -> Vec<u64> {
        let mut seen = Vec::new();
        queue.look(|entries, _| seen.extend(entries.iter().map(|entry| entry.user_data))).unwrap();
        seen
    }

    #[test]
    fn every_submission_is_looked_at_once() {
        let mut memory = Memory::new();
        let mut queue = memory.queue();
        for (head, tail, expected) in [
            (0, 2, vec![0, 1]),
            // The kernel has taken none of them yet; then one.
            (0, 2, vec![]),
            (1, 3, vec![2]),
            (3, 3, vec![]),
            (3, 6, vec![3, 0, 1]),
            // The kernel has gone further than this library has seen.
            (8, 9, vec![0]),
        ] {
            memory.words = [head, tail];
            assert_eq!(seen(&mut queue), expected, "{head} {tail}");
        }
        // Positions wrap around.
        (memory.words, queue.seen) = ([u32::MAX, 1], u32::MAX);
        assert_eq!(seen(&mut queue), [3, 0]);
    }

    #[test]
    fn a_queue_with_impossible_positions_is_looked_at_within_its_bounds() {
        let mut memory = Memory::new();
        let mut queue = memory.queue();
        for words in [[0, 5], [1, 0], [0, u32::MAX], [u32::MAX, 7]] {
            memory.words = words;
            assert_eq!(seen(&mut queue), [], "{words:?}");
        }
        (memory.words, memory.array) = ([0, 4], [4, u32::MAX, 2, 77]);
        assert_eq!(seen(&mut queue), [2]);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_queue_that_is_not_there_is_efault() {
        crate::io::fault::install();
        let mut memory = Memory::new();
        memory.words = [0, 1];
        let nowhere = 64 as *const u32;
        let queue = memory.queue();
        assert_eq!(Queue { head: nowhere, ..queue }.look(|_, _| panic!("nothing to look at")), Err(libc::EFAULT));
        let queue = memory.queue();
        assert_eq!(Queue { array: nowhere, ..queue }.look(|_, _| panic!("nothing to look at")), Err(libc::EFAULT));
        let queue = memory.queue();
        let entries = nowhere.cast::<Sqe>().cast_mut();
        assert_eq!(Queue { entries, ..queue }.look(|_, _| panic!("nothing to look at")), Err(libc::EFAULT));
    }
}
