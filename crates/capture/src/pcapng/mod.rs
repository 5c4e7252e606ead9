//! The file: pcapng (draft-ietf-opsawg-pcapng), little-endian, one section.

pub mod read;

use std::io::{self, Write};

/// Block types.
pub(crate) const SECTION: u32 = 0x0a0d_0d0a;
pub(crate) const INTERFACE: u32 = 1;
pub(crate) const STATISTICS: u32 = 5;
pub(crate) const PACKET: u32 = 6;
pub(crate) const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// `LINKTYPE_ETHERNET`.
const ETHERNET: u16 = 1;

/// Options of all blocks, and of each.
pub(crate) mod option {
    pub const END: u16 = 0;
    pub const COMMENT: u16 = 1;
    pub const SECTION_OS: u16 = 3;
    pub const SECTION_APPLICATION: u16 = 4;
    pub const INTERFACE_NAME: u16 = 2;
    pub const INTERFACE_DESCRIPTION: u16 = 3;
    pub const INTERFACE_RESOLUTION: u16 = 9;
    pub const INTERFACE_FILTER: u16 = 11;
    pub const PACKET_FLAGS: u16 = 2;
    pub const STATISTICS_RECEIVED: u16 = 4;
    pub const STATISTICS_DROPPED: u16 = 5;
}

/// Times are 10^-9 s.
const NANOSECONDS: u8 = 9;
/// `epb_flags`: the direction.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// A captured frame, as the file tells of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    /// Number of its interface, in the order in which they were written.
    pub interface: u32,
    /// When, ns since 1970.
    pub time_ns: u64,
    /// Sent by this host, or received; `None` = it went from one program of this host to another.
    pub outgoing: Option<bool>,
    /// Its length on the wire.
    pub length: u32,
    /// Its first bytes.
    pub bytes: Vec<u8>,
    /// For people; empty = none.
    pub comment: String,
}

/// Where frames were seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its frames, in words.
    pub description: String,
    /// The filter, as the user wrote it; empty = none.
    pub filter: String,
    /// Most bytes of a frame.
    pub snap: u32,
}

/// Bytes that are written together.
const TOGETHER: usize = 256 << 10;

/// Writes a file, block by block.
pub struct Writer<W> {
    out: W,
    /// Room for whole blocks that are not written yet.
    room: Vec<u8>,
    /// How much of it has some.
    filled: usize,
}

/// The options of a frame's block, as they stand in the file. They may be the same for many frames.
pub fn packet_options(comment: &str, outgoing: Option<bool>) -> Vec<u8> {
    let mut options = Vec::new();
    if !comment.is_empty() {
        option(&mut options, option::COMMENT, comment.as_bytes());
    }
    if let Some(outgoing) = outgoing {
        let flags = if outgoing { OUTBOUND } else { INBOUND };
        option(&mut options, option::PACKET_FLAGS, &flags.to_le_bytes());
    }
    option(&mut options, option::END, &[]);
    options
}

/// An option. A longer one than its field can say is cut.
fn option(to: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(u16::MAX.into())];
    to.extend(code.to_le_bytes());
    to.extend((value.len() as u16).to_le_bytes());
    to.extend(value);
    to.extend(padding(value.len()));
}

/// What follows so many bytes.
fn padding(bytes: usize) -> &'static [u8] {
    &[0; 3][..bytes.next_multiple_of(4) - bytes]
}

/// The parts of a block that is seldom written.
struct Block(Vec<u8>);

impl Block {
    fn new(kind: u32) -> Self {
        // The length; `end` knows it.
        Self(kind.to_le_bytes().into_iter().chain([0; 4]).collect())
    }

    fn word(&mut self, word: u32) {
        self.0.extend(word.to_le_bytes());
    }

    fn halves(&mut self, halves: [u16; 2]) {
        self.0.extend(halves.into_iter().flat_map(u16::to_le_bytes));
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        option(&mut self.0, code, value);
    }

    fn end(mut self) -> Vec<u8> {
        self.option(option::END, &[]);
        let length = self.0.len() as u32 + 4;
        self.word(length);
        self.0[4..8].copy_from_slice(&length.to_le_bytes());
        self.0
    }
}

