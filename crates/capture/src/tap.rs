//! The work of a stack's thread on a frame while somebody captures.

use crate::filter::{Filter, ThreadFilter};
use crate::memory::Writer;
use crate::record::{Header, Kind, Name};
use std::io::IoSliceMut;
use std::time::{SystemTime, UNIX_EPOCH};

/// Most bytes of a frame that a capture takes.
pub const MOST_SNAP: u32 = 262_144;

/// The operator's wish for a capture.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Only frames that this lets through.
    pub filter: Option<Filter>,
    /// Most bytes of a frame.
    pub snap: u32,
    /// Bytes of memory for frames that are not yet read.
    pub bytes: u64,
}

/// Filters frames, cuts them, and leaves them in the memory.
pub struct Tap {
    writer: Writer,
    filter: ThreadFilter,
    snap: u32,
}

impl Tap {
    /// A tap into this ring.
    pub fn new(writer: Writer, wish: &Wish) -> Self {
        Self { writer, filter: ThreadFilter::new(wish.filter.as_ref()), snap: wish.snap.min(MOST_SNAP) }
    }

    /// So many frames with these headers are lost.
    pub fn lost(&mut self, frames: u64, like: &[u8]) {
        if self.filter.wanted(0, false, like) > 0 {
            self.writer.lose_seen(frames);
        }
    }

    /// A frame at this place has been sent or received.
    pub fn frame(&mut self, place: u16, outgoing: bool, time_ns: u64, bytes: &[u8]) {
        let wanted = self.filter.wanted(place, outgoing, bytes);
        if wanted != 0 {
            self.keep(place, outgoing, time_ns, bytes, wanted);
        }
    }

    /// So have all of these. They are left as they are.
    #[inline]
    pub fn frames(&mut self, place: u16, outgoing: bool, frames: &mut [IoSliceMut<'_>]) {
        if self.filter.searches() {
            // One that matches nothing is the usual case.
            let found = self.filter.search(place, frames);
            if found < frames.len() {
                self.keep_found(place, outgoing, &mut frames[found..]);
            }
        } else {
            let time_ns = now_ns();
            frames.iter().for_each(|frame| self.frame(place, outgoing, time_ns, frame));
        }
    }

    /// Keeps the first one of these frames, and those behind it that the filter finds.
    #[inline(never)]
    fn keep_found(&mut self, place: u16, outgoing: bool, mut frames: &mut [IoSliceMut<'_>]) {
        let time_ns = now_ns();
        while let Some((frame, behind)) = frames.split_first_mut() {
            self.keep(place, outgoing, time_ns, frame, u32::MAX);
            let next = self.filter.search(place, behind);
            frames = &mut behind[next..];
        }
    }

    fn keep(&mut self, place: u16, outgoing: bool, time_ns: u64, bytes: &[u8], wanted: u32) {
        let kept = bytes.len().min(wanted.min(self.snap) as usize);
        let header = Header { kind: Kind::Frame { outgoing }, place, time_ns, length: bytes.len() as u32 };
        self.writer.leave(header, &bytes[..kept]);
    }

    /// Tells whose a connection is.
    pub fn name(&mut self, name: &Name) {
        self.writer.tell(Name::HEADER, &name.encode());
    }

    /// Counts frames that were lost before any filter.
    pub fn lose(&mut self, frames: u64) {
        self.writer.lose(frames);
    }
}

/// The time of a frame that passes now.
pub fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
