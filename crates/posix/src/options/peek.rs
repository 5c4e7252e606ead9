//! `SO_PEEK_OFF`: how far behind the receive head MSG_PEEK begins. A peek moves it on by the bytes that it copies. A read moves
//! it back by the bytes that it takes, to 0 at least.
//!
//! The word has the offset and the receive head to which it belongs. A read moves the head only, so it pays nothing.

use core::sync::atomic::Ordering::Relaxed;
use libc::c_int;
use towpath_client::private::Private;
use towpath_client::view::View;

/// The offset counts. In a word without this bit the low half is a negative option, inverted: 0 is -1, the default.
const ON: u64 = 1 << 63;

/// A word with this offset (below 2^31) from this receive head.
const fn at(offset: u32, head: u32) -> u64 {
    ON | (offset as u64) << 32 | head as u64
}

/// The offset in a word, for this receive head.
const fn offset(word: u64, head: u32) -> u32 {
    let then = (word & !ON) >> 32;
    (then as u32).saturating_sub(head.wrapping_sub(word as u32))
}

/// `setsockopt`. `head` is the receive head.
pub fn set(private: &Private, head: u32, value: c_int) {
    let word = if value < 0 { u64::from(!value.cast_unsigned()) } else { at(value.cast_unsigned(), head) };
    private.peek.store(word, Relaxed);
}

/// `getsockopt`. `head` is the receive head.
pub fn get(private: &Private, head: u32) -> c_int {
    match private.peek.load(Relaxed) {
        word if word & ON == 0 => (!(word as u32)).cast_signed(),
        word => offset(word, head).cast_signed(),
    }
}

/// Where MSG_PEEK begins; `None` = at the receive head, every time.
#[inline]
pub fn begin(view: &View) -> Option<u32> {
    let word = view.private.peek.load(Relaxed);
    (word & ON != 0).then(|| offset(word, view.app.rx_head.load(Relaxed)))
}

/// A peek has copied bytes, the last at this distance from the receive head. Under `receiving`.
pub fn peeked(view: &View, to: u32) {
    view.private.peek.store(at(to, view.app.rx_head.load(Relaxed)), Relaxed);
}

/// Brings the word up to the receive head, so that 2^32 bytes read later do not look like none. Under `receiving`.
#[inline]
pub fn settle(view: &View) {
    if let Some(offset) = begin(view) {
        peeked(view, offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_move_the_offset_back_to_zero_across_the_end_of_the_positions() {
        let word = at(10, u32::MAX - 3);
        let offsets = [u32::MAX - 3, u32::MAX, 0, 5, 6, 7, 1 << 31].map(|head| offset(word, head));
        assert_eq!(offsets, [10, 7, 6, 1, 0, 0, 0]);
        assert_eq!(offset(at(c_int::MAX.cast_unsigned(), 7), 8), c_int::MAX.cast_unsigned() - 1);
    }
}
