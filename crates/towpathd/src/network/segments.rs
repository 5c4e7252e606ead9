//! Where devices of several network namespaces meet: on a bridge, or as the two ends of a veth pair.

use super::netlink::{Device, DeviceKind};
use std::io;

/// A device: the place of its namespace in a list, and its index.
pub type Place = (usize, u32);

/// What joins devices without a router between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// A bridge.
    Bridge(Place),
    /// The two ends of a veth pair, in their order.
    Pair(Place, Place),
}

/// What is asked of the kernel about namespaces and their devices.
pub trait Devices {
    /// A device.
    fn device(&mut self, at: Place) -> io::Result<Device>;
    /// The namespace that the one at place `from` knows by this number. `None`: it is not in the list.
    fn numbered(&mut self, from: usize, number: i32) -> io::Result<Option<usize>>;
}

/// The segment of a device. `None`: it is of another kind, or leads to a namespace that is not in the list.
pub fn segment(devices: &mut impl Devices, at: Place) -> io::Result<Option<Segment>> {
    let device = devices.device(at)?;
    let peer = match (device.kind, device.peer) {
        (DeviceKind::Bridge, _) => return Ok(Some(Segment::Bridge(at))),
        (DeviceKind::Veth, Some(peer)) => peer,
        _ => return Ok(None),
    };
    let namespace = match device.peer_namespace {
        Some(number) => devices.numbered(at.0, number)?,
        None => Some(at.0),
    };
    let Some(namespace) = namespace else { return Ok(None) };
    let other = (namespace, peer);
    // The device itself may be a port, too: then its address is not reached by it.
    if device.controller.is_some() {
        return Ok(None);
    }
    match devices.device(other)?.controller {
        None => Ok(Some(Segment::Pair(at.min(other), at.max(other)))),
        Some(controller) => {
            let is_bridge = devices.device((namespace, controller))?.kind == DeviceKind::Bridge;
            Ok(is_bridge.then_some(Segment::Bridge((namespace, controller))))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::HashMap;

    /// Namespaces know each other by numbers of their own: 10 more than the place.
    struct Host(HashMap<Place, Device>);

    impl Devices for Host {
        fn device(&mut self, at: Place) -> io::Result<Device> {
            self.0.get(&at).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
        }
        fn numbered(&mut self, _: usize, number: i32) -> io::Result<Option<usize>> {
            Ok(usize::try_from(number - 10).ok().filter(|place| *place < 3))
        }
    }

    fn veth(peer: u32, namespace: i32) -> Device {
        Device { kind: DeviceKind::Veth, peer: Some(peer), peer_namespace: Some(namespace), controller: None }
    }

    fn bridge() -> Device {
        Device { kind: DeviceKind::Bridge, ..Device::default() }
    }

    #[test]
    fn the_ends_of_a_pair_are_one_segment_and_others_of_the_same_index_are_not() {
        let mut host = Host(HashMap::from([
            ((0, 2), veth(2, 11)),
            ((1, 2), veth(2, 10)),
            ((2, 2), veth(3, 10)),
            ((0, 3), veth(2, 12)),
        ]));
        let one = segment(&mut host, (0, 2)).unwrap().unwrap();
        assert_eq!(one, Segment::Pair((0, 2), (1, 2)));
        assert_eq!(segment(&mut host, (1, 2)).unwrap(), Some(one));
        assert_ne!(segment(&mut host, (2, 2)).unwrap(), Some(one), "only the index is the same");
    }

    #[test]
    fn two_ports_of_a_bridge_are_one_segment_with_the_bridge() {
        let port = |peer, namespace, controller| Device { controller: Some(controller), ..veth(peer, namespace) };
        let mut host = Host(HashMap::from([
            ((0, 2), veth(5, 12)),
            ((1, 2), veth(6, 12)),
            ((1, 3), veth(7, 12)),
            ((2, 5), port(2, 10, 9)),
            ((2, 6), port(2, 11, 9)),
            ((2, 7), port(3, 11, 8)),
            ((2, 8), bridge()),
            ((2, 9), bridge()),
        ]));
        let mut of = |at| segment(&mut host, at).unwrap();
        let all = Some(Segment::Bridge((2, 9)));
        assert_eq!((of((0, 2)), of((1, 2)), of((2, 9))), (all, all, all));
        assert_ne!(of((1, 3)), all, "another bridge");
        assert_eq!(of((2, 5)), None, "a port has no address of its own");
    }

    #[test]
    fn other_kinds_and_unknown_namespaces_have_none() {
        let under = Device { controller: Some(9), ..Device::default() };
        let mut host = Host(HashMap::from([
            ((0, 1), Device::default()),
            ((0, 2), veth(2, 77)),
            ((0, 3), Device { kind: DeviceKind::Other, peer: Some(4), ..Device::default() }),
            ((0, 4), veth(5, 11)),
            ((1, 5), under),
            ((1, 9), Device::default()),
        ]));
        let mut of = |at| segment(&mut host, at).unwrap();
        assert_eq!((of((0, 1)), of((0, 2)), of((0, 3))), (None, None, None));
        assert_eq!(of((0, 4)), None, "a bond is no bridge");
    }
}
