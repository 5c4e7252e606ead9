//! A limit on log lines that somebody else can provoke.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Allows ten lines a second, so that a stranger cannot fill the log. Lines of one kind share one.
#[derive(Debug, Default)]
pub struct LogThrottle(Mutex<Second>);

/// What was written in the present second.
#[derive(Debug, Default)]
struct Second {
    began: Option<Instant>,
    lines: u32,
}

impl LogThrottle {
    const LINES: u32 = 10;

    /// A throttle, also for a `static`.
    pub const fn new() -> Self {
        Self(Mutex::new(Second { began: None, lines: 0 }))
    }

    /// May one more line be written now? After lines were left out, their number is logged.
    pub fn allows(&self) -> bool {
        let (allowed, left_out) = self.count(Instant::now());
        if left_out > 0 {
            tracing::warn!("{left_out} more lines of this kind were left out of the log:");
        }
        allowed
    }

    /// Counts a line. Returns whether it may be written, and how many of the second before were left out.
    fn count(&self, now: Instant) -> (bool, u32) {
        let mut second = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left_out = 0;
        if second.began.is_none_or(|began| now.saturating_duration_since(began) >= Duration::from_secs(1)) {
            left_out = second.lines.saturating_sub(Self::LINES);
            *second = Second { began: Some(now), lines: 0 };
        }
        second.lines += 1;
        (second.lines <= Self::LINES, left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_lines_a_second_are_written_and_the_others_counted() {
        let (throttle, begin) = (LogThrottle::new(), Instant::now());
        let written = (0..100).filter(|_| throttle.count(begin).0).count();
        assert_eq!(written, 10);
        assert_eq!(throttle.count(begin + Duration::from_secs(1)), (true, 90));
        assert_eq!(throttle.count(begin + Duration::from_secs(1)), (true, 0));
    }
}
