//! The work of a stack's thread on a frame while somebody captures.

use crate::filter::{Filter, ThreadFilter};
use crate::memory::{Batch, Writer};
use crate::record::{Header, Kind, Name};
use rustix::fd::{AsFd, OwnedFd};
use std::io::IoSliceMut;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use towpath_ring::wake::notify;

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
    /// See [`Tap::calls`].
    call: Option<Arc<OwnedFd>>,
}

impl Tap {
    /// A tap into this ring.
    pub fn new(writer: Writer, wish: &Wish) -> Self {
        Self { writer, filter: ThreadFilter::new(wish.filter.as_ref()), snap: wish.snap.min(MOST_SNAP), call: None }
    }

    /// Notifies through this doorbell when there is a first direct connection to look at.
    pub fn calls(self, call: Arc<OwnedFd>) -> Self {
        Self { call: Some(call), ..self }
    }

    /// There is one.
    pub(crate) fn call(&self) {
        if let Some(call) = &self.call {
            notify(call.as_fd());
        }
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
            let about = Header { kind: Kind::Frame { outgoing }, place, time_ns, length: 0 };
            keep(&mut self.writer.batch(), about, bytes, wanted.min(self.snap));
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
            self.keep_wanted(place, outgoing, frames);
        }
    }

    /// Keeps those of these frames that the filter wants, each by itself.
    #[inline(never)]
    fn keep_wanted(&mut self, place: u16, outgoing: bool, frames: &[IoSliceMut<'_>]) {
        let Self { writer, filter, snap, .. } = self;
        let about = Header { kind: Kind::Frame { outgoing }, place, time_ns: now_ns(), length: 0 };
        let mut batch = writer.batch();
        if filter.is_none() {
            return frames.iter().for_each(|frame| keep(&mut batch, about, frame, *snap));
        }
        for frame in frames {
            let wanted = filter.wanted(place, outgoing, frame);
            if wanted != 0 {
                keep(&mut batch, about, frame, wanted.min(*snap));
            }
        }
    }

    /// Keeps the first one of these frames, and those behind it that the filter finds.
    #[inline(never)]
    fn keep_found(&mut self, place: u16, outgoing: bool, mut frames: &mut [IoSliceMut<'_>]) {
        let Self { writer, filter, snap, .. } = self;
        let about = Header { kind: Kind::Frame { outgoing }, place, time_ns: now_ns(), length: 0 };
        let mut batch = writer.batch();
        while let Some((frame, behind)) = frames.split_first_mut() {
            keep(&mut batch, about, frame, *snap);
            let next = filter.search(place, behind);
            frames = &mut behind[next..];
        }
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

/// Leaves so much of a frame, with all else that is known of it.
#[inline(always)]
fn keep(batch: &mut Batch<'_>, about: Header, bytes: &[u8], most: u32) {
    batch.leave(Header { length: bytes.len() as u32, ..about }, &bytes[..bytes.len().min(most as usize)]);
}

/// The time of a frame that passes now.
pub fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
