//! Several interfaces with the same tables. Needs root and iproute2.
#![allow(clippy::expect_used, clippy::unwrap_used, dead_code, missing_docs)]

mod network;

use network::{Network, OUR_IF, OURS, PEER, PEER_IF, Raw, ip, peer_header, within};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use towpath_ports::Port;
use towpath_ports::attachment::{AttachConfig, AttachError, Attachment, Tables};
use towpath_ports::steering::{Segments, Steering};
use towpath_ports::xsk::{XskConfig, XskError, XskPort};
use towpath_ports::xsk_socket::XskSocket;
use towpath_wire::{emit, fill_checksum, parse};

const SECOND_IF: &str = "wrvd";
const SECOND_PEER_IF: &str = "wrvc";
const LOCAL: SocketAddr = SocketAddr::new(OURS, 9000);
const REMOTE: SocketAddr = SocketAddr::new(PEER, 5555);

/// A segment of the steered connection, as the peer sends it.
fn segment(seq: u32) -> Vec<u8> {
    let header = peer_header(REMOTE.port(), LOCAL, seq);
    let mut frame = vec![0; 54];
    emit(&header, 0, &mut frame).unwrap();
    fill_checksum(&mut frame);
    frame
}

/// A second pair beside that of the network.
fn second_pair(network: &Network) {
    let (peer, ours) = (&network.peer, &network.ours);
    ip(&format!("-n {peer} link add {SECOND_PEER_IF} type veth peer name {SECOND_IF} netns {ours}"));
    ip(&format!("-n {peer} link set {SECOND_PEER_IF} up"));
    ip(&format!("-n {ours} link set {SECOND_IF} up"));
}

fn eventually<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The sequence number of the next segment.
fn next(port: &mut XskPort) -> Option<u32> {
    let mut frames = Vec::new();
    port.receive(&mut frames, 1);
    let seq = frames.first().map(|frame| parse(port.bytes(frame)).unwrap().seq);
    port.release(&frames);
    seq
}

#[test]
fn each_interface_has_the_connections_of_all_and_sockets_of_its_own() {
    let network = Network::new();
    second_pair(&network);
    let (tables, first, second) = within(&network.ours, || {
        let tables = Tables::load(OUR_IF, false).unwrap();
        let first = Attachment::open_at(&tables, 0, OUR_IF, AttachConfig::default(), 1).unwrap();
        // It has no sockets, so its frames come as strays.
        let second = Attachment::open_at(&tables, 1, SECOND_IF, AttachConfig::default(), 0).unwrap();
        (tables, first, second)
    });
    let (mut steering, mut sockets) = Steering::over(OUR_IF, first.parts().unwrap()).unwrap();
    steering.add(second.description());
    let mut port = XskPort::over(sockets.remove(0)).unwrap();
    steering.steer_flow(LOCAL, REMOTE, Some(Segments::All)).unwrap();
    let raw = |name| within(&network.peer, move || Raw::open(name, 0));
    let (by_first, by_second) = (raw(PEER_IF), raw(SECOND_PEER_IF));

    by_first.send(&segment(1));
    assert_eq!(eventually("by the first", || next(&mut port)), 1);
    by_second.send(&segment(2));
    let (place, frame) = eventually("by the second", || steering.strays().next_frame());
    assert_eq!((place, parse(&frame).unwrap().seq), (1, 2));
    assert_eq!(steering.strays().next_frame(), None);
    assert_eq!(next(&mut port), None, "not on the first one's socket");

    // One that was made anew has the same place.
    ip(&format!("-n {} link delete {SECOND_IF}", network.ours));
    second_pair(&network);
    let mut second = second;
    within(&network.ours, || {
        assert!(!second.is_in_place() && first.is_in_place());
        second.follow(SECOND_IF, 1).unwrap();
    });
    steering.add(second.description());
    let mut again = XskPort::over(second.parts().unwrap().into_sockets().remove(0)).unwrap();
    raw(SECOND_PEER_IF).send(&segment(3));
    assert_eq!(eventually("by the new one", || next(&mut again)), 3);
    assert_eq!(next(&mut port), None);

    // One of them is given up: the other goes on.
    drop(second);
    by_first.send(&segment(4));
    assert_eq!(eventually("by the first alone", || next(&mut port)), 4);
    drop(tables);
}

/// The numbers of all that the process that serves is given. Each socket has its own.
fn numbers(attachment: &Attachment) -> Vec<u64> {
    attachment.descriptors().unwrap().iter().map(|fd| rustix::fs::fstat(fd).unwrap().st_ino).collect()
}

#[test]
fn an_interface_that_was_made_anew_gets_its_sockets_one_by_one_without_a_wait() {
    let network = Network::new();
    let pair = || {
        let (peer, ours) = (&network.peer, &network.ours);
        let queues = "numtxqueues 3 numrxqueues 3";
        ip(&format!(
            "-n {peer} link add {SECOND_PEER_IF} {queues} type veth peer name {SECOND_IF} {queues} netns {ours}"
        ));
        ip(&format!("-n {peer} link set {SECOND_PEER_IF} up"));
        ip(&format!("-n {ours} link set {SECOND_IF} up"));
    };
    pair();
    let mut attachment = within(&network.ours, || Attachment::open(SECOND_IF, AttachConfig::default(), 3).unwrap());
    ip(&format!("-n {} link delete {SECOND_IF}", network.ours));
    pair();
    let other = |queue| within(&network.ours, || XskSocket::open(SECOND_IF, queue, XskConfig::default()).unwrap());
    let (second, third) = (other(1), other(2));
    let follow = |attachment: &mut Attachment| {
        let followed = within(&network.ours, || attachment.follow(SECOND_IF, 3));
        let in_place = within(&network.ours, || attachment.is_in_place());
        (followed, in_place, attachment.has_sockets())
    };
    let busy = |followed: &Result<(), AttachError>, which| matches!(followed, Err(AttachError::Xsk(XskError::QueueBusy(_, queue))) if *queue == which);
    let mut kept = Vec::new();
    for _ in 0..3 {
        let (followed, in_place, has_sockets) = follow(&mut attachment);
        assert!(busy(&followed, 1) && !in_place && !has_sockets, "{followed:?}");
        kept.push(numbers(&attachment));
    }
    assert!(kept.iter().all(|numbers| *numbers == kept[0]), "the first queue's socket stays: {kept:?}");
    drop(second);
    // The kernel frees the queue a moment later.
    eventually("the second queue", || busy(&follow(&mut attachment).0, 2).then_some(()));
    drop(third);
    eventually("the third queue", || follow(&mut attachment).0.is_ok().then_some(()));
    assert!(within(&network.ours, || attachment.is_in_place()) && attachment.has_sockets());
}
