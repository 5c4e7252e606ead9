//! The policy's limits and waiting times.

use crate::words::counted;
use serde::{Deserialize, Serialize};

/// Why a configuration is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// There is no number of cores that every limit allows.
    #[error(
        "no number of cores is at least {min}, at most {max}, and leaves {app_min} of {} to applications",
        counted(*total, "CPU")
    )]
    NoRoom {
        /// Fewest.
        min: u32,
        /// Most.
        max: u32,
        /// CPUs that applications keep.
        app_min: u32,
        /// All.
        total: u32,
    },
    /// A threshold is out of its range.
    #[error("{0} is out of its range")]
    Range(&'static str),
}

/// Limits and waiting times. Times are in ticks. The caller chooses the length of a tick: a second for the kernel's
/// receive path, 100 ms for a service's threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Fewest cores of the pool. 0 if the stack can work without any, as the kernel's receive path on all CPUs can.
    pub min: u32,
    /// Most.
    pub max: u32,
    /// CPUs that applications always keep.
    pub app_min: u32,
    /// CPUs that the stack and applications share, at most [`Config::MOST_CPUS`].
    pub total: u32,
    /// One core more is wanted when each is busy for more than this part of its time.
    pub high: f64,
    /// One core less is wanted when the remaining ones would be busy for this much less than `high`, in cores. So no
    /// size is both too large and too small for a load.
    pub gap: f64,
    /// Grow after being busy for this long.
    pub up_ticks: u32,
    /// Shrink after being idle for this long. It is longer than `up_ticks`: a core too many costs less than one too
    /// few.
    pub down_ticks: u32,
    /// Grow after pressure for this long.
    pub pressure_ticks: u32,
    /// Nothing is decided for this long after a change.
    pub settle_ticks: u32,
    /// Length of a trial, and of the time before the change that it is compared with.
    pub trial_ticks: u32,
    /// Worse means: throughput falls by this part, or average latency rises by twice this part.
    pub tolerance: f64,
    /// Two times can be compared if the offered load differs by no more than this part.
    pub alike: f64,
    /// A size that was worse is not tried for this long, and for twice as long each time that it is worse again.
    pub backoff_ticks: u64,
    /// The longest back-off.
    pub backoff_most_ticks: u64,
    /// Applications starve when they wait for a CPU for more than this part of their time ...
    pub waiting: f64,
    /// ... and have used more than this part of the CPUs that they have.
    pub app_high: f64,
    /// After this long without a change, a size is tried whose outcome with this load is unknown.
    pub explore_ticks: u64,
    /// Most changes in [`Config::RATE_TICKS`] ticks.
    pub most_changes: u32,
    /// After this many changes for the worse in [`Config::RATE_TICKS`], go back to the fewest cores and rest for
    /// `backoff_most_ticks`.
    pub fuse: u32,
}

impl Config {
    /// The window for counting changes: ten minutes with ticks of a second, a minute with ticks of 100 ms.
    pub const RATE_TICKS: u64 = 600;
    /// Most CPUs that Linux can be built for. It bounds the memory that the sizes take.
    pub const MOST_CPUS: u32 = 8192;

    /// The defaults for this many CPUs: at most half of them go to the stack.
    pub fn new(total: u32) -> Self {
        Self {
            min: 0,
            max: total / 2,
            app_min: total.div_ceil(2).max(1),
            total,
            high: 0.75,
            gap: 0.15,
            up_ticks: 3,
            down_ticks: 20,
            pressure_ticks: 2,
            settle_ticks: 5,
            trial_ticks: 10,
            tolerance: 0.05,
            alike: 0.10,
            backoff_ticks: 50,
            backoff_most_ticks: 3200,
            waiting: 0.10,
            app_high: 0.92,
            explore_ticks: 100,
            most_changes: 12,
            fuse: 4,
        }
    }

    /// Checks that it allows some size, and that every threshold is in its range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let Self { min, max, app_min, total, .. } = *self;
        if min > max || app_min > total || min > total - app_min {
            return Err(ConfigError::NoRoom { min, max, app_min, total });
        }
        let within = |value: f64, from: f64, to: f64| value.is_finite() && value > from && value < to;
        let ranges = [
            ("total", total <= Self::MOST_CPUS),
            ("high", within(self.high, 0.0, 1.0)),
            ("gap", within(self.gap, 0.0, 1.0)),
            ("tolerance", within(self.tolerance, 0.0, 1.0)),
            ("alike", within(self.alike, 0.0, 1.0)),
            ("waiting", within(self.waiting, 0.0, 1.0)),
            ("app_high", within(self.app_high, 0.0, 1.0)),
            ("up_ticks", self.up_ticks > 0),
            ("down_ticks", self.down_ticks > 0),
            ("pressure_ticks", self.pressure_ticks > 0),
            ("trial_ticks", (1..=1000).contains(&self.trial_ticks)),
            ("backoff_ticks", self.backoff_ticks > 0 && self.backoff_ticks <= self.backoff_most_ticks),
            ("explore_ticks", self.explore_ticks > 0),
            ("most_changes", (1..=600).contains(&self.most_changes)),
            ("fuse", self.fuse > 0),
        ];
        ranges.iter().find(|(_, held)| !held).map_or(Ok(()), |(name, _)| Err(ConfigError::Range(name)))
    }

    /// The gain that keeps a larger size after an exploration, and the loss that rejects a smaller one. It is much
    /// finer than `tolerance`, because such a loss lasts for as long as the load stays.
    pub(crate) fn fine(&self) -> f64 {
        self.tolerance / 8.0
    }
    /// Most cores that all limits together allow.
    pub fn most(&self) -> u32 {
        self.max.min(self.total.saturating_sub(self.app_min))
    }
    /// True if this number of cores is allowed.
    pub fn allows(&self, cores: u32) -> bool {
        (self.min..=self.most()).contains(&cores)
    }
}
