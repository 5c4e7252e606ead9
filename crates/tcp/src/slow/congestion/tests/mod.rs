//! All algorithms together: on a modelled bottleneck, and with impossible samples.

mod bottleneck;
mod extremes;
pub(super) mod model;
