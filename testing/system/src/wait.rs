//! Waiting for a condition, with a limit.

use std::time::{Duration, Instant};

/// The least time that any wait gets. Limits only tell a hang from a success, and a machine that does other work may
/// stop for many seconds.
const LEAST_S: u64 = 90;

/// The end of a wait for `seconds` that begins now.
pub(crate) fn in_vain_at(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(seconds.max(LEAST_S))
}

/// Polls `condition` every 10 ms. Panics with `what` if it is not true after `seconds`, or after as long as a busy
/// machine may need.
pub fn until(what: &str, seconds: u64, condition: impl FnMut() -> bool) {
    until_or(what, seconds, condition, String::new);
}

/// [`until`], which in vain also says what `found` tells.
pub fn until_or(what: &str, seconds: u64, mut condition: impl FnMut() -> bool, found: impl Fn() -> String) {
    let (begun, end) = (Instant::now(), in_vain_at(seconds));
    while !condition() {
        assert!(Instant::now() < end, "not within {} s: {what}\n{}", begun.elapsed().as_secs(), found());
        std::thread::sleep(Duration::from_millis(10));
    }
}
