//! Spliced connections whose segments the kernel sends on by itself: `bpf/forward.bpf.h`.

use crate::keys::FlowKey;
use crate::object::{LoadError, Maps};
use crate::steer_error::os_error;
use aya::maps::{HashMap, MapData, MapError};

/// `struct towpath_splice` of `bpf/modules/towpath.h`.
pub type Splice = [u8; 88];

/// In a value of the map `flows`, beside who has sent the first SYN.
const SPLICED: u32 = 4;

type Flows = HashMap<MapData, FlowKey, u32>;

/// What is sent on.
pub(crate) struct Forwarding(HashMap<MapData, FlowKey, Splice>);

impl Forwarding {
    pub(crate) fn over(maps: &mut Maps) -> Result<Self, LoadError> {
        maps.take("splices").map(Self)
    }

    /// Begins it for a connection in `flows`. Whoever sees the mark finds the element.
    pub(crate) fn begin(&mut self, flows: &mut Flows, key: &FlowKey, splice: &Splice) -> Result<(), MapError> {
        let steered = flows.get(key, 0)?;
        self.0.insert(key, splice, 0)?;
        flows.insert(key, steered | SPLICED, 0)
    }

    /// Ends it. Returns the element as it was at last. Without it nothing is sent on, even if the mark should stay.
    pub(crate) fn end(&mut self, flows: &mut Flows, key: &FlowKey) -> Result<Option<Splice>, MapError> {
        let unmarked = match flows.get(key, 0) {
            Ok(steered) if steered & SPLICED != 0 => flows.insert(key, steered & !SPLICED, 0),
            _ => Ok(()),
        };
        let last = self.get(key);
        unmarked.and(gone(self.0.remove(key))).map(|()| last)
    }

    pub(crate) fn get(&self, key: &FlowKey) -> Option<Splice> {
        self.0.get(key, 0).ok()
    }
}

/// The result of removing an entry: one that has gone already is no error.
pub(crate) fn gone(result: Result<(), MapError>) -> Result<(), MapError> {
    match result {
        Err(error) if os_error(&error) == Some(libc::ENOENT) || matches!(error, MapError::KeyNotFound) => Ok(()),
        other => other,
    }
}
