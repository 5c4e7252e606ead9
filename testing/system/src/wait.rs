//! Waiting for something to become true, with a limit.

use std::time::{Duration, Instant};

/// However short a test's own limit is, so long is waited for what should have come already: limits tell what hangs from what does not, and
/// a machine that does other work at the same time may stop for many seconds.
const PATIENCE_S: u64 = 90;

/// When a wait of so many seconds that begins now is in vain.
pub(crate) fn in_vain_at(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(seconds.max(PATIENCE_S))
}

/// Polls `condition` every 10 ms; panics with `what` if it is not true after `seconds`, or after as long as a busy machine may need.
pub fn until(what: &str, seconds: u64, mut condition: impl FnMut() -> bool) {
    let (begun, end) = (Instant::now(), in_vain_at(seconds));
    while !condition() {
        assert!(Instant::now() < end, "not within {} s: {what}", begun.elapsed().as_secs());
        std::thread::sleep(Duration::from_millis(10));
    }
}
