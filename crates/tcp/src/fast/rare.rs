//! What header prediction excludes.

/// A condition that does not hold on the path that [`prediction`](super::prediction) has chosen. There it costs nothing;
/// builds with assertions check it.
#[inline(always)]
pub(super) fn rare<const PREDICTED: bool>(condition: bool) -> bool {
    debug_assert!(!(PREDICTED && condition), "header prediction excludes this");
    !PREDICTED && condition
}
