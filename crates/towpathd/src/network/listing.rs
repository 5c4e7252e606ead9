//! Netlink queries for lists: the devices of a namespace, and those of its default routes.

use super::matching::Named;
use super::netlink::Netlink;
use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use netlink_packet_route::route::{RouteAttribute, RouteHeader, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use std::io;

impl Netlink {
    /// All devices.
    pub fn devices(&mut self) -> io::Result<Vec<Named>> {
        let answers = self.ask(RouteNetlinkMessage::GetLink(LinkMessage::default()), NLM_F_DUMP)?;
        Ok(answers
            .iter()
            .filter_map(|answer| if let RouteNetlinkMessage::NewLink(link) = answer { Some(named(link)) } else { None })
            .collect())
    }

    /// The devices to which the default routes of the main table lead, with all next hops.
    pub fn default_routes(&mut self, family: AddressFamily) -> io::Result<Vec<u32>> {
        let mut ask = RouteMessage::default();
        ask.header.address_family = family;
        let answers = self.ask(RouteNetlinkMessage::GetRoute(ask), NLM_F_DUMP)?;
        let mut found = Vec::new();
        for answer in &answers {
            if let RouteNetlinkMessage::NewRoute(route) = answer {
                devices_of_default(route, &mut found);
            }
        }
        Ok(found)
    }
}

fn named(link: &LinkMessage) -> Named {
    let mut named = Named { index: link.header.index, ..Named::default() };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => named.name.clone_from(name),
            LinkAttribute::Controller(index) => named.controller = Some(*index).filter(|index| *index != 0),
            LinkAttribute::LinkInfo(infos) => {
                named.is_vrf = infos.iter().any(|info| matches!(info, LinkInfo::Kind(InfoKind::Vrf)));
            }
            _ => {}
        }
    }
    named
}

fn devices_of_default(route: &RouteMessage, found: &mut Vec<u32>) {
    let RouteMessage { header, attributes, .. } = route;
    if header.destination_prefix_length != 0
        || header.kind != RouteType::Unicast
        || header.table != RouteHeader::RT_TABLE_MAIN
    {
        return;
    }
    for attribute in attributes {
        match attribute {
            RouteAttribute::Oif(index) => found.push(*index),
            RouteAttribute::MultiPath(hops) => found.extend(hops.iter().map(|hop| hop.interface_index)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_route::route::RouteNextHop;

    #[test]
    fn only_default_routes_of_the_main_table_count_with_all_their_hops() {
        let route = |table: u8, length: u8, kind: RouteType, attributes: Vec<RouteAttribute>| {
            let mut route = RouteMessage::default();
            (route.header.table, route.header.destination_prefix_length, route.header.kind) = (table, length, kind);
            route.attributes = attributes;
            let mut found = Vec::new();
            devices_of_default(&route, &mut found);
            found
        };
        let hop = |index: u32| {
            let mut hop = RouteNextHop::default();
            hop.interface_index = index;
            hop
        };
        let (main, oif) = (RouteHeader::RT_TABLE_MAIN, || vec![RouteAttribute::Oif(3)]);
        assert_eq!(route(main, 0, RouteType::Unicast, oif()), [3]);
        assert_eq!(route(main, 0, RouteType::Unicast, vec![RouteAttribute::MultiPath(vec![hop(3), hop(4)])]), [3, 4]);
        assert_eq!(route(main, 24, RouteType::Unicast, oif()), [0; 0]);
        assert_eq!(route(100, 0, RouteType::Unicast, oif()), [0; 0]);
        assert_eq!(route(main, 0, RouteType::Unreachable, oif()), [0; 0]);
    }
}
