//! What a capture writes: frames in the order of their times, each with the names of the programs at its ends.

use crate::held::Held;
use crate::memory::Reader;
use crate::names::Names;
use crate::pcapng::Writer;
use crate::record::{Kind, Name};
use std::io::{self, Write};

/// The file, and what is to be written.
pub struct Sheet<W> {
    writer: Writer<W>,
    names: Names,
    held: Held,
    /// The interface of the file for frames that no port has, behind those of the ports.
    last: u32,
    most: u64,
    frames: u64,
    bytes: u64,
}

impl<W: Write> Sheet<W> {
    /// Of a file that has begun, with so many interfaces. No more than `most` frames are written.
    pub fn new(writer: Writer<W>, interfaces: usize, most: Option<u64>) -> Self {
        let (last, most) = (interfaces.saturating_sub(1) as u32, most.unwrap_or(u64::MAX));
        Self { writer, names: Names::default(), held: Held::default(), last, most, frames: 0, bytes: 0 }
    }

    /// Takes what the service has left, as long as there is room. True: there is something to write.
    pub fn take(&mut self, reader: &mut Reader) -> bool {
        let Self { names, held, .. } = self;
        for ring in 0..reader.rings() {
            held.take(reader, ring, |name| Name::decode(name).into_iter().for_each(|name| names.told(name)));
        }
        !held.is_empty()
    }

    /// Writes the frames that were seen before `due_ns`, in the order of their times. If too many wait, all of them.
    pub fn write(&mut self, due_ns: u64) -> io::Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        let Self { writer, names, held, last, most, frames, bytes } = self;
        held.write(due_ns, |header, frame| {
            if !matches!(header.kind, Kind::Frame { .. }) || *frames >= *most {
                return Ok(());
            }
            *frames += 1;
            *bytes += frame.len() as u64;
            let interface = u32::from(header.place).min(*last);
            writer.frame(interface, header.time_ns, header.length, frame, names.options(&header, frame))
        })?;
        // A viewer shows what is there.
        writer.flush()
    }

    /// The frames written, and their bytes.
    pub fn written(&self) -> (u64, u64) {
        (self.frames, self.bytes)
    }

    /// Are as many written as are wanted?
    pub fn is_full(&self) -> bool {
        self.frames >= self.most
    }

    /// Ends the file with the counts of all interfaces: frames that the filter has let through, and those of them that were lost.
    pub fn end(&mut self, time_ns: u64, matched: u64, dropped: u64) -> io::Result<()> {
        self.writer.statistics(0, time_ns, matched, dropped)?;
        self.writer.flush()
    }

    /// Where it is written.
    pub fn into_inner(self) -> io::Result<W> {
        self.writer.into_inner()
    }
}
