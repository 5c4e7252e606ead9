//! A limit on log lines that somebody else can provoke.

use std::time::{Duration, Instant};

/// Allows ten lines a second, so that a stranger cannot fill the log.
#[derive(Default)]
pub struct LogThrottle {
    second: Option<Instant>,
    lines: u32,
}

impl LogThrottle {
    const LINES: u32 = 10;

    /// May one more line be written now?
    pub fn allows(&mut self) -> bool {
        let now = Instant::now();
        if self.second.is_none_or(|start| now - start >= Duration::from_secs(1)) {
            *self = Self { second: Some(now), lines: 0 };
        }
        self.lines += 1;
        self.lines <= Self::LINES
    }
}
