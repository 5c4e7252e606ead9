//! The memory of all threads, and who has which part of it.

use crate::HERE;
use crate::event::Event;
use crate::reasons;
use crate::row::Row;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// What comes before the rows.
#[repr(C, align(4096))]
struct Head {
    /// The area of the process that serves: 0 or 1.
    area: AtomicU32,
    /// Rows that threads of each area have taken.
    taken: [AtomicU32; 2],
}

struct Memory {
    /// Of all of it.
    bytes: usize,
    head: &'static Head,
    /// Those of one area, then those of the other.
    rows: &'static [Row],
}

static MEMORY: OnceLock<Memory> = OnceLock::new();

/// Whose events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Those of the process that serves.
    Own,
    /// Those of the one before it.
    Predecessor,
}

/// What a thread has recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Its name.
    pub thread: String,
    /// The events, the newest last.
    pub events: Vec<Event>,
}

/// Makes memory for so many threads, which all processes share that are forked while [`inherit`] says so. It is called once, before
/// the first thread. Pages that nobody writes take no memory. `reasons`: names of those for which frames are dropped.
pub fn open(threads: usize, reasons: &'static [&'static str]) -> io::Result<()> {
    let count = 2 * threads;
    let (bytes, rights) = (size_of::<Head>() + count * size_of::<Row>(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: new memory overlaps nothing.
    let base = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, rights, MapFlags::SHARED)? };
    // SAFETY: the memory is aligned to a page, long enough for the head and `count` rows behind it, and never unmapped. Head and
    // rows are made of atomic words, for which all bits are valid, and are aligned to 8 bytes.
    let (head, rows) = unsafe {
        let first = base.cast::<u8>().add(size_of::<Head>()).cast::<Row>();
        (&*base.cast::<Head>(), std::slice::from_raw_parts(first, count))
    };
    let _ = MEMORY.set(Memory { bytes, head, rows });
    reasons::set(reasons);
    inherit(false)
}

/// From now on, do processes that this one forks have the memory? At first they do not: what a process has, it can write.
pub fn inherit(yes: bool) -> io::Result<()> {
    let Some(memory) = MEMORY.get() else { return Ok(()) };
    let advice = if yes { Advice::LinuxDoFork } else { Advice::LinuxDontFork };
    let base = std::ptr::from_ref(memory.head).cast_mut().cast();
    // SAFETY: this process keeps the memory, whatever the advice. One that is forked without it runs no code that uses it: it
    // neither serves nor records.
    unsafe { madvise(base, memory.bytes, advice) }.map_err(io::Error::from)
}

impl Memory {
    /// The area of this process, or the other.
    fn area(&self, which: Which) -> usize {
        let own = (self.head.area.load(Ordering::Relaxed) & 1) as usize;
        if which == Which::Own { own } else { 1 - own }
    }
    fn rows(&self, area: usize) -> &'static [Row] {
        let (first, second) = self.rows.split_at(self.rows.len() / 2);
        if area == 0 { first } else { second }
    }
    /// The rows that threads have taken.
    fn taken(&self, area: usize) -> &'static [Row] {
        let rows = self.rows(area);
        &rows[..rows.len().min(self.head.taken[area].load(Ordering::Acquire) as usize)]
    }
}

/// This process serves from now on. It has the area that the process before it has not had. It is called before its first thread.
pub fn take_over() {
    let Some(memory) = MEMORY.get() else { return };
    let area = memory.area(Which::Predecessor);
    memory.taken(area).iter().for_each(Row::clear);
    memory.head.taken[area].store(0, Ordering::Relaxed);
    memory.head.area.store(area as u32, Ordering::Release);
}

/// This thread records from now on, under this name of 16 bytes at most. With more threads than were planned it does not.
pub fn begin(name: &str) {
    let Some(memory) = MEMORY.get() else { return };
    let area = memory.area(Which::Own);
    let number = memory.head.taken[area].fetch_add(1, Ordering::Relaxed) as usize;
    if let Some(row) = memory.rows(area).get(number) {
        row.begin(name);
        HERE.with(|here| here.row.set(Some(row)));
    }
}

/// What the threads have recorded.
pub fn read(which: Which) -> Vec<Recorded> {
    let Some(memory) = MEMORY.get() else { return Vec::new() };
    let rows = memory.taken(memory.area(which)).iter();
    rows.map(|row| Recorded { thread: row.name(), events: row.events() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does a process that is forked now have the memory?
    fn a_child_has_it() -> bool {
        let base = std::ptr::from_ref(MEMORY.get().unwrap().head).cast_mut().cast();
        let mut status = 0;
        // SAFETY: the child makes two system calls. The pointers are to memory that outlives the calls; mincore(2) reads no memory
        // at `base` and writes one byte for its page.
        unsafe {
            match libc::fork() {
                0 => {
                    let mut page = [0_u8; 1];
                    libc::_exit(i32::from(libc::mincore(base, 4096, page.as_mut_ptr()) == 0));
                }
                child => assert_eq!(libc::waitpid(child, &raw mut status, 0), child),
            }
        }
        assert!(libc::WIFEXITED(status));
        libc::WEXITSTATUS(status) == 1
    }

    #[test]
    fn only_a_process_that_is_to_have_the_memory_inherits_it() {
        inherit(true).unwrap();
        open(1, &[]).unwrap();
        assert!(!a_child_has_it());
        inherit(true).unwrap();
        assert!(a_child_has_it());
        inherit(false).unwrap();
        assert!(!a_child_has_it());
        read(Which::Own);
    }
}
