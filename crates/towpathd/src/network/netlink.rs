//! Netlink queries for routes, neighbours and addresses, one at a time over a blocking socket.

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{InfoData, InfoKind, InfoVlan, LinkAttribute, LinkInfo as Kind, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourExtFlags, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType, RouteVia};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// The kernel's route to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    /// Is the address one of this host's own?
    pub local: bool,
    /// Outgoing interface.
    pub interface: u32,
    /// Next hop. `None`: the destination itself.
    pub gateway: Option<IpAddr>,
    /// The source address that Linux would choose.
    pub source: Option<IpAddr>,
    /// Path MTU in bytes, if the route has one.
    pub mtu: Option<u32>,
}

/// The kernel's neighbour entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// Its MAC address, reachable or to be confirmed.
    Known([u8; 6]),
    /// It is being resolved.
    Asking,
    /// It did not answer.
    Failed,
    /// There is no entry.
    Unknown,
}

/// Address and MTU of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkInfo {
    /// MAC address.
    pub mac: [u8; 6],
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// It is a port of another device, such as a bridge, a bond or a VRF.
    pub is_port: bool,
}

/// A device's kind. Only those that lead to other devices are told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// One end of a veth pair.
    Veth,
    /// A bridge.
    Bridge,
    /// Any other.
    #[default]
    Other,
}

/// A device and what it is joined to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Its kind.
    pub kind: DeviceKind,
    /// The index of a veth's other end, in that one's namespace.
    pub peer: Option<u32>,
    /// This namespace's number of that one. `None`: it is the same.
    pub peer_namespace: Option<i32>,
    /// The device whose port it is.
    pub controller: Option<u32>,
}

