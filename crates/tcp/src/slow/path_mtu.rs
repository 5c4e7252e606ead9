//! Path MTU discovery: from ICMP errors of routers (RFC 1191, RFC 8201), and without them (RFC 4821, RFC 8899; Linux's
//! `tcp_mtu_probing` = 1).

use crate::time::Micros;

/// Smallest path MTU that is accepted. A forged error must not make us send tiny packets (Linux: `min_pmtu`; RFC 8200
/// §5).
const MIN_MTU: (u32, u32) = (552, 1280);
/// MTUs of common links, for errors that state none (RFC 1191 §7).
const PLATEAUS: [u32; 8] = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, 552];
/// Segment sizes tried in turn when large segments seem to be lost (Linux: `tcp_base_mss`, and half of it).
const BASES: [u16; 2] = [1024, 512];
/// Consecutive time-outs of a full-size segment after which it is assumed to be too large.
const TIMEOUTS: u32 = 2;
/// Time in µs after which larger segments are tried (RFC 1191 §6.3; Linux: `ip_rt_mtu_expires`, `tcp_probe_interval`).
const RAISE_US: u64 = 600_000_000;
/// Time in µs between successful steps of a search.
const STEP_US: u64 = 60_000_000;
/// A search ends when its range is smaller than this, in bytes (`tcp_probe_threshold`).
const CLOSE: u16 = 8;

fn least(v6: bool) -> u32 {
    if v6 { MIN_MTU.1 } else { MIN_MTU.0 }
}

/// What a router means that cannot forward a packet of `packet_bytes` over a link of `mtu` (0 = not stated).
fn said(mtu: u32, packet_bytes: u32) -> u32 {
    match mtu {
        0 => PLATEAUS.into_iter().find(|plateau| *plateau < packet_bytes).unwrap_or(0),
        mtu => mtu,
    }
}

/// The same to be told to somebody else: no forged error makes him send tiny packets.
pub(super) fn to_tell(v6: bool, mtu: u32, packet_bytes: u32) -> u16 {
    u16::try_from(said(mtu, packet_bytes).max(least(v6))).unwrap_or(u16::MAX)
}

/// The state of a flow's path MTU discovery. Sizes are payload per packet, without options.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathMtu {
    v6: bool,
    /// Bytes of headers and timestamps in each packet.
    overhead: u16,
    /// The size that route and peer allow.
    full: u16,
    /// The size in use.
    mss: u16,
    /// The last size known to pass, while `mss` is being tried.
    low: u16,
    /// The largest size to try.
    high: u16,
    /// Is `mss` being tried?
    trying: bool,
    /// Was the size lowered because segments were lost, and not by a router?
    searching: bool,
    /// When the next larger size is tried, if any.
    next: Option<Micros>,
}

impl PathMtu {
    /// For a new flow with segments of `mss`, in packets larger by `overhead`.
    pub(super) fn new(v6: bool, mss: u16, overhead: u16) -> Self {
        Self { v6, overhead, full: mss, mss, low: mss, high: mss, trying: false, searching: false, next: None }
    }

    fn floor(&self) -> u16 {
        (least(self.v6) as u16).saturating_sub(self.overhead).min(self.full)
    }

    /// A router cannot forward a packet of `packet_bytes` over a link of `mtu` (0 = not stated). Returns the new size,
    /// if it changes.
    pub(super) fn too_big(&mut self, now: Micros, mtu: u32, packet_bytes: u32) -> Option<u16> {
        let mss = u16::try_from(said(mtu, packet_bytes).saturating_sub(self.overhead.into()))
            .unwrap_or(u16::MAX)
            .max(self.floor());
        if mss >= self.mss {
            return None;
        }
        (self.searching, self.high) = (false, self.full);
        self.lower(now, mss)
    }

    /// The data at SND.UNA, of `len` bytes, has timed out `timeouts` times in a row. Returns the new size, if it
    /// changes.
    pub(super) fn timed_out(&mut self, now: Micros, timeouts: u32, len: u32) -> Option<u16> {
        if timeouts < TIMEOUTS || len < u32::from(self.mss) {
            return None;
        }
        if self.trying {
            self.high = self.mss - 1;
            return self.lower(now, self.low);
        }
        let base = BASES.into_iter().map(|base| base.max(self.floor())).find(|base| *base < self.mss)?;
        self.high = if self.searching { self.high.min(self.mss - 1) } else { self.mss };
        self.searching = true;
        self.lower(now, base)
    }

    fn lower(&mut self, now: Micros, mss: u16) -> Option<u16> {
        (self.mss, self.low, self.trying) = (mss, mss, false);
        self.next = Some(now.after(RAISE_US));
        Some(mss)
    }

    /// Data was acknowledged and more waits. Returns the next larger size, if it is time to try it.
    pub(super) fn try_larger(&mut self, now: Micros) -> Option<u16> {
        if self.next.is_none_or(|next| now < next) {
            return None;
        }
        // The last size has passed.
        (self.low, self.trying) = (self.mss, false);
        if self.high.saturating_sub(self.low) < CLOSE {
            self.next = None;
            return None;
        }
        self.mss = if self.searching { self.low + (self.high - self.low).div_ceil(2) } else { self.high };
        self.trying = true;
        self.next = Some(now.after(STEP_US));
        Some(self.mss)
    }

