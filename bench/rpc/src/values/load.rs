//! The steps of load that a client makes.

use super::seconds;
use std::str::FromStr;
use std::time::Duration;
use towpath_rng::Rng;

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// None.
    Idle,
    /// This many connections have one request outstanding each, all the time.
    Closed(usize),
    /// This many requests per second, whether or not earlier ones have been answered, at exponential distances.
    Open(f64),
}

/// A load for some time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The load.
    pub load: Load,
    /// Its duration.
    pub time: Duration,
}

impl Step {
    /// As a report names it.
    pub fn name(&self) -> String {
        match self.load {
            Load::Idle => "idle".to_owned(),
            Load::Closed(connections) => format!("closed:{connections}"),
            Load::Open(rate) => format!("open:{rate:.0}"),
        }
    }
    /// The part of one of `threads` threads.
    pub fn part(&self, thread: usize, threads: usize) -> Load {
        match self.load {
            Load::Closed(all) => Load::Closed(all / threads + usize::from(thread < all % threads)),
            Load::Open(rate) => Load::Open(rate / threads as f64),
            Load::Idle => Load::Idle,
        }
    }
}

impl FromStr for Step {
    type Err = String;
    /// `idle@SECONDS`, `closed:CONNECTIONS@SECONDS`, `open:REQUESTS-PER-SECOND@SECONDS`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text} is no step: idle@2, closed:64@2, open:10000@2");
        let (what, time) = text.split_once('@').ok_or_else(wrong)?;
        let load = match what.split_once(':') {
            None if what == "idle" => Load::Idle,
            Some(("closed", number)) => Load::Closed(number.parse().map_err(|_| wrong())?),
            Some(("open", number)) => {
                let rate: f64 = number.parse().map_err(|_| wrong())?;
                // Below this the next request would come after years.
                if !(rate.is_finite() && rate >= 0.001) {
                    return Err(wrong());
                }
                Load::Open(rate)
            }
            _ => return Err(wrong()),
        };
        Ok(Self { load, time: seconds(time)? })
    }
}

/// Distances between requests of an open loop: exponential, from a seed.
pub struct Arrivals(Rng);

impl Arrivals {
    /// The same for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(Rng::new(seed))
    }
    /// Until the next request, ns.
    pub fn next_ns(&mut self, rate: f64) -> u64 {
        let uniform = ((self.0.next_u64() >> 11) as f64 + 1.0) / (1u64 << 53) as f64;
        (-uniform.ln() / rate * 1e9) as u64
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn steps_are_read_as_they_are_named() {
        let step: Step = "closed:64@2.5".parse().unwrap();
        assert_eq!(step, Step { load: Load::Closed(64), time: Duration::from_millis(2500) });
        assert_eq!("open:1e4@1".parse::<Step>().unwrap().name(), "open:10000");
        assert_eq!("idle@0.1".parse::<Step>().unwrap().load, Load::Idle);
        for text in ["", "idle", "closed@1", "open:0@1", "open:-3@1", "open:inf@1", "closed:4@-1", "half:3@1"] {
            assert!(text.parse::<Step>().is_err(), "{text}");
        }
    }

    #[test]
    fn threads_together_do_the_whole_step() {
        let step: Step = "closed:10@1".parse().unwrap();
        let parts: Vec<Load> = (0..4).map(|thread| step.part(thread, 4)).collect();
        assert_eq!(parts, [Load::Closed(3), Load::Closed(3), Load::Closed(2), Load::Closed(2)]);
    }

    #[test]
    fn arrivals_have_the_rate_asked_for_and_are_the_same_again() {
        let mean = |seed| {
            let mut arrivals = Arrivals::new(seed);
            (0..100_000).map(|_| arrivals.next_ns(1000.0)).sum::<u64>() / 100_000
        };
        assert!((990_000..1_010_000).contains(&mean(1)), "{} ns", mean(1));
        assert_eq!(mean(7), mean(7));
    }
}
