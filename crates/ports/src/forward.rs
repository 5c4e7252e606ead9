//! Spliced connections whose segments the kernel sends on by itself: `bpf/forward.bpf.h`.

use crate::object::{LoadError, Maps};
use crate::steer_error::os_error;
use aya::Pod;
use aya::maps::{HashMap, MapData, MapError};
use std::net::{IpAddr, SocketAddr};

/// `struct towpath_connection` of `bpf/modules/towpath.h`: a connection as received segments name it.
pub type Connection = [u8; 40];

/// `struct towpath_splice`.
pub type Splice = [u8; 128];

/// Where a splice says by which interface its segments go; 0: back over the port that they came by, which has none.
pub const OUT_AT: usize = 84;

/// The connection between two ends. `None`: they are of different families, or mean nothing without their interface.
pub fn connection(local: SocketAddr, remote: SocketAddr) -> Option<Connection> {
    let mut key = [0; size_of::<Connection>()];
    let mut put = |at: usize, bytes: &[u8]| key[at..at + bytes.len()].copy_from_slice(bytes);
    match (remote.ip(), local.ip()) {
        (IpAddr::V4(remote), IpAddr::V4(local)) => {
            put(0, &remote.octets());
            put(16, &local.octets());
            put(36, &4u32.to_ne_bytes());
        }
        (IpAddr::V6(remote), IpAddr::V6(local)) => {
            if remote.is_unicast_link_local() || local.is_unicast_link_local() {
                return None;
            }
            put(0, &remote.octets());
            put(16, &local.octets());
            put(36, &6u32.to_ne_bytes());
        }
        _ => return None,
    }
    put(32, &remote.port().to_be_bytes());
    put(34, &local.port().to_be_bytes());
    Some(key)
}

/// In a value of the map `flows`, beside who has sent the first SYN.
const SPLICED: u32 = 4;

/// The connections that are steered, over one family.
type Flows<K> = HashMap<MapData, K, u32>;

/// What is sent on.
pub(crate) struct Forwarding(HashMap<MapData, Connection, Splice>);

impl Forwarding {
    pub(crate) fn over(maps: &mut Maps) -> Result<Self, LoadError> {
        maps.take("splices").map(Self)
    }

    /// Begins it for a connection in `flows`. Whoever sees the mark finds the element.
    pub(crate) fn begin<K: Pod>(
        &mut self,
        flows: &mut Flows<K>,
        (flow, key): (&K, &Connection),
        splice: &Splice,
    ) -> Result<(), MapError> {
        let steered = flows.get(flow, 0)?;
        self.0.insert(key, splice, 0)?;
        flows.insert(flow, steered | SPLICED, 0)
    }

    /// Ends it. Returns the element as it was at last. Without it nothing is sent on, even if the mark should stay.
    pub(crate) fn end<K: Pod>(
        &mut self,
        flows: &mut Flows<K>,
        (flow, key): (&K, &Connection),
    ) -> Result<Option<Splice>, MapError> {
        let unmarked = match flows.get(flow, 0) {
            Ok(steered) if steered & SPLICED != 0 => flows.insert(flow, steered & !SPLICED, 0),
            _ => Ok(()),
        };
        let last = self.get(key);
        unmarked.and(gone(self.0.remove(key))).map(|()| last)
    }

    pub(crate) fn get(&self, key: &Connection) -> Option<Splice> {
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
