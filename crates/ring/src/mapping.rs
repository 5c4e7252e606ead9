//! Mappings of shared memory into this process.
//!
//! A region is laid out by pages of 4 KiB on every host, and the kernel's pages may have 16 or 64 KiB. What is done to the kernel's
//! pages is done to those that are touched at all, or, if something is lost by it, to those that are meant as a whole.

use crate::layout::PAGE;
use crate::memory::unsealed_memfd;
use core::ops::Range;
use core::ptr;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use std::io;
use std::sync::Arc;

/// Writes the fields of a header where a new mapping begins. A whole struct would take its padding along, which is old
/// memory of this process, and clients read it.
///
/// The caller vouches that the mapping is page-aligned and longer than the header, and that nobody else in this process has
/// it yet.
macro_rules! put_header {
    ($mapping:expr, $header:ident { $($field:ident: $value:expr),* $(,)? }) => {{
        let at = $mapping.base.cast::<$header>();
        $((&raw mut (*at).$field).write($value);)*
    }};
}
pub(crate) use put_header;

/// Bytes of the kernel's pages, a multiple of [`PAGE`].
pub(crate) fn kernel_page() -> usize {
    // SAFETY: the call takes a number and no memory.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).map_or(PAGE, |bytes| bytes.max(PAGE))
}

/// The addresses of all pages of `page` bytes that have a byte of this range.
fn touched(range: Range<usize>, page: usize) -> Range<usize> {
    range.start / page * page..range.end.next_multiple_of(page)
}

/// The addresses of the pages of `page` bytes that lie in this range. It may end before it begins.
fn whole(range: Range<usize>, page: usize) -> Range<usize> {
    range.start.next_multiple_of(page)..range.end / page * page
}

/// The permitted use of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    ReadWrite,
}

/// A shared mapping of a memfd or a part of one, unmapped on drop. A forked child inherits it.
pub(crate) struct Mapping {
    pub(crate) base: *mut u8,
    bytes: usize,
    /// The mapping that this is a part of.
    whole: Option<Arc<Mapping>>,
}

