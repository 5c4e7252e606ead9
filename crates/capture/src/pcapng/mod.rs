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
    /// What is not written yet: whole blocks, and the one that is made.
    blocks: Vec<u8>,
    /// Where that one begins.
    begin: usize,
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

impl<W: Write> Writer<W> {
    /// Begins the file. `application` wrote it.
    pub fn new(out: W, application: &str) -> io::Result<Self> {
        let mut writer = Self { out, blocks: Vec::with_capacity(TOGETHER), begin: 0 };
        writer.begin(SECTION);
        writer.word(BYTE_ORDER);
        writer.halves([1, 0]);
        // The section's length: not known yet.
        writer.blocks.extend(u64::MAX.to_le_bytes());
        writer.option(option::SECTION_OS, b"Linux");
        writer.option(option::SECTION_APPLICATION, application.as_bytes());
        writer.end()?;
        Ok(writer)
    }

    /// The next interface.
    pub fn interface(&mut self, interface: &Interface) -> io::Result<()> {
        self.begin(INTERFACE);
        self.halves([ETHERNET, 0]);
        self.word(interface.snap);
        self.option(option::INTERFACE_NAME, interface.name.as_bytes());
        if !interface.description.is_empty() {
            self.option(option::INTERFACE_DESCRIPTION, interface.description.as_bytes());
        }
        self.option(option::INTERFACE_RESOLUTION, &[NANOSECONDS]);
        if !interface.filter.is_empty() {
            // 0: the filter is text.
            self.option(option::INTERFACE_FILTER, &[&[0], interface.filter.as_bytes()].concat());
        }
        self.end()
    }

    /// The next frame, with its [`packet_options`]; all else is as in a [`Packet`].
    pub fn frame(&mut self, interface: u32, time_ns: u64, length: u32, bytes: &[u8], options: &[u8]) -> io::Result<()> {
        const HEAD: usize = 28;
        let padding = padding(bytes.len());
        let block_bytes = (HEAD + bytes.len() + padding.len() + options.len() + 4) as u32;
        let words =
            [PACKET, block_bytes, interface, (time_ns >> 32) as u32, time_ns as u32, bytes.len() as u32, length];
        let mut head = [0; HEAD];
        head.as_chunks_mut().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_le_bytes());
        self.blocks.reserve(block_bytes as usize);
        for part in [&head[..], bytes, padding, options, &block_bytes.to_le_bytes()] {
            self.blocks.extend_from_slice(part);
        }
        self.ended()
    }

    /// How many frames an interface has seen, and how many of them were lost.
    pub fn statistics(&mut self, interface: u32, time_ns: u64, seen: u64, dropped: u64) -> io::Result<()> {
        self.begin(STATISTICS);
        self.word(interface);
        self.word((time_ns >> 32) as u32);
        self.word(time_ns as u32);
        self.option(option::STATISTICS_RECEIVED, &seen.to_le_bytes());
        self.option(option::STATISTICS_DROPPED, &dropped.to_le_bytes());
        self.end()
    }

    /// Hands everything written so far to the reader of the file.
    pub fn flush(&mut self) -> io::Result<()> {
        let written = self.out.write_all(&self.blocks);
        self.blocks.clear();
        written.and_then(|()| self.out.flush())
    }

    /// Where it is written, with all of it.
    pub fn into_inner(mut self) -> io::Result<W> {
        self.flush()?;
        Ok(self.out)
    }

    fn begin(&mut self, kind: u32) {
        self.begin = self.blocks.len();
        self.word(kind);
        // The length; `end` knows it.
        self.word(0);
    }

    fn word(&mut self, word: u32) {
        self.blocks.extend(word.to_le_bytes());
    }

    fn halves(&mut self, halves: [u16; 2]) {
        self.blocks.extend(halves[0].to_le_bytes());
        self.blocks.extend(halves[1].to_le_bytes());
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        option(&mut self.blocks, code, value);
    }

    fn end(&mut self) -> io::Result<()> {
        self.option(option::END, &[]);
        let length = (self.blocks.len() - self.begin) as u32 + 4;
        self.word(length);
        self.blocks[self.begin + 4..][..4].copy_from_slice(&length.to_le_bytes());
        self.ended()
    }

    /// A block is whole.
    fn ended(&mut self) -> io::Result<()> {
        if self.blocks.len() < TOGETHER { Ok(()) } else { self.flush() }
    }
}
