//! Which modules have a frame: a table from its connection to the bits of the selectors that choose the connection's client. It
//! also tells modules that ask for it which connection a frame belongs to.
//!
//! Modules run before the protocol looks for the flow, so they need a look-up of their own. Flow groups look up and take no
//! lock; the slow path fills the table. It enters a connection when its first SYN is sent, or when it is established. A frame
//! of a connection that is not there belongs to whoever listens on its local port. So no peer gets past a module by what it
//! sends right behind the last segment of the handshake, before the connection is known.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use towpath_modules::{Map, MapKind, MapSpec};
use towpath_runtime::Selectors;
use towpath_tcp::flow::{FlowId, FourTuple, Owner};
use towpath_wire::segment::{Segment, parse};

/// Bytes of a key: source and destination of a received segment, and their ports. A listener has no source, and one on all
/// addresses has zeros for its own.
const KEY: usize = 36;
type Key = [u8; KEY];
/// Bytes of a value: the bits, and the number of the connection.
const VALUE: usize = 8;
/// The number of a connection that has none: it is not established. So are listeners.
const NO_FLOW: u32 = u32::MAX;

/// What the table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    bits: u32,
    flow: u32,
}

impl Entry {
    fn bytes(self) -> [u8; VALUE] {
        (u64::from(self.flow) << 32 | u64::from(self.bits)).to_ne_bytes()
    }
    fn of(bytes: [u8; VALUE]) -> Self {
        let both = u64::from_ne_bytes(bytes);
        Self { bits: both as u32, flow: (both >> 32) as u32 }
    }
}

/// The table, as flow groups use it.
#[derive(Debug)]
pub struct Selected(Map);

impl Selected {
    /// An empty one for this many connections and listeners.
    fn new(entries: u32) -> Self {
        let spec = MapSpec {
            name: "selected".into(),
            kind: MapKind::Hash,
            key_size: KEY as u32,
            value_size: VALUE as u32,
            entries: entries.max(1),
            flags: 0,
            initial: Vec::new(),
            read_only: false,
            programs: Vec::new(),
            pinned: false,
        };
        Self(Map::new(&spec, 1, |_| None))
    }

    /// The selectors that choose whoever has a received frame. What is no TCP segment is nobody's.
    pub fn received(&self, frame: &[u8]) -> u32 {
        // The protocol reads frames by the same function, so no frame is another connection's for it.
        let Ok(segment) = parse(frame) else { return 0 };
        let [source, destination] = ends(&segment);
        self.bits(source, destination)
    }

    /// The same for a frame that is sent.
    pub fn sent(&self, frame: &[u8]) -> u32 {
        let Ok(segment) = parse(frame) else { return 0 };
        let [source, destination] = ends(&segment);
        self.bits(destination, source)
    }

    /// Number of the connection that a received frame belongs to.
    pub fn flow_received(&self, frame: &[u8]) -> Option<u32> {
        let [source, destination] = ends(&parse(frame).ok()?);
        self.flow(source, destination)
    }

    /// The same for a frame that is sent.
    pub fn flow_sent(&self, frame: &[u8]) -> Option<u32> {
        let [source, destination] = ends(&parse(frame).ok()?);
        self.flow(destination, source)
    }

    fn flow(&self, remote: SocketAddr, local: SocketAddr) -> Option<u32> {
        self.get(&key(remote, local)).map(|entry| entry.flow).filter(|flow| *flow != NO_FLOW)
    }

    fn bits(&self, remote: SocketAddr, local: SocketAddr) -> u32 {
        let connection = self.get(&key(remote, local));
        let listener = || self.get(&listening(local));
        let on_all_addresses = || self.get(&listening(SocketAddr::new(unspecified(), local.port())));
        connection.or_else(listener).or_else(on_all_addresses).map_or(0, |entry| entry.bits)
    }

    fn get(&self, key: &Key) -> Option<Entry> {
        let mut value = [0; VALUE];
        self.0.get(key, &mut value).then(|| Entry::of(value))
    }
}

fn ends(segment: &Segment) -> [SocketAddr; 2] {
    let Segment { source, destination, source_port, destination_port, .. } = *segment;
    [SocketAddr::new(source, source_port), SocketAddr::new(destination, destination_port)]
}

fn unspecified() -> IpAddr {
    IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED)
}

