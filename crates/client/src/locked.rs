//! `mlockall` without the regions and pair regions. Most of a region is never touched, and locking it would make all of it real memory.

use crate::session;
use core::ops::Range;
use libc::{MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT, MLOCK_ONFAULT, c_int, c_void};
use towpath_hook::{outcome, real};

/// The names of mappings that are shared with the service or with a pair's other client.
const OURS: &str = "/memfd:towpath-";
/// Not a part of the process's memory, although the list of mappings has it.
const KERNELS: &str = "[vsyscall]";

/// The process's mappings: those of the library that must not be locked, and all others.
#[derive(Default)]
struct Mappings {
    ours: Vec<Range<usize>>,
    others: Vec<Range<usize>>,
}

impl Mappings {
    /// This process's; `None` if `/proc` is not there.
    fn now(regions: &[Range<usize>]) -> Option<Self> {
        Some(Self::of(&std::fs::read_to_string("/proc/self/maps").ok()?, regions))
    }

    /// `list` has the form of `/proc/self/maps`. `regions` are the library's mappings that have no name of their own.
    fn of(list: &str, regions: &[Range<usize>]) -> Self {
        let mut found = Self::default();
        for line in list.lines().filter(|line| !line.ends_with(KERNELS)) {
            let Some(addresses) = line.split(' ').next().and_then(addresses) else { continue };
            let is_region = regions.iter().any(|region| region.start < addresses.end && addresses.start < region.end);
            let list = if is_region || line.contains(OURS) { &mut found.ours } else { &mut found.others };
            list.push(addresses);
        }
        found
    }
}

/// `from-to`, in hexadecimal digits.
fn addresses(text: &str) -> Option<Range<usize>> {
    let (from, to) = text.split_once('-')?;
    Some(usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?)
}

fn call(flags: c_int) -> Result<c_int, i32> {
    // SAFETY: numbers only. What is locked stays what it is.
    outcome(unsafe { real::mlockall(flags) })
}

fn unlock(range: &Range<usize>) {
    // SAFETY: what is unlocked stays what it is. An error would mean that nothing is mapped there any more.
    unsafe { libc::munlock(range.start as *const c_void, range.len()) };
}

/// Is it within the limit of memory that the process may lock?
fn is_permitted(bytes: usize) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is the structure that the call fills in.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) == 0 && bytes as u64 <= limit.rlim_cur }
}

/// `mlockall`. `kept`: more of the library's mappings that are left out. A region may lie in a guest's memory, so it is
/// known by its address.
pub fn lock_all(flags: c_int, kept: impl IntoIterator<Item = Range<usize>>) -> Result<c_int, i32> {
    let regions: Vec<_> = session::all().map(|session| session.region.addresses()).chain(kept).collect();
    let known = MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT;
    if flags & MCL_CURRENT == 0 || flags & !known != 0 || regions.is_empty() {
        // What holds for the future is no concern of a region's mapping. The kernel refuses wrong flags.
        call(flags)
    } else if let Some(mappings) = Mappings::now(&regions) {
        lock(flags, mappings, &regions)
    } else {
        // The rest of the memory is then locked page by page, when it is touched.
        call(flags | MCL_ONFAULT).inspect(|_| regions.iter().for_each(unlock))
    }
}

fn lock(flags: c_int, mut mappings: Mappings, regions: &[Range<usize>]) -> Result<c_int, i32> {
    let permitted = is_permitted(mappings.others.iter().map(Range::len).sum());
    if !permitted {
        // Only the kernel knows who may exceed the limit. Without its leave nothing is locked. No page comes by this.
        call(flags | MCL_ONFAULT)?;
        mappings.ours.iter().for_each(unlock);
    }
    if flags & MCL_FUTURE != 0 {
        call(flags & !MCL_CURRENT)?;
        // Another thread may have mapped memory before this took hold.
        mappings = Mappings::now(regions).unwrap_or(mappings);
    } else if permitted {
        // An earlier MCL_FUTURE ends with a call that does not name it.
        // SAFETY: no arguments. What is unlocked stays what it is.
        unsafe { libc::munlockall() };
    }
    let on_fault = if flags & MCL_ONFAULT != 0 { MLOCK_ONFAULT as c_int } else { 0 };
    for range in &mappings.others {
        // Memory that cannot be had is no error of `mlockall` either.
        // SAFETY: what is locked stays what it is.
        unsafe { libc::syscall(libc::SYS_mlock2, range.start, range.len(), on_fault) };
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_the_library_are_told_from_the_programs() {
        let list = "\
55d0c0000000-55d0c0001000 r--p 00000000 08:01 123                        /usr/bin/program
7f0000000000-7f0000100000 rw-s 00000000 00:01 456                        /memfd:towpath-pair (deleted)
7f0000100000-7f0000200000 rw-s 00000000 00:01 457                        /dev/shm/guest
7f0000200000-7f0000201000 rw-p 00000000 00:00 0\x20
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";
        let region = 0x7f00_0010_0000..0x7f00_0018_0000;
        let Mappings { ours, others } = Mappings::of(list, &[region]);
        assert_eq!(ours, [0x7f00_0000_0000..0x7f00_0010_0000, 0x7f00_0010_0000..0x7f00_0020_0000]);
        assert_eq!(others, [0x55d0_c000_0000..0x55d0_c000_1000, 0x7f00_0020_0000..0x7f00_0020_1000]);
    }
}
