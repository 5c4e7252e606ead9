//! A super-segment whose payload lies in memory that another process may write.

use crate::{Port, TxOffload};
use std::sync::atomic::{AtomicU8, Ordering, compiler_fence};
use towpath_wire::offload::Payload;

/// [`Port::commit_gathered`] of a port that sends what is in its buffer.
pub fn commit_whole<P: Port + ?Sized>(port: &mut P, header: usize, payload: &Payload<'_>, offload: TxOffload) {
    let Some(buffer) = port.reserve_super() else { return };
    if let Some(len) = gather(buffer, header, payload) {
        port.commit(len, offload);
    }
}

/// Memory of ours as a piece of payload.
pub fn piece(bytes: &mut [u8]) -> &[AtomicU8] {
    // SAFETY: both types have the same layout. While the bytes are borrowed nobody else has them.
    unsafe { &*(std::ptr::from_mut(bytes) as *const [AtomicU8]) }
}

/// Puts the payload behind the first `header` bytes of `buffer`. Returns the length of both; `None`: it does not fit.
pub fn gather(buffer: &mut [u8], header: usize, payload: &Payload<'_>) -> Option<usize> {
    let mut end = header;
    for piece in payload {
        let to = buffer.get_mut(end..end.checked_add(piece.len())?)?;
        copy(piece, to);
        end += piece.len();
    }
    Some(end)
}

fn copy(from: &[AtomicU8], to: &mut [u8]) {
    debug_assert_eq!(from.len(), to.len());
    let len = to.len().min(from.len());
    // SAFETY: both have `len` bytes; `to` is memory of this process alone, so they do not overlap. Bytes that change meanwhile
    // are copied as either value, and any value is a `u8`. Nothing is decided by them.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr().cast(), to.as_mut_ptr(), len) };
    compiler_fence(Ordering::AcqRel);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn shared(bytes: &[u8]) -> Vec<AtomicU8> {
        bytes.iter().copied().map(AtomicU8::new).collect()
    }

    #[test]
    fn pieces_come_behind_the_header_in_their_order() {
        let (one, two) = (shared(b"abc"), shared(b"de"));
        let mut buffer = *b"##.......";
        assert_eq!(gather(&mut buffer, 2, &[&one, &two, &[]]), Some(7));
        assert_eq!(&buffer, b"##abcde..");
    }

    #[test]
    fn memory_of_ours_may_be_a_piece() {
        let (mut ours, mut buffer) = (*b"abc", *b"##...");
        assert_eq!(gather(&mut buffer, 2, &[piece(&mut ours), &[], &[]]), Some(5));
        assert_eq!(&buffer, b"##abc");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (one, two) = (shared(b"abc"), shared(b"de"));
        assert_eq!(gather(&mut [0; 6], 2, &[&one, &two, &[]]), None);
        assert_eq!(gather(&mut [0; 7], 2, &[&one, &two, &[]]), Some(7));
        assert_eq!(gather(&mut [0; 1], 2, &[&[], &[], &[]]), None);
        assert_eq!(gather(&mut [0; 1], usize::MAX, &[&one, &[], &[]]), None);
    }
}
