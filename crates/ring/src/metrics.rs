//! Counters that the service shows to other programs: a region of their own, written by the service, mapped read-only
//! by readers. The names travel with it, so a reader needs to know no counter.
//!
//! | offset | what |
//! |---|---|
//! | 0 | [`MetricsHeader`] |
//! | 64 | names, UTF-8, one a line, `names_bytes` of at most 8192 bytes |
//! | 8256 | zeros |
//! | 12288 | row 0: `words_per_row` 64-bit words; then every other row, each at a multiple of 128 bytes |

use crate::MapError;
use crate::mapping::{Access, Mapping, put_header};
use crate::memory::{SEALS, check_sealed, unsealed_memfd};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::SealFlags;

/// First bytes of every metrics region.
pub const METRICS_MAGIC: [u8; 8] = *b"TOWPMTR\0";
/// Version of the format.
pub const METRICS_VERSION: u32 = 1;
/// Most bytes of names.
pub const NAMES_BYTES: usize = 8192;
/// Most arrays of words.
pub const MAX_ROWS: u32 = 256;
/// Most words of one row.
pub const MAX_WORDS: u32 = 4096;

const NAMES: usize = size_of::<MetricsHeader>();
const WORDS: usize = 12_288;
const _: () = assert!(NAMES + NAMES_BYTES <= WORDS);

/// The first 64 bytes.
#[repr(C, align(64))]
pub struct MetricsHeader {
    /// [`METRICS_MAGIC`].
    pub magic: [u8; 8],
    /// [`METRICS_VERSION`].
    pub version: u32,
    /// How many arrays there are: one per thread of the stack that counts.
    pub rows: u32,
    /// Words of each array.
    pub words_per_row: u32,
    /// Bytes of names; stored when they are complete.
    pub names_bytes: AtomicU32,
}

/// The sizes, and what follows from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    rows: u32,
    words: u32,
}

impl Shape {
    fn new(rows: u32, words: u32) -> Result<Self, MapError> {
        if !(1..=MAX_ROWS).contains(&rows) || !(1..=MAX_WORDS).contains(&words) {
            return Err(MapError::Format("metrics need 1 to 256 rows and 1 to 4096 words"));
        }
        Ok(Self { rows, words })
    }

    /// Bytes from one row's words to the next one's: whole pairs of cache lines.
    fn stride(self) -> usize {
        (8 * self.words as usize).next_multiple_of(128)
    }

    fn total(self) -> usize {
        (WORDS + self.rows as usize * self.stride()).next_multiple_of(4096)
    }

    /// The words of one row in a mapping of this shape.
    fn row(self, mapping: &Mapping, row: u32) -> Option<&[AtomicU64]> {
        if row >= self.rows {
            return None;
        }
        // SAFETY: `row` is in range, so its words are inside the mapping of `total` bytes. They are aligned to 128 and
        // only used atomically. Where the mapping is read-only they are only loaded, because `MetricsReader` hands out
        // values.
        Some(unsafe {
            let first = mapping.base.add(WORDS + row as usize * self.stride()).cast::<AtomicU64>();
            core::slice::from_raw_parts(first, self.words as usize)
        })
    }
}

/// The service's side.
pub struct MetricsRegion {
    mapping: Mapping,
    shape: Shape,
}

impl MetricsRegion {
    /// Makes a region of zeros. The descriptor can be given to anybody, because nobody can make a writable mapping of
    /// it any more.
    pub fn create(rows: u32, words_per_row: u32) -> Result<(Self, OwnedFd), MapError> {
        let shape = Shape::new(rows, words_per_row)?;
        let memfd = unsealed_memfd("towpath-metrics", shape.total())?;
        let mapping = Mapping::new(memfd.as_fd(), shape.total(), Access::ReadWrite)?;
        // SAFETY: the mapping is page-aligned and longer than the header, and nobody else has it yet.
        unsafe {
            put_header!(
                mapping,
                MetricsHeader {
                    magic: METRICS_MAGIC,
                    version: METRICS_VERSION,
                    rows: rows,
                    words_per_row: words_per_row,
                    names_bytes: AtomicU32::new(0)
                }
            )
        };
        rustix::fs::fcntl_add_seals(&memfd, SEALS | SealFlags::FUTURE_WRITE).map_err(std::io::Error::from)?;
        Ok((Self { mapping, shape }, memfd))
    }

