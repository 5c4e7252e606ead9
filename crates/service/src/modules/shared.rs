//! Maps that are not a module's own, because they are pinned, or were.

use super::Settings;
use std::sync::Arc;
use towpath_modules::Map;

/// A map that is not a module's own.
#[derive(Clone, Debug)]
pub struct SharedMap {
    /// `None`: the pin was removed while modules had the map.
    pub pin: Option<String>,
    pub map: Arc<Map>,
    pub settings: Settings,
}

impl SharedMap {
    /// Is it this one?
    pub fn is(&self, map: &Arc<Map>) -> bool {
        Arc::ptr_eq(&self.map, map)
    }
}

/// The pin of a map.
pub fn pin_of(shared: &[SharedMap], map: &Arc<Map>) -> Option<String> {
    shared.iter().find(|shared| shared.is(map))?.pin.clone()
}

/// The place of the map with this pin.
pub fn place(shared: &[SharedMap], pin: &str) -> Result<usize, String> {
    shared.iter().position(|shared| shared.pin.as_deref() == Some(pin)).ok_or_else(|| {
        let mut names: Vec<_> = shared.iter().filter_map(|shared| shared.pin.as_deref()).collect();
        names.sort_unstable();
        let names = if names.is_empty() { "none".into() } else { names.join(", ") };
        format!("there is no pin {pin:?}; the service has {names}")
    })
}