/// A netlink socket for queries.
pub struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    /// Opens the socket.
    pub fn connect() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        // The answer is there when `send` returns. The timeout keeps the slow path alive should one be lost.
        let timeout = std::time::Duration::from_secs(2);
        let fd = as_fd(&socket);
        rustix::net::sockopt::set_socket_timeout(fd, rustix::net::sockopt::Timeout::Recv, Some(timeout))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// The route to `remote`, from `source` if that is fixed.
    pub fn route(&mut self, remote: IpAddr, source: Option<IpAddr>) -> io::Result<KernelRoute> {
        let mut ask = RouteMessage::default();
        ask.header.address_family = family(remote);
        ask.header.destination_prefix_length = bits(remote);
        ask.attributes.push(RouteAttribute::Destination(route_address(remote)));
        if let Some(source) = source {
            ask.header.source_prefix_length = bits(source);
            ask.attributes.push(RouteAttribute::Source(route_address(source)));
        }
        for answer in self.ask(RouteNetlinkMessage::GetRoute(ask), 0)? {
            if let RouteNetlinkMessage::NewRoute(route) = answer {
                return route_of(&route);
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }

    /// The entry of the neighbour `address` on an interface.
    pub fn neighbour(&mut self, interface: u32, address: IpAddr) -> io::Result<Neighbour> {
        Ok(self.entry(interface, address)?.map_or(Neighbour::Unknown, |entry| state_of(&entry)))
    }

    fn entry(&mut self, interface: u32, address: IpAddr) -> io::Result<Option<NeighbourMessage>> {
        let ask = neighbour_message(interface, address);
        let answers = match self.ask(RouteNetlinkMessage::GetNeighbour(ask), 0) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            answers => answers?,
        };
        Ok(answers.into_iter().find_map(|answer| match answer {
            RouteNetlinkMessage::NewNeighbour(entry) => Some(entry),
            _ => None,
        }))
    }

    /// Is the entry the operator's? The kernel makes an ordinary one of it when somebody wants it resolved.
    fn is_permanent(&mut self, interface: u32, address: IpAddr) -> io::Result<bool> {
        let fixed =
            |entry: NeighbourMessage| matches!(entry.header.state, NeighbourState::Permanent | NeighbourState::Noarp);
        Ok(self.entry(interface, address)?.is_some_and(fixed))
    }

    /// Lets the kernel resolve a neighbour now. A permanent entry stays as it is.
    pub fn resolve(&mut self, interface: u32, address: IpAddr) -> io::Result<()> {
        if self.is_permanent(interface, address)? {
            return Ok(());
        }
        let mut ask = neighbour_message(interface, address);
        ask.header.flags = NeighbourFlags::Use;
        self.ask(RouteNetlinkMessage::NewNeighbour(ask), NLM_F_CREATE | NLM_F_REPLACE | NLM_F_ACK).map(drop)
    }

    /// Lets the kernel keep a neighbour resolved although it sees no traffic to it (Linux 5.16), or ends that. A
    /// permanent entry stays as it is.
    pub fn manage(&mut self, interface: u32, address: IpAddr, on: bool) -> io::Result<()> {
        if self.is_permanent(interface, address)? {
            return Ok(());
        }
        let mut ask = neighbour_message(interface, address);
        if on {
            ask.attributes.push(NeighbourAttribute::ExtFlags(NeighbourExtFlags::Managed));
        } else {
            ask.header.flags = NeighbourFlags::Use;
        }
        self.ask(RouteNetlinkMessage::NewNeighbour(ask), NLM_F_CREATE | NLM_F_REPLACE | NLM_F_ACK).map(drop)
    }

    /// All addresses of this host, without tentative ones (RFC 4862 §5.4).
    pub fn addresses(&mut self) -> io::Result<Vec<IpAddr>> {
        let answers = self.ask(RouteNetlinkMessage::GetAddress(AddressMessage::default()), NLM_F_DUMP)?;
        Ok(answers
            .iter()
            .filter_map(|answer| match answer {
                RouteNetlinkMessage::NewAddress(entry) => local_address(entry),
                _ => None,
            })
            .collect())
    }

    /// Address and MTU of an interface.
    pub fn link(&mut self, interface: u32) -> io::Result<LinkInfo> {
        let mut ask = LinkMessage::default();
        ask.header.index = interface;
        let mut info = LinkInfo::default();
        for answer in self.ask(RouteNetlinkMessage::GetLink(ask), 0)? {
            if let RouteNetlinkMessage::NewLink(link) = answer {
                info.take(link);
            }
        }
        Ok(info)
    }

    /// A device and what it is joined to.
    pub fn device(&mut self, interface: u32) -> io::Result<Device> {
        let mut ask = LinkMessage::default();
        ask.header.index = interface;
        let mut device = Device::default();
        for answer in self.ask(RouteNetlinkMessage::GetLink(ask), 0)? {
            if let RouteNetlinkMessage::NewLink(link) = answer {
                device.take(link);
            }
        }
        Ok(device)
    }

    /// The device that has an address of this host.
    pub fn device_of(&mut self, address: IpAddr) -> io::Result<Option<u32>> {
        let answers = self.ask(RouteNetlinkMessage::GetAddress(AddressMessage::default()), NLM_F_DUMP)?;
        Ok(answers.iter().find_map(|answer| match answer {
            RouteNetlinkMessage::NewAddress(entry) if local_address(entry) == Some(address) => Some(entry.header.index),
            _ => None,
        }))
    }

    /// This namespace's number of another one, if it has given it one.
    pub fn number_of(&mut self, namespace: BorrowedFd<'_>) -> io::Result<Option<i32>> {
        let mut ask = NsidMessage::default();
        ask.attributes.push(NsidAttribute::Fd(namespace.as_raw_fd().cast_unsigned()));
        let answers = self.ask(RouteNetlinkMessage::GetNsId(ask), 0)?;
        let number = |attribute: &NsidAttribute| match attribute {
            NsidAttribute::Id(number) => Some(*number).filter(|number| *number >= 0),
            _ => None,
        };
        Ok(answers.iter().find_map(|answer| match answer {
            RouteNetlinkMessage::NewNsId(found) => found.attributes.iter().find_map(number),
            _ => None,
        }))
    }

    /// The kernel's device for a VLAN of an interface (`ip link add link eth1 name eth1.7 type vlan id 7`), if there is
    /// one.
    pub fn vlan_device(&mut self, interface: u32, vlan: u16) -> io::Result<Option<u32>> {
        let answers = self.ask(RouteNetlinkMessage::GetLink(LinkMessage::default()), NLM_F_DUMP)?;
        Ok(answers.into_iter().find_map(|answer| match answer {
            RouteNetlinkMessage::NewLink(link) if is_vlan_of(&link, interface, vlan) => Some(link.header.index),
            _ => None,
        }))
    }

    /// Sends one query and collects its answers.
    pub(super) fn ask(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = NetlinkMessage::from(message);
        message.header.flags = NLM_F_REQUEST | flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut answers = Vec::new();
        loop {
            let (packet, _) = self.socket.recv_from_full()?;
            if take_answers(&packet, self.sequence, flags, &mut answers)? {
                return Ok(answers);
            }
        }
    }
}

