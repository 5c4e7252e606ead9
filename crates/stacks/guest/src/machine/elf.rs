//! The segments of a 64-bit ELF file.

/// A segment to load.
pub const LOAD: u32 = 1;
/// The name of the program's loader.
pub const INTERPRETER: u32 = 3;
/// Notes to the program's loader.
pub const NOTE: u32 = 4;

/// A segment.
pub struct Segment {
    /// [`LOAD`], [`INTERPRETER`], [`NOTE`] or another.
    pub kind: u32,
    /// Offset in the file, bytes.
    pub offset: usize,
    /// Length in the file, bytes.
    pub size: usize,
}

/// The segments of a file; `None` if it is no ELF file, or cut off.
pub fn segments(file: &[u8]) -> Option<Vec<Segment>> {
    let u16_at = |at: usize| file.get(at..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes) as usize);
    let u32_at = |at: usize| file.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    let u64_at = |at: usize| file.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes) as usize);
    file.starts_with(b"\x7fELF\x02").then_some(())?;
    // e_phoff, e_phentsize, e_phnum; then p_type, p_offset and p_filesz of each.
    let (table, size, count) = (u64_at(32)?, u16_at(54)?, u16_at(56)?);
    let segment = |number: usize| {
        let entry = table.checked_add(number * size)?;
        let (offset, size) = (u64_at(entry.checked_add(8)?)?, u64_at(entry.checked_add(32)?)?);
        let kind = u32_at(entry)?;
        (offset.checked_add(size)? <= file.len()).then_some(Segment { kind, offset, size })
    };
    (0..count).map(segment).collect()
}
