//! The listeners whose connections may be handed over: `TOWPATH_SPLICE`, which `towpath run --splice` sets.

use core::ops::RangeInclusive;
use std::sync::OnceLock;
use towpath_ring::ports::{VARIABLE, ranges};

static PORTS: OnceLock<Vec<RangeInclusive<u16>>> = OnceLock::new();

fn ports() -> &'static [RangeInclusive<u16>] {
    PORTS.get_or_init(|| {
        let given = std::env::var(VARIABLE).unwrap_or_default();
        // A list that is wrong names no port: nothing is done that nobody has asked for.
        ranges(&given).unwrap_or_default()
    })
}

/// Has the operator named any?
pub fn any() -> bool {
    !ports().is_empty()
}

/// Has the operator named this one?
pub fn has(port: u16) -> bool {
    ports().iter().any(|range| range.contains(&port))
}
