//! All algorithms together: on a modelled bottleneck, and with samples that make no sense.

mod bottleneck;
mod extremes;
pub(super) mod model;
