//! How connections have ended, as `towpath sockets --dead` tells it.
#![allow(clippy::unwrap_used)]

mod common;

use common::{LOCAL, bounded, direct, port};
use std::sync::atomic::Ordering::AcqRel;
use towpath_contract_tests::app::{App, eventually, small};
use towpath_contract_tests::departure::full;
use towpath_fast::FastStack;
use towpath_ring::lines::app_flags;
use towpath_runtime::{OrphanLimits, Stack};

/// The words for the ends of this program's connections, the last one first.
fn ends_of(stack: &FastStack, program: &str) -> Vec<String> {
    let all = stack.ended().unwrap().into_iter().filter(|one| one.program == program);
    all.map(|one| one.ended.into_owned()).collect()
}

#[test]
fn who_is_accused_of_a_violation_is_no_violator_for_that() {
    for by_server in [false, true] {
        let stack = direct();
        let (server, client) = (App::named(&stack, small(1), "server"), App::named(&stack, small(1), "client"));
        let port = port();
        let mut listener = server.listen(LOCAL, port, 4).unwrap();
        let (ours, peer) = client.pair(&mut listener, port);
        let (accuser, accused) = if by_server { (&peer, &ours) } else { (&ours, &peer) };
        accuser.line().flags.fetch_or(app_flags::PEER_VIOLATED, AcqRel);
        accuser.app.push_anything(accuser.slot, 1);
        accuser.app.ring_all();
        eventually("both are over", || (accuser.error(), accused.error()) == (libc::ECONNABORTED, libc::ECONNRESET));
        ours.close();
        peer.close();
        let words = || ["client", "server"].map(|program| ends_of(&stack, program));
        eventually("both have ended", || words().iter().all(|words| words.len() == 1));
        let expected = if by_server { ["peer-reset", "accuser"] } else { ["accuser", "peer-reset"] };
        assert_eq!(words(), expected.map(|word| vec![word.to_owned()]));
    }
}

#[test]
fn what_found_no_room_was_not_too_slow() {
    let (default, day) = (OrphanLimits::default(), 86_400_000_000);
    let ways = [
        (OrphanLimits { bytes: 4096, time_us: day, ..default }, "not-kept"),
        (OrphanLimits { time_us: 1000, rate: u64::MAX, ..default }, "left"),
    ];
    for (limits, word) in ways {
        let stack = bounded(limits);
        let (server, client) = (App::named(&stack, small(1), "server"), App::named(&stack, small(1), "client"));
        let port = port();
        let mut listener = server.listen(LOCAL, port, 4).unwrap();
        let (mut ours, peer) = client.pair(&mut listener, port);
        full(&client, &mut ours);
        stack.remove_client(client.id);
        eventually("the peer knows", || peer.error() == libc::ECONNRESET);
        eventually("it has ended", || !ends_of(&stack, "client").is_empty());
        assert_eq!(ends_of(&stack, "client"), [word]);
    }
}