    /// The route's MTU has changed. `full`: the size that it and the peer allow.
    pub(super) fn reroute(&mut self, full: u16) -> Option<u16> {
        if full == self.full {
            return None;
        }
        let changed = self.mss != full;
        *self = Self::new(self.v6, full, self.overhead);
        changed.then_some(full)
    }

    /// The size that route and peer allow, if a router has said that the path takes less. It says so to others, too.
    pub(super) fn told(&self) -> Option<u16> {
        (!self.searching && self.mss < self.full).then_some(self.full)
    }

    /// Bytes of headers and timestamps in each packet.
    pub(super) fn overhead(&self) -> u16 {
        self.overhead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path() -> PathMtu {
        PathMtu::new(false, 1448, 52)
    }

    fn at(seconds: u64) -> Micros {
        Micros(seconds * 1_000_000)
    }

    #[test]
    fn a_router_lowers_the_size_and_ten_minutes_raise_it() {
        let mut path = path();
        assert_eq!(path.too_big(at(0), 1400, 1500), Some(1348));
        assert_eq!(path.too_big(at(0), 1400, 1500), None, "known");
        assert_eq!(path.too_big(at(0), 9000, 1500), None, "never up");
        assert_eq!(path.try_larger(at(599)), None);
        assert_eq!(path.try_larger(at(600)), Some(1448));
        assert_eq!(path.too_big(at(601), 1300, 1500), Some(1248), "still too large");
        assert_eq!(path.try_larger(at(1201)), Some(1448));
        assert_eq!(path.try_larger(at(9999)), None, "there");
    }

    #[test]
    fn a_size_is_tried_if_it_is_eight_bytes_larger_and_not_if_it_is_seven() {
        for (mtu, mss, larger) in [(1492, 1440, Some(1448)), (1493, 1441, None)] {
            let mut path = path();
            assert_eq!(path.too_big(at(0), mtu, 1500), Some(mss));
            assert_eq!(path.try_larger(at(600)), larger, "{mss}");
        }
    }

    #[test]
    fn no_error_makes_packets_tiny_and_none_without_a_size_is_lost() {
        assert_eq!(path().too_big(at(0), 68, 1500), Some(500), "552");
        assert_eq!(PathMtu::new(true, 1428, 72).too_big(at(0), 68, 1500), Some(1208), "1280");
        assert_eq!(path().too_big(at(0), 0, 1500), Some(1440), "plateaus");
        assert_eq!(path().too_big(at(0), 0, 1492), Some(954));
        assert_eq!(path().too_big(at(0), u32::MAX, 1500), None);
    }

    #[test]
    fn large_segments_that_vanish_are_made_smaller_and_the_largest_that_passes_is_searched() {
        let mut path = path();
        assert_eq!(path.timed_out(at(0), 1, 1448), None, "once is nothing");
        assert_eq!(path.timed_out(at(0), 2, 100), None, "a small one says nothing");
        assert_eq!(path.timed_out(at(0), 2, 5000), Some(1024));
        assert_eq!(path.timed_out(at(1), 3, 5000), Some(512));
        assert_eq!(path.timed_out(at(2), 4, 5000), None, "no smaller");
        // 900 bytes pass, 901 do not.
        let (mut now, mut seen) = (2, Vec::new());
        while now < 100_000 {
            now += 60;
            if let Some(mss) = path.try_larger(at(now)) {
                seen.push(mss);
                if mss > 900 {
                    assert_eq!(path.timed_out(at(now + 1), 2, 5000), Some(path.low));
                }
            }
        }
        assert!((893..=900).contains(&path.mss), "{seen:?}");
    }

    #[test]
    fn a_new_route_begins_anew() {
        let mut path = path();
        path.too_big(at(0), 1400, 1500);
        assert_eq!(path.reroute(1448), None, "the same route");
        assert_eq!(path.reroute(8948), Some(8948));
        assert_eq!(path.too_big(at(0), 1400, 9000), Some(1348));
    }

    #[test]
    fn a_segment_of_just_the_size_in_use_is_a_large_one() {
        assert_eq!(path().timed_out(at(0), 2, 1448), Some(1024));
        assert_eq!(path().timed_out(at(0), 2, 1447), None);
        assert_eq!(path().timed_out(at(0), 1, 1448), None);
    }

    /// RFC 4821 §7.3: the middle of what passes and what may, rounded up; ten minutes after a loss, one after a success.
    #[test]
    fn a_search_halves_its_range_and_a_loss_lowers_its_end() {
        let mut path = path();
        assert_eq!(path.timed_out(at(0), 2, 5000), Some(1024));
        let mut now = 0;
        let mut larger = |path: &mut PathMtu, seconds| {
            assert_eq!(path.try_larger(at(now + seconds - 1)), None);
            now += seconds;
            path.try_larger(at(now))
        };
        assert_eq!(larger(&mut path, 600), Some(1236), "1,024 and half of 424");
        assert_eq!(larger(&mut path, 60), Some(1342));
        assert_eq!(path.timed_out(at(660), 2, 1342), Some(1236), "1,342 is too large");
        assert_eq!(path.high, 1341);
        assert_eq!(larger(&mut path, 600), Some(1289));
        // The size that had passed passes no more. The search begins below it.
        assert_eq!(larger(&mut path, 60), Some(1315));
        assert_eq!(path.timed_out(at(1320), 2, 1315), Some(1289));
        assert_eq!(path.timed_out(at(1320), 2, 1289), Some(1024));
        assert_eq!((path.high, path.low), (1288, 1024));
        assert_eq!(path.overhead(), 52);
    }
}
