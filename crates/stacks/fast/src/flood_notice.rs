//! When to say that SYNs are answered with cookies.

use towpath_tcp::time::Micros;

/// The least time between two notices, µs.
const AGAIN_US: u64 = 60_000_000;

/// Remembers what was said.
#[derive(Debug, Default)]
pub struct FloodNotice {
    sent: u64,
    not_before: Micros,
}

impl FloodNotice {
    /// `sent`: all cookies sent so far. Returns how many are new, if that is to be said now.
    pub fn due(&mut self, now: Micros, sent: u64) -> Option<u64> {
        if sent == self.sent || now < self.not_before {
            return None;
        }
        let new = sent - std::mem::replace(&mut self.sent, sent);
        self.not_before = now.after(AGAIN_US);
        Some(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_said_at_once_and_then_once_a_minute() {
        let mut notice = FloodNotice::default();
        assert_eq!(notice.due(Micros(5), 0), None);
        assert_eq!(notice.due(Micros(6), 3), Some(3));
        assert_eq!(notice.due(Micros(7), 900), None);
        assert_eq!(notice.due(Micros(6 + AGAIN_US), 1000), Some(997));
        assert_eq!(notice.due(Micros(6 + 9 * AGAIN_US), 1000), None, "it is over");
    }
}
