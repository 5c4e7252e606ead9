//! Names of the reasons for which frames are dropped. This crate knows their numbers alone.

use std::sync::OnceLock;

static NAMES: OnceLock<&'static [&'static str]> = OnceLock::new();

/// Sets them, once.
pub fn set(names: &'static [&'static str]) {
    let _ = NAMES.set(names);
}

/// The name of a reason.
pub fn name(number: u64) -> &'static str {
    let names = NAMES.get().copied().unwrap_or_default();
    usize::try_from(number).ok().and_then(|number| names.get(number)).unwrap_or(&"?")
}
