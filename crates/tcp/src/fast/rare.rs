//! What header prediction excludes.

/// A condition that does not hold on the path that [`prediction`](super::prediction) has chosen. There it is not even
/// evaluated, so it costs nothing; builds with assertions check it.
#[inline(always)]
pub(super) fn rare<const PREDICTED: bool>(condition: impl FnOnce() -> bool) -> bool {
    if PREDICTED {
        debug_assert!(!condition(), "header prediction excludes this");
        return false;
    }
    condition()
}
