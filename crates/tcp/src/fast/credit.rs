//! Credit: what a sender with a rate may send now.
//!
//! Credit grows with time and is spent by payload. While it is not negative a segment may go. A segment that is larger
//! than the credit makes a debt, which the sender waits out. Credit is kept in millionths of a byte: bytes per second
//! times microseconds, which is exact at every rate. A sender that had nothing to send saves up a short burst. A sender
//! that is served late gets the credit that it has lost.

/// Credit per byte.
const BYTE: i64 = 1_000_000;
/// Shortest wait, and the time whose worth may be sent at once, in µs: 10 Gbit/s gives 14 full segments, a usual batch.
/// A flow that sends a segment in more than this time never sends two together.
const QUANTUM_US: u64 = 16;
/// The lateness for which a sender gets credit, in µs: a timer's slack and a busy turn, not a stopped machine.
const LATE_US: u64 = 1000;
/// Credit beyond any segment, and far from overflow.
const PLENTY: u64 = 1 << 60;

/// The credit of `us` microseconds.
#[inline]
fn worth(rate: u64, us: u64) -> i64 {
    rate.saturating_mul(us).min(PLENTY) as i64
}

/// The credit that payload costs.
#[inline]
pub(super) fn cost(bytes: u32) -> i64 {
    i64::from(bytes) * BYTE
}

/// The payload that this credit lets go.
#[inline]
pub(super) fn bytes(credit: i64) -> i64 {
    credit.max(0) / BYTE
}

/// How long a debt lasts, in µs.
#[inline]
pub(super) fn wait_us(rate: u64, credit: i64) -> u64 {
    credit.min(0).unsigned_abs().div_ceil(rate.max(1)).max(QUANTUM_US)
}

/// Credit after `us` microseconds; `late`: the sender has waited for it.
#[inline]
pub(super) fn grown(rate: u64, credit: i64, us: u64, late: bool) -> i64 {
    let limit = worth(rate, if late { LATE_US } else { QUANTUM_US });
    credit.saturating_add(worth(rate, us)).min(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes per second: a byte in each microsecond.
    const RATE: u64 = 1_000_000;

    #[test]
    fn payload_costs_what_the_rate_gives_in_its_time() {
        assert_eq!((worth(RATE, 1), cost(1), worth(RATE, 1460)), (BYTE, BYTE, cost(1460)));
        assert_eq!(worth(u64::MAX, u64::MAX), PLENTY as i64, "far from overflow");
        assert_eq!([bytes(BYTE - 1), bytes(BYTE), bytes(5 * BYTE), bytes(-BYTE)], [0, 1, 5, 0]);
    }

    #[test]
    fn a_debt_is_waited_out_and_no_wait_is_shorter_than_the_quantum() {
        assert_eq!(wait_us(RATE, -100 * BYTE), 100);
        assert_eq!(wait_us(RATE, -100 * BYTE - 1), 101, "to the end of the last microsecond");
        for credit in [0, BYTE, -1, -16 * BYTE] {
            assert_eq!(wait_us(RATE, credit), QUANTUM_US);
        }
        assert_eq!(wait_us(0, -100), 100, "a rate of nothing is the least one");
    }

    #[test]
    fn a_sender_saves_up_a_quantum_and_one_that_is_served_late_gets_what_it_has_lost() {
        assert_eq!(grown(RATE, -10 * BYTE, 12, false), 2 * BYTE);
        assert_eq!(grown(RATE, 0, 500, false), 16 * BYTE);
        assert_eq!(grown(RATE, 0, 500, true), 500 * BYTE);
        assert_eq!(grown(RATE, 0, 5000, true), 1000 * BYTE, "a stopped machine is no lateness");
        assert_eq!(grown(RATE, i64::MAX, u64::MAX, true), 1000 * BYTE);
    }
}
