//! Sequence numbers (RFC 9293 §3.4), which are compared modulo 2^32.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A TCP sequence number. Not `Ord`: use the methods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable)]
#[repr(transparent)]
pub struct Seq(pub u32);

// Not `Add` and `Sub`: `+` would hide that this wraps, and would let two sequence numbers be added.
#[allow(clippy::should_implement_trait)]
impl Seq {
    /// `self + n`.
    #[inline]
    #[must_use]
    pub fn add(self, n: u32) -> Self {
        Self(self.0.wrapping_add(n))
    }
    /// `self - n`.
    #[inline]
    #[must_use]
    pub fn sub(self, n: u32) -> Self {
        Self(self.0.wrapping_sub(n))
    }
    /// Signed distance from `from` to `self`.
    #[inline]
    pub fn distance(self, from: Self) -> i32 {
        self.0.wrapping_sub(from.0) as i32
    }
    /// Bytes from `from` up to `self`, modulo 2^32.
    #[inline]
    pub fn bytes_since(self, from: Self) -> u32 {
        self.0.wrapping_sub(from.0)
    }
    /// `self < other`.
    #[inline]
    pub fn before(self, other: Self) -> bool {
        self.distance(other) < 0
    }
    /// `self > other`.
    #[inline]
    pub fn after(self, other: Self) -> bool {
        self.distance(other) > 0
    }
    /// The later of the two.
    #[inline]
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        if self.before(other) { other } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_around_the_end_of_their_range() {
        let (last, first) = (Seq(u32::MAX), Seq(0));
        assert_eq!((last.add(1), first.sub(1), first.sub(0)), (first, last, first));
        assert_eq!((first.distance(last), last.distance(first), first.bytes_since(last)), (1, -1, 1));
        assert_eq!(last.bytes_since(first), u32::MAX);
        assert!(last.before(first) && first.after(last) && !first.before(last) && !last.after(first));
        assert!(!first.before(first) && !first.after(first));
        assert_eq!((last.max(first), first.max(last), first.max(first)), (first, first, first));
        assert!(Seq(5).before(Seq(5 + (1 << 31) - 1)) && Seq(5).after(Seq(5 + (1 << 31) + 1)));
    }
}
