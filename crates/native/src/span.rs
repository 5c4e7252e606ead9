//! Pieces of rings. Somebody else may write this memory while we look at it: the service, which would have to misbehave, or the peer
//! of a direct connection, who need not be trusted at all. So no `&[u8]` of it is given out, but by `unsafe` and a promise.

use crate::half::Rings;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr;

/// A contiguous piece of received bytes, at most two of which make up what is there (a ring has an end).
///
/// What is read twice may be different the second time if the peer of a direct connection misbehaves: copy it, or decide on each byte once.
#[derive(Clone, Copy)]
pub struct Span<'a> {
    base: *const u8,
    len: usize,
    ring: PhantomData<&'a Rings>,
}

impl<'a> Span<'a> {
    /// How many bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// None?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where they begin.
    pub fn as_ptr(&self) -> *const u8 {
        self.base
    }

    /// Copies as many as fit into `to`; returns how many.
    #[inline]
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        let count = self.len.min(to.len());
        // SAFETY: the span is readable memory of `len` bytes, and `to` is this process's own, so they do not overlap. Somebody may
        // write the span meanwhile, which gives bytes of no certain value; every byte is a valid `u8`.
        unsafe { ptr::copy_nonoverlapping(self.base, to.as_mut_ptr(), count) };
        count
    }

    /// The byte at a place. Loaded once.
    #[inline]
    pub fn get(&self, at: usize) -> Option<u8> {
        // SAFETY: inside the span; volatile, because it may change.
        (at < self.len).then(|| unsafe { self.base.add(at).read_volatile() })
    }

    /// The bytes, each loaded once.
    pub fn iter(&self) -> impl Iterator<Item = u8> + use<'a> {
        let span = *self;
        (0..self.len).filter_map(move |at| span.get(at))
    }

    /// The bytes in place.
    ///
    /// # Safety
    /// Nobody may write them while the slice lives. Of a connection over the stack the service promises that for bytes that have not
    /// been consumed; of a direct one ([`Connection::is_direct`](crate::Connection::is_direct)) the peer's program does, so it must be trusted as one's own.
    pub unsafe fn as_slice(&self) -> &'a [u8] {
        // SAFETY: readable memory for as long as the connection is borrowed; that nobody writes it is the caller's promise.
        unsafe { core::slice::from_raw_parts(self.base, self.len) }
    }
}

/// What has been received and not consumed.
#[derive(Clone, Copy)]
pub struct Received<'a> {
    spans: [Span<'a>; 2],
}

impl<'a> Received<'a> {
    #[inline]
    pub(crate) fn new(spans: [(*mut u8, usize); 2]) -> Self {
        Self { spans: spans.map(|(base, len)| Span { base, len, ring: PhantomData }) }
    }

    /// How many bytes. 0 = the peer has ended its stream, and nothing will come any more.
    #[inline]
    pub fn len(&self) -> usize {
        self.spans[0].len + self.spans[1].len
    }

    /// Has the stream ended?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pieces in order. The second is empty unless the bytes go past the end of the ring.
    pub fn spans(&self) -> [Span<'a>; 2] {
        self.spans
    }

    /// Copies as many bytes as fit into `to`; returns how many.
    #[inline]
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        let first = self.spans[0].copy_to(to);
        match self.spans[1].len {
            0 => first,
            _ => first + self.spans[1].copy_to(&mut to[first..]),
        }
    }

    /// The bytes in order, each loaded once.
    pub fn iter(&self) -> impl Iterator<Item = u8> + use<'a> {
        self.spans[0].iter().chain(self.spans[1].iter())
    }
}

/// Free room of the send ring, to be written and then sent by [`Room::commit`]. Dropped without it, nothing is sent.
pub struct Room<'a> {
    spans: [(*mut u8, usize); 2],
    written: usize,
    rings: &'a Rings,
}

impl<'a> Room<'a> {
    #[inline]
    pub(crate) fn new(spans: [(*mut u8, usize); 2], rings: &'a Rings) -> Self {
        Self { spans, written: 0, rings }
    }

    /// How many bytes, at most what was asked for.
    #[inline]
    pub fn len(&self) -> usize {
        self.spans[0].1 + self.spans[1].1
    }

    /// None? It never is: that would have been an error.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pieces in order, to be written through (and never read back from: of a direct connection the peer may write them too).
    /// The second is empty unless the room goes past the end of the ring.
    pub fn spans(&mut self) -> [(*mut MaybeUninit<u8>, usize); 2] {
        self.spans.map(|(base, len)| (base.cast(), len))
    }

    /// Appends bytes to what has been put before; returns how many there was room for.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> usize {
        self.append(bytes.as_ptr(), bytes.len())
    }

    /// Appends received bytes, such as those of another connection, without a copy in between; returns how many there was room for.
    #[inline]
    pub fn put_span(&mut self, span: Span<'_>) -> usize {
        self.append(span.base, span.len)
    }

    /// Appends all that has been received; returns how many bytes there was room for.
    #[inline]
    pub fn put_received(&mut self, received: &Received<'_>) -> usize {
        received.spans().into_iter().map(|span| self.put_span(span)).sum()
    }

    #[inline]
    fn append(&mut self, from: *const u8, len: usize) -> usize {
        let mut done = 0;
        for (begin, (base, room)) in [(0, self.spans[0]), (self.spans[0].1, self.spans[1])] {
            let at = (self.written + done).saturating_sub(begin).min(room);
            let count = (room - at).min(len - done);
            // SAFETY: `from` has `len` readable bytes, and the rest is inside the span, which is writable memory of the ring. Two ends
            // in one process may share a ring, so they may overlap, which this copy allows.
            unsafe { ptr::copy(from.add(done), base.add(at), count) };
            done += count;
        }
        self.written += done;
        done
    }

    /// Sends what has been put; returns how many bytes.
    #[inline]
    pub fn commit(self) -> usize {
        let written = self.written;
        self.rings.commit(written);
        written
    }

    /// Sends the first `count` bytes, however they were written; bytes that were not are what the ring held before.
    #[inline]
    pub fn commit_count(self, count: usize) {
        let count = count.min(self.len());
        self.rings.commit(count);
    }
}