/// A connection as a received segment names it. IPv4 addresses are IPv4-mapped.
fn key(remote: SocketAddr, local: SocketAddr) -> Key {
    let octets = |address| match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    let mut key = [0; KEY];
    key[..16].copy_from_slice(&octets(remote.ip()));
    key[16..32].copy_from_slice(&octets(local.ip()));
    key[32..34].copy_from_slice(&remote.port().to_be_bytes());
    key[34..].copy_from_slice(&local.port().to_be_bytes());
    key
}

/// A listener. Those on all addresses of either family are one.
fn listening(local: SocketAddr) -> Key {
    let address = if local.ip().is_unspecified() { unspecified() } else { local.ip() };
    key(SocketAddr::new(unspecified(), 0), SocketAddr::new(address, local.port()))
}

/// The table, as the slow path fills it.
pub struct Selection {
    table: Arc<Selected>,
    entries: u32,
    /// Says which selectors choose a client.
    pub selectors: Selectors,
    /// What connections have in the table.
    connections: HashMap<Owner, Key>,
    /// What listeners have there, and who they are. Several may share a port.
    listeners: HashMap<Owner, Key>,
    at: BTreeMap<Key, Vec<(Owner, u32)>>,
    /// Was it said that there is no room?
    said: bool,
}

impl Selection {
    /// An empty one for this many connections, and as many listeners.
    pub fn new(connections: u32, selectors: Selectors) -> Self {
        let entries = connections.saturating_mul(2);
        Self {
            table: Arc::new(Selected::new(entries)),
            entries,
            selectors,
            connections: HashMap::new(),
            listeners: HashMap::new(),
            at: BTreeMap::new(),
            said: false,
        }
    }
    /// The table.
    pub fn table(&self) -> &Arc<Selected> {
        &self.table
    }

    /// These selectors choose a connection from now on, and no others. One that none chooses is entered, too. Else its frames
    /// would be those of whoever listens on its port. `flow`: its number, if it is established.
    pub fn connection(&mut self, owner: Owner, tuple: &FourTuple, selectors: u32, flow: Option<FlowId>) {
        let key = key(tuple.remote_end(), tuple.local_end());
        if let Some(old) = self.connections.insert(owner, key).filter(|old| *old != key) {
            self.remove(&old);
        }
        self.set(&key, Entry { bits: selectors, flow: flow.map_or(NO_FLOW, |flow| flow.0) });
    }

    /// The same for a listener.
    pub fn listener(&mut self, owner: Owner, local: SocketAddr, selectors: u32) {
        let key = listening(local);
        if let Some(old) = self.listeners.insert(owner, key) {
            self.at.entry(old).or_default().retain(|(other, _)| *other != owner);
            // What stays at its place is never missing there: modules that run meanwhile read the same table.
            if old != key {
                self.show(&old);
            }
        }
        self.at.entry(key).or_default().push((owner, selectors));
        self.show(&key);
    }

    /// A connection or a listener is over.
    pub fn leave(&mut self, owner: Owner) {
        if let Some(key) = self.connections.remove(&owner) {
            self.remove(&key);
        }
        if let Some(key) = self.listeners.remove(&owner) {
            self.at.entry(key).or_default().retain(|(other, _)| *other != owner);
            self.show(&key);
        }
    }

    /// A frame of no connection may be for any of those who listen there.
    fn show(&mut self, key: &Key) {
        let all = self.at.get(key).map_or(&[][..], Vec::as_slice);
        if all.is_empty() {
            self.at.remove(key);
            return self.remove(key);
        }
        let selectors = all.iter().fold(0, |all, (_, bits)| all | bits);
        self.set(key, Entry { bits: selectors, flow: NO_FLOW });
    }

    fn set(&mut self, key: &Key, entry: Entry) {
        if let Err(errno) = self.table.0.set(key, &entry.bytes()) {
            self.no_room(errno);
        }
    }

    fn remove(&self, key: &Key) {
        // Without room it was never there.
        let _ = self.table.0.remove(key);
    }

    /// There is room for all connections that the stack can have, and for as many listeners.
    #[cold]
    fn no_room(&mut self, errno: i32) {
        if !std::mem::replace(&mut self.said, true) {
            let entries = self.entries;
            tracing::error!(
                entries,
                errno,
                "no room in the table of connections and listeners for modules with --app; these modules do not have the frames of more, and modules are not told the numbers of more"
            );
        }
    }
}

#[cfg(test)]
#[path = "selection_tests.rs"]
pub(crate) mod tests;