impl<W: Write> Writer<W> {
    /// Begins the file. `application` wrote it.
    pub fn new(out: W, application: &str) -> io::Result<Self> {
        let mut writer = Self { out, room: vec![0; TOGETHER], filled: 0 };
        let mut section = Block::new(SECTION);
        section.word(BYTE_ORDER);
        section.halves([1, 0]);
        // The section's length: not known yet.
        section.0.extend(u64::MAX.to_le_bytes());
        section.option(option::SECTION_OS, b"Linux");
        section.option(option::SECTION_APPLICATION, application.as_bytes());
        writer.block(section)?;
        Ok(writer)
    }

    /// The next interface.
    pub fn interface(&mut self, interface: &Interface) -> io::Result<()> {
        let mut block = Block::new(INTERFACE);
        block.halves([ETHERNET, 0]);
        block.word(interface.snap);
        block.option(option::INTERFACE_NAME, interface.name.as_bytes());
        if !interface.description.is_empty() {
            block.option(option::INTERFACE_DESCRIPTION, interface.description.as_bytes());
        }
        block.option(option::INTERFACE_RESOLUTION, &[NANOSECONDS]);
        if !interface.filter.is_empty() {
            // 0: the filter is text.
            block.option(option::INTERFACE_FILTER, &[&[0], interface.filter.as_bytes()].concat());
        }
        self.block(block)
    }

    /// The next frame, with its [`packet_options`]; all else is as in a [`Packet`].
    #[inline]
    pub fn frame(&mut self, interface: u32, time_ns: u64, length: u32, bytes: &[u8], options: &[u8]) -> io::Result<()> {
        const HEAD: usize = 28;
        let padded = bytes.len().next_multiple_of(4);
        let block_bytes = HEAD + padded + options.len() + 4;
        let words =
            [PACKET, block_bytes as u32, interface, (time_ns >> 32) as u32, time_ns as u32, bytes.len() as u32, length];
        let block = self.next(block_bytes)?;
        let (head, behind) = block.split_at_mut(HEAD);
        head.as_chunks_mut().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_le_bytes());
        let (frame, behind) = behind.split_at_mut(padded);
        // A loop for so few would be a call.
        if let Some(last) = frame.last_chunk_mut::<4>() {
            *last = [0; 4];
        }
        frame[..bytes.len()].copy_from_slice(bytes);
        let (all, end) = behind.split_at_mut(options.len());
        all.copy_from_slice(options);
        end.copy_from_slice(&(block_bytes as u32).to_le_bytes());
        Ok(())
    }

    /// How many frames an interface has seen, and how many of them were lost.
    pub fn statistics(&mut self, interface: u32, time_ns: u64, seen: u64, dropped: u64) -> io::Result<()> {
        let mut block = Block::new(STATISTICS);
        block.word(interface);
        block.word((time_ns >> 32) as u32);
        block.word(time_ns as u32);
        block.option(option::STATISTICS_RECEIVED, &seen.to_le_bytes());
        block.option(option::STATISTICS_DROPPED, &dropped.to_le_bytes());
        self.block(block)
    }

    /// Hands everything written so far to the reader of the file.
    pub fn flush(&mut self) -> io::Result<()> {
        let filled = std::mem::take(&mut self.filled);
        self.out.write_all(&self.room[..filled])?;
        self.out.flush()
    }

    /// Where it is written, with all of it.
    pub fn into_inner(mut self) -> io::Result<W> {
        self.flush()?;
        Ok(self.out)
    }

    fn block(&mut self, block: Block) -> io::Result<()> {
        let block = block.end();
        self.next(block.len())?.copy_from_slice(&block);
        Ok(())
    }

    /// Room for the next block, of so many bytes, behind the others.
    #[inline]
    fn next(&mut self, bytes: usize) -> io::Result<&mut [u8]> {
        if bytes > self.room.len() - self.filled {
            self.make_room(bytes)?;
        }
        let begin = self.filled;
        self.filled += bytes;
        Ok(&mut self.room[begin..begin + bytes])
    }

    #[cold]
    fn make_room(&mut self, bytes: usize) -> io::Result<()> {
        self.flush()?;
        if bytes > self.room.len() {
            self.room.resize(bytes, 0);
        }
        Ok(())
    }
}
