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
