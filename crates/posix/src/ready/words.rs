//! The data words by which the kernel names the kernel halves of watched listeners in native sets.
//!
//! A word is the address of a record in one array, so it is no word of the program's. The array is shared with forked
//! children. An epoll descriptor that is inherited over `fork` is the same object of the kernel. So its words mean the
//! same to all processes that wait on it.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::Once;
use towpath_client::{process, sys};

/// The most halves that a program and its forked children watch.
const RECORDS: usize = 16_384;

/// One watched half.
struct Record {
    /// The process that has made it; 0 = not in use.
    owner: AtomicU32,
    /// The program's data.
    data: AtomicU64,
}

/// The array's address; 0 = there is none yet.
static BASE: AtomicUsize = AtomicUsize::new(0);
/// Where the next search begins, so that a word that has ended is not used again soon.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The array, if there is one.
fn records() -> Option<&'static [Record]> {
    let base = BASE.load(Ordering::Acquire);
    // SAFETY: `made` has mapped this many zeroed records, which is a valid value, for good.
    (base != 0).then(|| unsafe { core::slice::from_raw_parts(base as *const Record, RECORDS) })
}

fn made() -> Option<&'static [Record]> {
    static MADE: Once = Once::new();
    MADE.call_once(|| {
        let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
        let at = unsafe { libc::mmap(core::ptr::null_mut(), RECORDS * size_of::<Record>(), access, shared, -1, 0) };
        if at != libc::MAP_FAILED {
            BASE.store(at.expose_provenance(), Ordering::Release);
        }
    });
    records()
}

fn record(word: u64) -> Option<&'static Record> {
    let base = BASE.load(Ordering::Acquire) as u64;
    records()?.get(word.checked_sub(base)? as usize / size_of::<Record>())
}

/// Is this the word of a half rather than data of the program?
pub fn is_word(data: u64) -> bool {
    record(data).is_some()
}

/// A word for a half with this data. `None`: there are too many.
pub fn claim(data: u64) -> Option<u64> {
    let records = made()?;
    let first = NEXT.fetch_add(1, Ordering::Relaxed);
    let own = process::pid() as u32;
    let take = |ended: &dyn Fn(u32) -> bool| {
        (0..RECORDS).map(|at| &records[first.wrapping_add(at) % RECORDS]).find(|record| {
            let owner = record.owner.load(Ordering::Relaxed);
            ended(owner) && record.owner.compare_exchange(owner, own, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    };
    let record = take(&|owner| owner == 0).or_else(|| take(&|owner| !sys::alive(owner as i32)))?;
    record.data.store(data, Ordering::Release);
    Some(core::ptr::from_ref(record) as u64)
}

/// A half is no longer watched. Only the process that has made the word gives it back.
pub fn release(word: u64) {
    if let Some(record) = record(word) {
        let own = process::pid() as u32;
        let _ = record.owner.compare_exchange(own, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// The program's data for a half that any of the processes watches.
pub fn data_of(word: u64) -> Option<u64> {
    record(word).filter(|record| record.owner.load(Ordering::Relaxed) != 0).map(|it| it.data.load(Ordering::Acquire))
}

/// Changes the data.
pub fn set_data(word: u64, data: u64) {
    if let Some(record) = record(word) {
        record.data.store(data, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_known_until_it_is_released_and_no_other_number_is_one() {
        assert!(!is_word(0) && !is_word(u64::MAX) && !is_word(1 << 20));
        let words = [claim(7), claim(8)].map(|word| word.expect("there is room"));
        assert_ne!(words[0], words[1]);
        assert_eq!(words.map(data_of), [Some(7), Some(8)]);
        set_data(words[0], 9);
        assert_eq!(words.map(data_of), [Some(9), Some(8)]);
        release(words[0]);
        assert_eq!(words.map(data_of), [None, Some(8)]);
        assert!(is_word(words[0]), "a late event is not taken for the program's");
        release(words[1]);
    }
}