/// Takes from a packet the answers to the query `sequence`, which was sent with `flags`. True after the last one.
fn take_answers(packet: &[u8], sequence: u32, flags: u16, answers: &mut Vec<RouteNetlinkMessage>) -> io::Result<bool> {
    let mut rest = packet;
    while !rest.is_empty() {
        let answer =
            NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(|e| io::Error::other(e.to_string()))?;
        let length = (answer.header.length as usize).next_multiple_of(4);
        rest = rest.get(length.max(1)..).unwrap_or_default();
        if answer.header.sequence_number != sequence {
            continue;
        }
        match answer.payload {
            NetlinkPayload::InnerMessage(inner) => {
                answers.push(inner);
                // Without ACK or DUMP the answer is one message.
                if flags & (NLM_F_ACK | NLM_F_DUMP) == 0 {
                    return Ok(true);
                }
            }
            NetlinkPayload::Done(_) => return Ok(true),
            NetlinkPayload::Error(error) if error.code.is_none() => return Ok(true),
            NetlinkPayload::Error(error) => return Err(error.to_io()),
            _ => {}
        }
    }
    Ok(false)
}

impl LinkInfo {
    fn take(&mut self, link: LinkMessage) {
        for attribute in link.attributes {
            match attribute {
                LinkAttribute::Address(bytes) => self.mac = mac(&bytes).unwrap_or_default(),
                LinkAttribute::Mtu(mtu) => self.mtu = mtu,
                LinkAttribute::Controller(controller) => self.is_port = controller != 0,
                _ => {}
            }
        }
    }
}

