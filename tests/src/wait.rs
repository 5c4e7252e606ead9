//! Waiting for something to become true, with a limit.

use std::time::{Duration, Instant};

/// Polls `condition` every 10 ms; panics with `what` after `seconds`.
pub fn until(what: &str, seconds: u64, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(seconds);
    while !condition() {
        assert!(Instant::now() < end, "not within {seconds} s: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
