//! A constant rate, whatever the network does, for measurements and for reserved paths.

use super::control::CongestionControl;
use super::rate::{LEAST, Rated};
use super::sample::Sample;
use crate::flow::Window;

/// State for one flow.
#[derive(Clone, Copy, Debug)]
pub struct Constant {
    rated: Rated,
    bytes_per_s: u64,
}

impl Constant {
    /// This rate in bytes per second.
    pub fn new(bytes_per_s: u64) -> Self {
        Self { rated: Rated::default(), bytes_per_s: bytes_per_s.max(LEAST) }
    }
}

impl CongestionControl for Constant {
    fn initial(&mut self, mss: u32, syn_lost: bool) -> Window {
        Window { pacing: self.bytes_per_s, ..self.rated.initial(mss, syn_lost) }
    }

    fn adopt(&mut self, sample: &Sample) -> Window {
        self.rated.set(self.bytes_per_s, sample)
    }

    fn on_interval(&mut self, sample: &Sample) -> Option<Window> {
        Some(self.rated.set(self.bytes_per_s, sample))
    }

    fn on_loss(&mut self, _: &Sample) -> Option<Window> {
        None
    }

    fn on_timeout(&mut self, sample: &Sample) -> Window {
        self.rated.set(self.bytes_per_s, sample)
    }

    fn on_idle(&mut self, _: &Sample) -> Option<Window> {
        None
    }

    fn paced(&self) -> bool {
        true
    }
}