impl Device {
    fn take(&mut self, link: LinkMessage) {
        for attribute in link.attributes {
            match attribute {
                LinkAttribute::Link(index) => self.peer = Some(index),
                LinkAttribute::LinkNetNsId(number) => self.peer_namespace = Some(number),
                LinkAttribute::Controller(index) => self.controller = Some(index),
                LinkAttribute::LinkInfo(infos) => {
                    for info in infos {
                        match info {
                            Kind::Kind(InfoKind::Veth) => self.kind = DeviceKind::Veth,
                            Kind::Kind(InfoKind::Bridge) => self.kind = DeviceKind::Bridge,
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
    }
}

fn is_vlan_of(link: &LinkMessage, interface: u32, vlan: u16) -> bool {
    let has_number = |info: &Kind| {
        let Kind::Data(InfoData::Vlan(data)) = info else { return false };
        data.iter().any(|datum| matches!(datum, InfoVlan::Id(number) if *number == vlan))
    };
    let above = |attribute: &LinkAttribute| matches!(attribute, LinkAttribute::Link(index) if *index == interface);
    let tagged =
        |attribute: &LinkAttribute| matches!(attribute, LinkAttribute::LinkInfo(infos) if infos.iter().any(has_number));
    link.attributes.iter().any(above) && link.attributes.iter().any(tagged)
}

/// A socket that reports every change of links, addresses, routes, rules and neighbours.
pub struct Changes {
    socket: Socket,
}

impl Changes {
    /// Subscribes to changes.
    pub fn subscribe() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        let groups = [
            libc::RTNLGRP_LINK,
            libc::RTNLGRP_NEIGH,
            libc::RTNLGRP_IPV4_IFADDR,
            libc::RTNLGRP_IPV4_ROUTE,
            libc::RTNLGRP_IPV4_RULE,
            libc::RTNLGRP_IPV6_IFADDR,
            libc::RTNLGRP_IPV6_ROUTE,
            libc::RTNLGRP_IPV6_RULE,
        ];
        for group in groups {
            socket.add_membership(group)?;
        }
        socket.set_non_blocking(true)?;
        Ok(Self { socket })
    }

    /// Reads and drops all reports. Neither the kind of a change matters nor whether reports were lost.
    pub fn drain(&self) {
        let mut buffer = Vec::with_capacity(64 << 10);
        loop {
            buffer.clear();
            match self.socket.recv(&mut buffer, 0) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(_) => return,
            }
        }
    }
}

impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        as_fd(&self.socket)
    }
}

fn as_fd(socket: &Socket) -> BorrowedFd<'_> {
    // SAFETY: the returned borrow cannot outlive `socket`, which owns the open descriptor. Its crate offers no `AsFd`.
    unsafe { BorrowedFd::borrow_raw(socket.as_raw_fd()) }
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

/// Bits of an address of this family.
fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn route_address(address: IpAddr) -> RouteAddress {
    match address {
        IpAddr::V4(address) => RouteAddress::Inet(address),
        IpAddr::V6(address) => RouteAddress::Inet6(address),
    }
}

fn ip_address(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

/// The host's address of an entry: IFA_LOCAL. IPv6 has that only if IFA_ADDRESS is the peer's (if_addr.h).
fn local_address(entry: &AddressMessage) -> Option<IpAddr> {
    let tentative = entry.header.flags.contains(AddressHeaderFlags::Tentative);
    let optimistic = entry.header.flags.contains(AddressHeaderFlags::Optimistic);
    if tentative && !optimistic || entry.header.flags.contains(AddressHeaderFlags::Dadfailed) {
        return None;
    }
    let local = entry.attributes.iter().find_map(|a| if let AddressAttribute::Local(a) = a { Some(*a) } else { None });
    let address = |a: &AddressAttribute| if let AddressAttribute::Address(a) = a { Some(*a) } else { None };
    local.or_else(|| entry.attributes.iter().find_map(address))
}

fn neighbour_message(interface: u32, address: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family(address);
    message.header.ifindex = interface;
    let address = match address {
        IpAddr::V4(address) => NeighbourAddress::Inet(address),
        IpAddr::V6(address) => NeighbourAddress::Inet6(address),
    };
    message.attributes.push(NeighbourAttribute::Destination(address));
    message
}

fn route_of(route: &RouteMessage) -> io::Result<KernelRoute> {
    let refused = |errno| Err(io::Error::from_raw_os_error(errno));
    let local = match route.header.kind {
        RouteType::Local => true,
        RouteType::Unicast => false,
        RouteType::BlackHole => return refused(libc::EINVAL),
        RouteType::Prohibit => return refused(libc::EACCES),
        _ => return refused(libc::ENETUNREACH),
    };
    let mut found = KernelRoute { local, interface: 0, gateway: None, source: None, mtu: None };
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(index) => found.interface = *index,
            RouteAttribute::Gateway(address) => found.gateway = ip_address(address),
            // An IPv4 route may have an IPv6 next hop (RFC 5549).
            RouteAttribute::Via(RouteVia::Inet6(address)) => found.gateway = Some((*address).into()),
            RouteAttribute::PrefSource(address) => found.source = ip_address(address),
            RouteAttribute::Metrics(metrics) => {
                found.mtu = metrics.iter().find_map(|m| if let RouteMetric::Mtu(mtu) = m { Some(*mtu) } else { None });
            }
            _ => {}
        }
    }
    Ok(found)
}

fn state_of(entry: &NeighbourMessage) -> Neighbour {
    let address = entry.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => mac(bytes),
        _ => None,
    });
    match (entry.header.state, address) {
        (NeighbourState::Failed, _) => Neighbour::Failed,
        (NeighbourState::None, _) => Neighbour::Unknown,
        (NeighbourState::Incomplete, _) | (_, None) => Neighbour::Asking,
        (_, Some(address)) => Neighbour::Known(address),
    }
}

fn mac(bytes: &[u8]) -> Option<[u8; 6]> {
    bytes.try_into().ok()
}

#[cfg(test)]
#[path = "netlink_tests.rs"]
mod tests;
