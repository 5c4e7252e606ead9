//! The impairments of one direction of a relay.

use crate::units;
use std::str::FromStr;

/// The impairments of one direction. The default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Impairments {
    /// Share of frames lost independently, in millionths.
    pub loss_ppm: u32,
    /// Loss in bursts.
    pub burst: Option<Burst>,
    /// Share of frames duplicated, in millionths.
    pub duplicate_ppm: u32,
    /// Share of frames in which bits after the Ethernet header flip, in millionths.
    pub corrupt_ppm: u32,
    /// Bottleneck in bits per second; `None` = no limit and no queue.
    pub rate_bits_per_s: Option<u64>,
    /// Size of the bottleneck's queue in bytes. A frame that does not fit is dropped (tail drop).
    pub queue_bytes: u64,
    /// An ECN-capable frame that finds more bytes than this in the queue is marked CE (RFC 3168 §5; K of RFC 8257).
    /// `None` = no marking.
    pub mark_bytes: Option<u64>,
    /// Propagation delay in ns.
    pub delay_ns: u64,
    /// Most additional delay per frame in ns. Frames keep their order.
    pub jitter_ns: u64,
    /// Reordering.
    pub reorder: Option<Reorder>,
}

/// Loss in bursts: the two-state model of Gilbert and Elliott.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Probability, at each frame, that a burst begins, in millionths.
    pub enter_ppm: u32,
    /// Mean length of a burst in frames.
    pub frames: u32,
    /// Share of frames lost within a burst, in millionths.
    pub loss_ppm: u32,
}

/// Reordering: frames are delayed so that later ones overtake them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reorder {
    /// Share of frames delayed, in millionths.
    pub share_ppm: u32,
    /// Their additional delay in ns.
    pub extra_ns: u64,
}

impl FromStr for Burst {
    type Err = String;
    /// `ENTER:LENGTH` or `ENTER:LENGTH:LOSS`, such as `0.2%:5` or `0.2%:10:50%`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is no burst; write how often one begins and its mean length in frames: 0.2%:5");
        let mut parts = text.split(':');
        let enter_ppm = units::share(parts.next().ok_or_else(wrong)?)?;
        let frames = parts.next().and_then(|n| n.parse().ok()).filter(|&n: &u32| n > 0).ok_or_else(wrong)?;
        let loss_ppm = parts.next().map_or(Ok(1_000_000), units::share)?;
        if parts.next().is_some() {
            return Err(wrong());
        }
        Ok(Self { enter_ppm, frames, loss_ppm })
    }
}

impl FromStr for Reorder {
    type Err = String;
    /// `SHARE:TIME`, such as `3%:2ms`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (share, extra) = text.split_once(':').ok_or_else(|| {
            format!("{text:?} is no reordering; write the share and how long it is held back: 3%:2ms")
        })?;
        Ok(Self { share_ppm: units::share(share)?, extra_ns: units::time(extra)? })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn bursts_and_reordering_are_written_with_colons() {
        assert_eq!("0.2%:5".parse(), Ok(Burst { enter_ppm: 2000, frames: 5, loss_ppm: 1_000_000 }));
        assert_eq!("1%:10:50%".parse(), Ok(Burst { enter_ppm: 10_000, frames: 10, loss_ppm: 500_000 }));
        assert_eq!("3%:2ms".parse(), Ok(Reorder { share_ppm: 30_000, extra_ns: 2_000_000 }));
        for wrong in ["1%", "1%:0", "1%:2:3%:4"] {
            assert!(wrong.parse::<Burst>().is_err(), "{wrong}");
        }
        assert!("3%".parse::<Reorder>().unwrap_err().contains("3%:2ms"));
    }
}