    /// Writes the names of the words of a row, in their order. To be called before readers come.
    pub fn set_names(&mut self, names: &[&str]) -> Result<(), MapError> {
        let text = names.join("\n");
        if text.len() > NAMES_BYTES || names.len() > self.shape.words as usize {
            return Err(MapError::Format("more names of metrics than fit"));
        }
        if names.iter().any(|name| name.is_empty() || name.contains('\n')) {
            return Err(MapError::Format("a metric's name is empty or has a line break"));
        }
        let length = &self.header().names_bytes;
        length.store(0, Ordering::Relaxed);
        // SAFETY: `NAMES_BYTES` are mapped at `NAMES`, and `&mut self` makes us the only writer.
        unsafe { core::ptr::copy_nonoverlapping(text.as_ptr(), self.mapping.base.add(NAMES), text.len()) };
        length.store(text.len() as u32, Ordering::Release);
        Ok(())
    }

    /// Word `i` of `row`. One thread may write it.
    pub fn word(&self, row: u32, i: u32) -> Option<&AtomicU64> {
        self.row(row)?.get(i as usize)
    }

    /// All words of `row`.
    pub fn row(&self, row: u32) -> Option<&[AtomicU64]> {
        self.shape.row(&self.mapping, row)
    }

    /// A reader's view, for which size, seals and header are checked.
    pub fn map_readonly(fd: BorrowedFd<'_>) -> Result<MetricsReader, MapError> {
        MetricsReader::map(fd)
    }

    fn header(&self) -> &MetricsHeader {
        // SAFETY: the header is mapped as long as `self`; its only word that changes is an atomic.
        unsafe { &*self.mapping.base.cast() }
    }
}

/// A reader's side.
pub struct MetricsReader {
    mapping: Mapping,
    shape: Shape,
}

impl MetricsReader {
    /// Maps a metrics region.
    pub fn map(fd: BorrowedFd<'_>) -> Result<Self, MapError> {
        // The seals are checked first, so that the size cannot change between the check and the use.
        let bytes = check_sealed(fd)?;
        if bytes < WORDS {
            return Err(MapError::Format("no metrics region"));
        }
        let mapping = Mapping::new(fd, bytes, Access::Read)?;
        // SAFETY: the header is mapped and aligned, every bit pattern is one; a volatile copy is then checked.
        let header = unsafe { mapping.base.cast::<MetricsHeader>().read_volatile() };
        if header.magic != METRICS_MAGIC {
            return Err(MapError::Format("no metrics region"));
        }
        if header.version != METRICS_VERSION {
            return Err(MapError::Format("metrics of another version"));
        }
        let shape = Shape::new(header.rows, header.words_per_row)?;
        if shape.total() != bytes {
            return Err(MapError::Format("its size is not the announced one"));
        }
        Ok(Self { mapping, shape })
    }

    /// How many arrays of words there are.
    pub fn rows(&self) -> u32 {
        self.shape.rows
    }

    /// Words of each array.
    pub fn words_per_row(&self) -> u32 {
        self.shape.words
    }

    /// The names of the words that have one, in the words' order.
    pub fn names(&self) -> Vec<String> {
        // SAFETY: the header is mapped as long as `self`; `names_bytes` is an atomic.
        let length = unsafe { &(*self.mapping.base.cast::<MetricsHeader>()).names_bytes };
        let mut text = vec![0; (length.load(Ordering::Acquire) as usize).min(NAMES_BYTES)];
        // SAFETY: `NAMES_BYTES` are mapped at `NAMES`; `text` is no longer than that.
        unsafe { core::ptr::copy_nonoverlapping(self.mapping.base.add(NAMES), text.as_mut_ptr(), text.len()) };
        String::from_utf8_lossy(&text).lines().take(self.shape.words as usize).map(String::from).collect()
    }

    /// The value of word `i` of `row`.
    pub fn word(&self, row: u32, i: u32) -> Option<u64> {
        Some(self.shape.row(&self.mapping, row)?.get(i as usize)?.load(Ordering::Relaxed))
    }
}