// SAFETY: the mapping belongs to the process, not to a thread. Its wrappers hand out atomics and copying views only.
unsafe impl Send for Mapping {}
// SAFETY: the wrappers of a mapping hand out atomics and copying views only, which threads may share.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(fd: BorrowedFd<'_>, bytes: usize, access: Access) -> io::Result<Self> {
        Self::part(fd, 0, bytes, access)
    }

    /// Maps from byte `offset` on.
    pub(crate) fn part(fd: BorrowedFd<'_>, offset: u64, bytes: usize, access: Access) -> io::Result<Self> {
        let prot = match access {
            Access::Read => MprotectFlags::READ,
            Access::ReadWrite => MprotectFlags::READ | MprotectFlags::WRITE,
        };
        let mapping = Self { base: fresh(fd, offset, bytes)?, bytes, whole: None };
        mapping.exempt(prot)?;
        Ok(mapping)
    }

    /// Keeps the mapping out of `mlockall`, which would populate it whole, and out of core dumps.
    fn exempt(&self, prot: MprotectFlags) -> io::Result<()> {
        // SAFETY: the range is our own mapping, which nobody uses yet. None of the calls changes what is in it.
        unsafe {
            // An error of either leaves the mapping usable: the memory is locked, or dumped.
            let _ = rustix::mm::munlock(self.base.cast(), self.bytes);
            let _ = rustix::mm::madvise(self.base.cast(), self.bytes, Advice::LinuxDontDump);
            rustix::mm::mprotect(self.base.cast(), self.bytes, prot)?;
        }
        Ok(())
    }

    /// The addresses of its bytes.
    pub(crate) fn addresses(&self) -> Range<usize> {
        self.base.addr()..self.base.addr() + self.bytes
    }

    /// A part of a mapping; `None` = it has no such part.
    pub(crate) fn within(whole: &Arc<Self>, at: usize, bytes: usize) -> Option<Self> {
        at.checked_add(bytes).filter(|end| *end <= whole.bytes && at.is_multiple_of(4096))?;
        Some(Self { base: whole.base.wrapping_add(at), bytes, whole: Some(Arc::clone(whole)) })
    }

    /// Maps another memfd, of the same size, over this one.
    pub(crate) fn replace(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let new = Self { base: fresh(fd, 0, self.bytes)?, bytes: self.bytes, whole: None };
        new.exempt(MprotectFlags::READ | MprotectFlags::WRITE)?;
        // SAFETY: exactly our own mapping is replaced, in one step. It holds atomics and bytes only, which the other side
        // may change at any moment. The new one's own place has no views.
        unsafe {
            rustix::mm::mremap_fixed(new.base.cast(), new.bytes, self.bytes, MremapFlags::MAYMOVE, self.base.cast())?;
        }
        core::mem::forget(new);
        Ok(())
    }

    /// Lets the memory go, and keeps the addresses: from now on they have zeros. For a mapping whose other side is gone, and that a
    /// thread may still look at.
    ///
    /// The zeros are those of a file that nobody else has. Memory of the process alone would count in full where the kernel promises
    /// no more than there is (`vm.overcommit_memory` = 2), and might be refused.
    pub(crate) fn retire(&self) -> io::Result<()> {
        // There may be no descriptor left for it, no room for a second mapping meanwhile, or a limit of the lengths of files.
        if unsealed_memfd("ended", self.bytes).and_then(|zeros| self.replace(zeros.as_fd())).is_ok() {
            return Ok(());
        }
        let (prot, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE);
        // SAFETY: exactly our own mapping is replaced, in one step. It holds atomics and bytes only, which the other side
        // might have changed to the same zeros.
        unsafe { rustix::mm::mmap_anonymous(self.base.cast(), self.bytes, prot, flags)? };
        // Nobody needs it in a core dump.
        // SAFETY: the range is our own mapping, and keeps what is in it.
        let _ = unsafe { rustix::mm::madvise(self.base.cast(), self.bytes, Advice::LinuxDontDump) };
        Ok(())
    }

    /// Touches the pages from byte `from` to byte `to`, both multiples of the page, so that they are charged to this process.
    /// What is in them stays. Kernels before 5.14 cannot do it without a write: there nothing happens. False: they are left to
    /// whoever touches them first.
    pub(crate) fn touch(&self, from: usize, to: usize) -> bool {
        let to = to.min(self.bytes);
        // SAFETY: the pages have bytes of our own mapping, and what is in them stays.
        let touch = |at: Range<usize>| unsafe {
            rustix::mm::madvise(self.at(at.start).cast(), at.len(), Advice::LinuxPopulateWrite).is_ok()
        };
        from >= to || touch(touched(self.base.addr() + from..self.base.addr() + to, kernel_page()))
    }

    /// The byte at this address, which is in a page of the mapping.
    fn at(&self, address: usize) -> *mut u8 {
        self.base.with_addr(address)
    }

    /// Are all pages from byte `from` to byte `to`, both multiples of the page, in memory?
    pub(crate) fn is_resident(&self, from: usize, to: usize) -> bool {
        const AT_ONCE: usize = 256;
        let (to, page, mut resident) = (to.min(self.bytes), kernel_page(), [0u8; AT_ONCE]);
        if from >= to {
            return true;
        }
        let pages = touched(self.base.addr() + from..self.base.addr() + to, page);
        pages.clone().step_by(AT_ONCE * page).all(|at| {
            let bytes = (pages.end - at).min(AT_ONCE * page);
            // SAFETY: the pages have bytes of our own mapping, and the array has a byte for each of them.
            let known = unsafe { libc::mincore(self.at(at).cast(), bytes, resident.as_mut_ptr()) } == 0;
            known && resident[..bytes / page].iter().all(|page| page & 1 != 0)
        })
    }

    /// Gives the pages from byte `from` to byte `to`, both multiples of the page, back to the kernel. Of larger pages of the kernel
    /// those stay that have other bytes, too.
    pub(crate) fn give_back(&self, from: usize, to: usize) {
        let (begin, page) = (self.base.addr(), kernel_page());
        let to = to.min(self.bytes);
        // Nothing is behind a mapping of its own.
        let to = if self.whole.is_none() && to == self.bytes { to.next_multiple_of(page) } else { to };
        let pages = whole(begin + from..begin + to, page);
        if !pages.is_empty() {
            // SAFETY: the pages are those of our own mapping. They hold atomics and bytes only, which the other side may
            // change at any moment. Should it fail, the memory goes with the last mapping.
            let _ = unsafe { rustix::mm::madvise(self.at(pages.start).cast(), pages.len(), Advice::LinuxRemove) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.whole.is_some() {
            return;
        }
        // SAFETY: `base..base + bytes` is our own mapping, and every view of it borrows its owner. An error would mean
        // that it is not mapped any more, which is what is wanted.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.bytes) };
    }
}

/// A mapping that nobody may use yet. Where `mlockall` holds for what is mapped in future, the kernel locks the mapping
/// and populates what may be used.
fn fresh(fd: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<*mut u8> {
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory in use.
    Ok(unsafe { rustix::mm::mmap(ptr::null_mut(), bytes, ProtFlags::empty(), flags, fd, offset)? }.cast())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn of_larger_pages_those_are_touched_that_are_meant_and_those_given_back_that_nobody_else_has() {
        const KIB: usize = 1024;
        for (page, from, to, all, alone) in [
            (4, 8, 20, 8..20, [8, 20]),
            (16, 8, 20, 0..32, [16, 16]),
            (16, 16, 48, 16..48, [16, 48]),
            (16, 20, 28, 16..32, [32, 16]),
            (64, 4, 256, 0..256, [64, 256]),
            (64, 60, 200, 0..256, [64, 192]),
        ] {
            let (range, page) = (from * KIB..to * KIB, page * KIB);
            let [all, alone] = [[all.start, all.end], alone].map(|[start, end]| start * KIB..end * KIB);
            assert_eq!((touched(range.clone(), page), whole(range, page)), (all, alone), "{from} to {to}");
        }
        assert_eq!(kernel_page() % PAGE, 0);
    }

    #[test]
    fn what_is_retired_has_zeros_that_count_as_nobodys_memory() {
        let memfd = unsealed_memfd("used", 2 * PAGE).unwrap();
        let mapping = Mapping::new(memfd.as_fd(), 2 * PAGE, Access::ReadWrite).unwrap();
        // SAFETY: the mapping has the byte, and nothing else refers to it.
        let byte = || unsafe { mapping.base.add(PAGE).read_volatile() };
        // SAFETY: as above.
        let write = |value| unsafe { mapping.base.add(PAGE).write_volatile(value) };
        write(7);
        mapping.retire().unwrap();
        assert_eq!(byte(), 0);
        write(8);
        assert_eq!(byte(), 8, "a late thread may write");
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let own = maps.lines().find(|line| line.starts_with(&format!("{:x}-", mapping.base.addr()))).unwrap();
        // The kernel promises memory for private mappings that can be written to, and for no others of this kind.
        assert!(own.contains(" rw-s "), "{own}");
    }

    #[test]
    fn a_part_lies_inside_its_whole_and_begins_with_a_page() {
        let memfd = unsealed_memfd("whole", 4 * PAGE).unwrap();
        let whole = Arc::new(Mapping::new(memfd.as_fd(), 4 * PAGE, Access::ReadWrite).unwrap());
        for (at, bytes, is) in [
            (0, 4 * PAGE, true),
            (PAGE, 3 * PAGE, true),
            (PAGE, 3 * PAGE + 1, false),
            (4 * PAGE, 0, true),
            (5 * PAGE, 0, false),
            (64, PAGE, false),
            (PAGE, usize::MAX, false),
        ] {
            let part = Mapping::within(&whole, at, bytes);
            assert_eq!(part.is_some(), is, "{bytes} bytes from {at}");
            assert!(part.is_none_or(|part| part.base.addr() == whole.base.addr() + at));
        }
    }
}
