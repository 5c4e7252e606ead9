//! How large the super-segments of a turn may be.

use super::SendTurn;
use crate::buffers::TxPorts;
use crate::fast::credit;
use crate::table::bits::PACED;

/// Bytes that headers with all their options take at most.
const HEADERS: u32 = 14 + 4 + 40 + 60;
/// The time in which a super-segment may go out, µs: beyond it, it would be a burst (as Linux).
const SPREAD_US: u64 = 1000;
/// Round trips below this many µs add a whole super-segment, those below twice as many a half, and so on (as Linux's
/// `tcp_tso_rtt_log`). A short path has short queues, and is worth large segments.
const NEAR_LOG: u32 = 9;

impl<R, P: TxPorts> SendTurn<'_, R, P, false> {
    /// Bytes of the largest super-segment; 0 = none. `share`: bytes that the class may send now.
    #[inline]
    pub(super) fn super_bytes(&self, share: i64) -> u32 {
        let frame = self.ports.gso_max_bytes(self.turn.lines.identity.port());
        if frame == 0 { 0 } else { self.measured(frame.min(u32::from(u16::MAX)).saturating_sub(HEADERS), share) }
    }

    #[cold]
    fn measured(&self, most: u32, share: i64) -> u32 {
        let (t, lines) = (&self.turn.t, self.turn.lines);
        let (srtt, min_rtt) = (lines.measures.srtt_us.get(), lines.rate.min_rtt_us.get());
        let per_spread = match (t.has(PACED), srtt) {
            (true, _) => lines.rate.pacing.get().saturating_mul(SPREAD_US) / 1_000_000,
            (false, 0) => u64::from(most),
            (false, _) => u64::from(t.cwnd()) * SPREAD_US / u64::from(srtt),
        };
        let near = if t.has(PACED) || min_rtt == 0 { 0 } else { most.checked_shr(min_rtt >> NEAR_LOG).unwrap_or(0) };
        let of_class = if self.credit == i64::MAX || t.has(PACED) { i64::MAX } else { credit::bytes(self.credit) };
        let limit = per_spread.saturating_add(u64::from(near)).min(of_class.min(share).max(0).cast_unsigned());
        // Two segments are no burst, and one acknowledgement answers them.
        limit.max(2 * u64::from(t.mss())).min(u64::from(most)) as u32
    }
}
