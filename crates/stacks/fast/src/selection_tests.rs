//! Who has a frame, by what it says.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::send_back_tests::segment;

/// The connection to whose end here [`segment`] comes.
pub(crate) fn tuple(v6: bool) -> FourTuple {
    let [remote, local] = if v6 { ["fd00::1", "fd00::2"] } else { ["10.0.0.1", "10.0.0.2"] };
    FourTuple { local: local.parse().unwrap(), local_port: 2, remote: remote.parse().unwrap(), remote_port: 1 }
}

pub(crate) fn selection(connections: u32) -> Selection {
    Selection::new(connections, Arc::new(|_| 0))
}

/// Who has the segment when it is received, and when it is sent.
fn found(selection: &Selection, v6: bool) -> (u32, u32) {
    let (frame, _) = segment(v6, None, 10);
    (selection.table().received(&frame), selection.table().sent(&frame))
}

#[test]
fn each_end_of_a_connection_is_found_by_what_it_receives_and_by_what_it_sends() {
    for (v6, vlan) in [(false, None), (true, None), (false, Some(7)), (true, Some(7))] {
        let (frame, _) = segment(v6, vlan, 10);
        let mut both = selection(4);
        let found = |both: &Selection| (both.table().received(&frame), both.table().sent(&frame));
        assert_eq!(found(&both), (0, 0), "nobody's");
        both.connection(Owner(0), &tuple(v6), 1, None);
        assert_eq!(found(&both), (1, 0));
        // The other end is this host's, too.
        both.connection(Owner(3), &tuple(v6).reversed(), 1 << 31, None);
        assert_eq!(found(&both), (1, 1 << 31));
        both.connection(Owner(1), &FourTuple { remote_port: 9, ..tuple(v6) }, 4, None);
        both.connection(Owner(0), &tuple(v6), 3, None);
        assert_eq!(found(&both), (3, 1 << 31), "another answer for the same connection");
        both.leave(Owner(0));
        assert_eq!(found(&both), (0, 1 << 31));
        both.connection(Owner(3), &tuple(v6).reversed(), 0, None);
        assert_eq!(found(&both), (0, 0));
    }
}

#[test]
fn a_frame_of_no_connection_is_for_whoever_listens_there() {
    for v6 in [false, true] {
        let mut selection = selection(8);
        let end = tuple(v6).local_end();
        let on_all = SocketAddr::new(if v6 { "::" } else { "0.0.0.0" }.parse().unwrap(), end.port());
        selection.listener(Owner(1), on_all, 1);
        assert_eq!(found(&selection, v6), (1, 0));
        // Several may share a port, and each may be meant.
        selection.listener(Owner(2), on_all, 2);
        assert_eq!(found(&selection, v6), (3, 0));
        // One on the address itself comes first.
        selection.listener(Owner(3), end, 4);
        assert_eq!(found(&selection, v6), (4, 0));
        // A connection is its owner's, also if nobody chooses that.
        selection.connection(Owner(4), &tuple(v6), 8, None);
        assert_eq!(found(&selection, v6), (8, 0));
        selection.connection(Owner(4), &tuple(v6), 0, None);
        assert_eq!(found(&selection, v6), (0, 0));
        for (gone, left) in [(4, 4), (3, 3), (1, 2), (2, 0)] {
            selection.leave(Owner(gone));
            assert_eq!(found(&selection, v6), (left, 0));
        }
        assert!(selection.table().0.elements().is_empty() && selection.at.is_empty());
        // What it sends is found as well: a SYN-ACK, or a reset.
        selection.listener(Owner(1), tuple(v6).reversed().local_end(), 1);
        assert_eq!(found(&selection, v6), (0, 1));
    }
}

#[test]
fn a_listener_on_all_addresses_has_frames_of_both_families() {
    for all in ["::", "0.0.0.0"] {
        let mut selection = selection(4);
        selection.listener(Owner(1), SocketAddr::new(all.parse().unwrap(), 2), 1);
        assert_eq!((found(&selection, false), found(&selection, true)), ((1, 0), (1, 0)));
        selection.listener(Owner(1), SocketAddr::new(all.parse().unwrap(), 3), 1);
        assert_eq!((found(&selection, false), found(&selection, true)), ((0, 0), (0, 0)), "another port");
    }
}

#[test]
fn an_owner_that_has_another_connection_now_has_not_the_old_one() {
    let mut selection = selection(4);
    selection.connection(Owner(0), &tuple(false), 1, None);
    selection.connection(Owner(0), &tuple(true), 1, None);
    assert_eq!((found(&selection, false).0, found(&selection, true).0), (0, 1));
    // What was never entered, or is gone, is no mistake.
    for owner in [0, 0, 100] {
        selection.leave(Owner(owner));
    }
    assert_eq!(found(&selection, true).0, 0);
}

#[test]
fn what_is_no_tcp_segment_is_nobodys() {
    let mut selection = selection(4);
    selection.connection(Owner(0), &tuple(false), 1, None);
    let (mut frame, _) = segment(false, None, 10);
    let table = selection.table();
    assert_eq!(table.received(&frame), 1);
    for other in [&[][..], &[0; 60], &frame[..53]] {
        assert_eq!((table.received(other), table.sent(other)), (0, 0));
    }
    frame[23] = 17;
    assert_eq!(table.received(&frame), 0, "UDP");
}

#[test]
fn a_connection_for_which_there_is_no_room_is_not_chosen() {
    let mut selection = selection(1);
    for (owner, port) in [(0, 1), (1, 7), (2, 8)] {
        selection.connection(Owner(owner), &FourTuple { remote_port: port, ..tuple(false) }, 1, None);
    }
    assert!(selection.said);
    assert_eq!(found(&selection, false).0, 1);
    selection.leave(Owner(2));
    selection.leave(Owner(1));
    selection.connection(Owner(5), &tuple(true), 1, None);
    assert_eq!(found(&selection, true).0, 1, "there is room again");
}

#[test]
fn a_frame_is_of_the_connection_that_has_a_number_and_a_listener_has_none() {
    for v6 in [false, true] {
        let (frame, _) = segment(v6, None, 10);
        let mut selection = selection(4);
        let table = Arc::clone(selection.table());
        let found = || (table.flow_received(&frame), table.flow_sent(&frame));
        selection.listener(Owner(1), tuple(v6).local_end(), 3);
        assert_eq!(found(), (None, None));
        // It has a number when it is established.
        selection.connection(Owner(2), &tuple(v6), 1, None);
        assert_eq!((found(), table.received(&frame)), ((None, None), 1));
        selection.connection(Owner(2), &tuple(v6), 1, Some(FlowId(70_000)));
        assert_eq!((found(), table.received(&frame)), ((Some(70_000), None), 1));
        selection.connection(Owner(3), &tuple(v6).reversed(), 0, Some(FlowId(0)));
        assert_eq!((found(), table.sent(&frame)), ((Some(70_000), Some(0)), 0));
        selection.leave(Owner(2));
        assert_eq!(found(), (None, Some(0)));
        assert_eq!(table.flow_received(&frame[..20]), None, "no segment");
    }
}
