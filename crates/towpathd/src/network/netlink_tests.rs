//! Answers of a kernel, from a corpus. Each file is replayed as it is and with changes, because newer kernels add
//! attributes.
#![allow(clippy::unwrap_used)]
use super::*;
use std::net::Ipv4Addr;
use std::path::PathBuf;

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/netlink")
}

/// The answers in a packet, in the types of this crate.
fn understood(packet: &[u8], flags: u16) -> Option<Vec<String>> {
    let sequence = packet.get(8..12).map_or(0, |b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
    let mut answers = Vec::new();
    take_answers(packet, sequence, flags, &mut answers).ok()?;
    let words = answers.into_iter().map(|answer| match answer {
        RouteNetlinkMessage::NewRoute(route) => format!("{:?}", route_of(&route).ok()),
        RouteNetlinkMessage::NewNeighbour(entry) => format!("{:?}", state_of(&entry)),
        RouteNetlinkMessage::NewAddress(entry) => format!("{:?}", local_address(&entry)),
        RouteNetlinkMessage::NewLink(link) => {
            let mut info = LinkInfo::default();
            info.take(link);
            format!("{info:?}")
        }
        other => format!("{other:?}"),
    });
    Some(words.collect())
}

fn corpus() -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 6, "{files:?}");
    let name = |file: &PathBuf| file.file_stem().unwrap().to_string_lossy().into_owned();
    files.iter().map(|file| (name(file), std::fs::read(file).unwrap())).collect()
}

#[test]
fn the_kernels_answers_are_understood() {
    let said: Vec<(String, Vec<String>)> =
        corpus().iter().filter_map(|(name, packet)| Some((name.clone(), understood(packet, NLM_F_DUMP)?))).collect();
    let of =
        |name: &str| said.iter().find(|(of, _)| of == name).unwrap_or_else(|| panic!("{name}: {said:?}")).1.join(" ");
    assert!(of("route-local").contains("local: true"), "{said:?}");
    assert!(of("route-ipv6").contains("local: true"), "{said:?}");
    assert!(of("link").contains("mtu: 65536"), "{said:?}");
    assert!(of("addresses").contains("Some(127.0.0.1)"), "{said:?}");
    assert!(
        of("route-gateway").contains("gateway: Some(192.0.2.1)") && of("route-gateway").contains("mtu: Some(1400)")
    );
    assert_eq!(of("neighbour"), "Known([2, 0, 0, 0, 0, 7])");
    assert!(said.iter().all(|(name, _)| name != "no-neighbour"), "an error: {said:?}");
}

#[test]
fn fuzz_netlink_answers() {
    let files = corpus();
    type Edit = (u16, u8);
    bolero::check!().with_type::<(u8, Vec<Edit>, Option<u16>, bool)>().with_iterations(5_000).for_each(
        |(nth, edits, len, dump)| {
            let mut packet = files[usize::from(*nth) % files.len()].1.clone();
            for (at, byte) in edits.iter().take(6) {
                let at = usize::from(*at) % packet.len();
                packet[at] = *byte;
            }
            if let Some(len) = len {
                packet.truncate(usize::from(*len) % (packet.len() + 1));
            }
            understood(&packet, if *dump { NLM_F_DUMP } else { 0 });
        },
    );
}

/// Writes the corpus anew, from this kernel's answers.
#[test]
#[ignore = "writes tests/corpus/netlink; needs an interface of its own: see tests/corpus/README"]
fn write_corpus() {
    let netlink = Netlink::connect().unwrap();
    let route = |remote: IpAddr| {
        let mut ask = RouteMessage::default();
        ask.header.address_family = family(remote);
        ask.header.destination_prefix_length = bits(remote);
        ask.attributes.push(RouteAttribute::Destination(route_address(remote)));
        RouteNetlinkMessage::GetRoute(ask)
    };
    let mut link = LinkMessage::default();
    link.header.index = 1;
    let neighbour = |last| {
        let dummy = std::fs::read_to_string("/sys/class/net/corpus0/ifindex").unwrap();
        neighbour_message(dummy.trim().parse().unwrap(), Ipv4Addr::new(192, 0, 2, last).into())
    };
    let questions = [
        ("route-local", route(Ipv4Addr::LOCALHOST.into()), 0),
        ("route-ipv6", route(std::net::Ipv6Addr::LOCALHOST.into()), 0),
        ("route-gateway", route(Ipv4Addr::new(198, 51, 100, 1).into()), 0),
        ("route-none", route(Ipv4Addr::new(203, 0, 113, 1).into()), 0),
        ("link", RouteNetlinkMessage::GetLink(link), 0),
        ("addresses", RouteNetlinkMessage::GetAddress(AddressMessage::default()), NLM_F_DUMP),
        ("neighbour", RouteNetlinkMessage::GetNeighbour(neighbour(7)), 0),
        ("no-neighbour", RouteNetlinkMessage::GetNeighbour(neighbour(8)), 0),
    ];
    for (name, question, flags) in questions {
        let mut message = NetlinkMessage::from(question);
        message.header.flags = NLM_F_REQUEST | flags;
        message.header.sequence_number = 7;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        netlink.socket.send(&bytes, 0).unwrap();
        let packet = netlink.socket.recv_from_full().unwrap().0;
        std::fs::write(directory().join(name).with_extension("bin"), packet).unwrap();
        while flags != 0 && netlink.socket.recv_from_full().unwrap().0[4] != 3 {}
    }
}
