//! Pieces of rings. Another process may write this memory at the same time: a misbehaving service, or the untrusted
//! peer of a direct connection. So a `&[u8]` of it needs `unsafe` and a promise.

use crate::rings::Rings;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use towpath_ring::bytes::Pieces;
use towpath_ring::shared_bytes::{copy, copy_overlapping};

/// A contiguous piece of received bytes. There are at most three of them, because a ring has an end, and one that has grown
/// lies in two parts.
///
/// If the peer of a direct connection misbehaves, a byte may change between two reads. Copy the bytes, or decide on
/// each of them once.
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

    /// Is it empty?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first.
    pub fn as_ptr(&self) -> *const u8 {
        self.base
    }

    /// Copies as many as fit into `to`. Returns how many.
    #[inline]
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        let count = self.len.min(to.len());
        // SAFETY: the span is readable memory of `len` bytes. `to` is this process's own, so they do not overlap.
        // Another process may write the span meanwhile, which gives arbitrary bytes; every byte is a valid `u8`.
        unsafe { copy(self.base, to.as_mut_ptr(), count) };
        count
    }

    /// The byte at a place, loaded once.
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
    /// The bytes must not be written while the slice lives. For a connection over the stack, the service promises
    /// that for bytes that have not been consumed. For a direct one
    /// ([`Connection::is_direct`](crate::Connection::is_direct)) it is the peer's program, which must be trusted like
    /// one's own.
    pub unsafe fn as_slice(&self) -> &'a [u8] {
        // SAFETY: readable memory for as long as the connection is borrowed. That it is not written is the caller's
        // promise.
        unsafe { core::slice::from_raw_parts(self.base, self.len) }
    }
}

/// Received bytes that have not been consumed.
#[derive(Clone, Copy)]
pub struct Received<'a> {
    spans: [Span<'a>; 3],
}

impl<'a> Received<'a> {
    #[inline]
    pub(crate) fn new(spans: Pieces) -> Self {
        Self { spans: spans.map(|(base, len)| Span { base, len, ring: PhantomData }) }
    }

    /// How many bytes. 0 = the peer has ended its stream, and nothing more will come.
    #[inline]
    pub fn len(&self) -> usize {
        self.spans[0].len + self.spans[1].len + self.spans[2].len
    }

    /// Has the stream ended?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pieces in order. The last ones may be empty.
    pub fn spans(&self) -> [Span<'a>; 3] {
        self.spans
    }

    /// Copies as many bytes as fit into `to`. Returns how many.
    #[inline]
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        let mut done = self.spans[0].copy_to(to);
        for span in &self.spans[1..] {
            if span.len == 0 {
                break;
            }
            done += span.copy_to(&mut to[done..]);
        }
        done
    }

    /// The bytes in order, each loaded once.
    pub fn iter(&self) -> impl Iterator<Item = u8> + use<'a> {
        self.spans.into_iter().flat_map(|span| span.iter())
    }
}

/// Free room of the send ring, to be written and then sent by [`Room::commit`]. Dropping it sends nothing.
pub struct Room<'a> {
    spans: Pieces,
    written: usize,
    rings: &'a Rings,
}

impl<'a> Room<'a> {
    #[inline]
    pub(crate) fn new(spans: Pieces, rings: &'a Rings) -> Self {
        Self { spans, written: 0, rings }
    }

    /// How many bytes; at most as many as were asked for.
    #[inline]
    pub fn len(&self) -> usize {
        self.spans[0].1 + self.spans[1].1 + self.spans[2].1
    }

    /// Never true: no room is an error.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pieces in order, to be written. Do not read them back: the peer of a direct connection may write them,
    /// too. The last ones may be empty.
    pub fn spans(&mut self) -> [(*mut MaybeUninit<u8>, usize); 3] {
        self.spans.map(|(base, len)| (base.cast(), len))
    }

    /// Appends bytes. Returns how many there was room for.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> usize {
        self.append(bytes.as_ptr(), bytes.len())
    }

    /// Appends received bytes, such as another connection's, without a copy in between. Returns how many there was
    /// room for.
    #[inline]
    pub fn put_span(&mut self, span: Span<'_>) -> usize {
        self.append(span.base, span.len)
    }

    /// Appends all received bytes. Returns how many there was room for.
    #[inline]
    pub fn put_received(&mut self, received: &Received<'_>) -> usize {
        let [first, second, third] = received.spans();
        let mut done = self.put_span(first);
        // Most often all bytes lie in one piece.
        for span in [second, third] {
            if span.is_empty() {
                break;
            }
            done += self.put_span(span);
        }
        done
    }

    #[inline]
    fn append(&mut self, from: *const u8, len: usize) -> usize {
        let (base, room) = self.spans[0];
        if self.written > room || len > room - self.written {
            return self.append_to_pieces(from, len);
        }
        // SAFETY: `from` has `len` readable bytes, and the rest of the first piece has as many. See below for the rest.
        unsafe { copy_overlapping(from, base.add(self.written), len) };
        self.written += len;
        len
    }

    #[cold]
    fn append_to_pieces(&mut self, from: *const u8, len: usize) -> usize {
        let mut done = 0;
        let mut begin = 0;
        for (base, room) in self.spans {
            let at = (self.written + done).saturating_sub(begin).min(room);
            begin += room;
            let count = (room - at).min(len - done);
            // SAFETY: `from` has `len` readable bytes. The rest is inside the span, which is writable memory of the
            // ring. Two ends in one process may share a ring, so they may overlap, which this copy allows.
            unsafe { copy_overlapping(from.add(done), base.add(at), count) };
            done += count;
        }
        self.written += done;
        done
    }

    /// Sends the appended bytes. Returns how many.
    #[inline]
    pub fn commit(self) -> usize {
        let written = self.written;
        self.rings.commit(written);
        written
    }

    /// Sends the first `count` bytes, however they were written. Bytes that were not written are old contents of the
    /// ring.
    #[inline]
    pub fn commit_count(self, count: usize) {
        let count = count.min(self.len());
        self.rings.commit(count);
    }
}
