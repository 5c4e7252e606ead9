//! The throughput and latency that applications achieve, as the rings show them. Throughput is the bytes that they give
//! and take. Latency is sampled from the receive ring to the application and back.

use towpath_probes::spread::Spread;

/// A sample that takes longer than this is given up, µs: the application does something else than answer.
const LIMIT_US: u64 = 100_000;
/// No connection.
const NOBODY: u64 = u64::MAX;

/// Totals of a flow group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Achieved {
    /// Bytes that applications have written into send rings and taken from receive rings.
    pub bytes: u64,
    /// Number of samples. A sample is the time from when new data stood in a receive ring until the stack saw that the
    /// application had taken them. An application that answers shows that with its answer. So a sample has three parts:
    /// the data wait for the application, the application works, the answer waits for the stack.
    pub samples: u64,
    /// Sum of the samples' binary logarithms, of µs, in steps of 1/[`Achieved::OCTAVE`]. Logarithms keep a few samples
    /// in a thousand that take a thousand times as long from deciding the mean.
    pub logarithms: u64,
}

impl Achieved {
    /// Steps in a factor of two.
    pub const OCTAVE: u64 = 256;

    /// The sum of both.
    pub fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            samples: self.samples + other.samples,
            logarithms: self.logarithms + other.logarithms,
        }
    }
    /// Geometric mean of the samples since `before`, µs.
    pub fn latency_us(&self, before: &Self) -> Option<f64> {
        let samples = self.samples.checked_sub(before.samples).filter(|samples| *samples > 0)?;
        let logarithms = self.logarithms.saturating_sub(before.logarithms) as f64;
        Some((logarithms / samples as f64 / Self::OCTAVE as f64).exp2())
    }
}

/// Takes one sample at a time, of one connection of a flow group. Only the group's thread uses it.
#[derive(Debug)]
pub struct Sampler {
    achieved: Achieved,
    /// The samples, with those that were given up: as long as they had lasted.
    times: Spread,
    connection: u64,
    /// The position up to which the application is to take.
    mark: u32,
    since_us: u64,
}

impl Default for Sampler {
    fn default() -> Self {
        Self { achieved: Achieved::default(), times: Spread::default(), connection: NOBODY, mark: 0, since_us: 0 }
    }
}

impl Sampler {
    /// The totals so far.
    pub fn achieved(&self) -> Achieved {
        self.achieved
    }

    /// How long its samples took.
    pub fn times(&self) -> &Spread {
        &self.times
    }

    /// New data stand in a receive ring, up to this position.
    #[inline]
    pub fn delivered(&mut self, connection: u64, rx_tail: u32, now_us: u64) {
        let waited_us = now_us.saturating_sub(self.since_us);
        if self.connection == NOBODY || waited_us > LIMIT_US {
            if self.connection != NOBODY {
                self.times.add(u32::try_from(waited_us).unwrap_or(u32::MAX));
            }
            (self.connection, self.mark, self.since_us) = (connection, rx_tail, now_us);
        }
    }

    /// An application has given and taken so many bytes, and has come to this position in its receive ring.
    #[inline]
    pub fn moved(&mut self, connection: u64, given: u32, taken: u32, rx_head: u32, now_us: u64) {
        self.achieved.bytes += u64::from(given) + u64::from(taken);
        if self.connection == connection && rx_head.wrapping_sub(self.mark) < 1 << 31 {
            self.record(now_us.saturating_sub(self.since_us));
        }
    }

    #[cold]
    fn record(&mut self, took_us: u64) {
        self.connection = NOBODY;
        self.times.add(u32::try_from(took_us).unwrap_or(u32::MAX));
        if took_us <= LIMIT_US {
            self.achieved.samples += 1;
            self.achieved.logarithms += ((took_us.max(1) as f32).log2() * Achieved::OCTAVE as f32) as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_the_time_until_the_application_has_taken_what_was_new() {
        let mut sampler = Sampler::default();
        let before = sampler.achieved();
        sampler.delivered(7, 100, 1_000);
        // Data of another connection, more data of this one, and a part of its data end no sample.
        sampler.delivered(8, 50, 1_001);
        sampler.moved(8, 10, 50, 50, 1_002);
        sampler.moved(7, 0, 99, 99, 1_003);
        assert_eq!(sampler.achieved(), Achieved { bytes: 159, ..Achieved::default() });
        sampler.moved(7, 64, 1, 100, 1_064);
        let after = sampler.achieved();
        assert_eq!((after.bytes, after.samples, after.latency_us(&before)), (224, 1, Some(64.0)));
        // That one is over; the next begins with what comes next.
        sampler.moved(7, 0, 0, 100, 2_000);
        sampler.delivered(8, u32::MAX, 3_000);
        sampler.moved(8, 0, 5, 3, 3_016);
        assert_eq!(sampler.achieved().latency_us(&after), Some(16.0));
        assert_eq!(sampler.achieved().latency_us(&before), Some(32.0), "the geometric mean of 64 and 16");
        assert_eq!(after.latency_us(&after), None);
    }

    #[test]
    fn who_does_not_answer_keeps_nobody_else_from_being_sampled() {
        let mut sampler = Sampler::default();
        sampler.delivered(7, 100, 0);
        sampler.moved(7, 0, 100, 100, LIMIT_US + 1);
        assert_eq!(sampler.achieved().samples, 0, "too late");
        sampler.delivered(7, 200, 0);
        sampler.delivered(8, 300, LIMIT_US);
        sampler.moved(8, 0, 1, 300, LIMIT_US);
        assert_eq!(sampler.achieved().samples, 0);
        sampler.delivered(8, 300, LIMIT_US + 1);
        sampler.moved(8, 0, 1, 300, LIMIT_US + 9);
        assert_eq!(sampler.achieved().samples, 1);
        assert_eq!(sampler.achieved().latency_us(&Achieved::default()), Some(8.0));
        let counted: Vec<(usize, u64)> =
            sampler.times().counts.into_iter().enumerate().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [(3, 1), (16, 2)], "those that were given up have lasted 0.1 s");
    }
}
