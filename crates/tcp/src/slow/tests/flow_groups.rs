//! Which flow group gets a connection.

use super::world::*;
use crate::flow::PortId;
use crate::messages::ToFast;
use towpath_wire::{Timestamps, flags};

/// The test's segments come to this flow group, which is no tuple's.
const THIRD: usize = 3;

/// A host in which connections follow their segments.
fn following(mut bench: Bench) -> Bench {
    bench.world.follows = true;
    bench
}

/// What the only new connection was installed in, and all messages to it went to.
fn installed_in(bench: &mut Bench) -> usize {
    let mut groups: Vec<usize> = bench.world.sent.drain(..).map(|(flow_group, _)| flow_group).collect();
    groups.append(&mut bench.world.established_in);
    groups.dedup();
    assert_eq!(groups.len(), 1, "{groups:?}");
    groups[0]
}

fn ack(syn_ack_seq: u32) -> Peer {
    Peer { seq: 5001, ack: syn_ack_seq.wrapping_add(1), flags: flags::ACK, ..stamped(2) }
}

#[test]
fn an_accepted_connection_belongs_to_where_the_last_ack_has_come() {
    let mut bench = following(Bench::listening(10));
    bench.for_server(4001, syn(5000));
    assert_eq!(bench.world.sent[0].0, 1, "the SYN may have come past the queues");
    let answer = bench.frame();
    // Its data come with the ACK, and after the installation.
    bench.for_server(4001, Peer { payload: 10, ..ack(answer.seq) });
    assert!(matches!(bench.world.sent.last(), Some((THIRD, ToFast::Inject(..)))));
    assert_eq!(installed_in(&mut bench), THIRD);
    bench.for_server(4001, Peer { seq: 5011, payload: 10, ..ack(answer.seq) });
    assert_eq!(bench.messages(), [format!("{THIRD}:inject 10")], "for good");
}

#[test]
fn a_connection_whose_segments_come_past_all_queues_belongs_to_its_tuples_flow_group() {
    let mut bench = following(Bench::listening(10));
    bench.for_server(4001, syn(5000));
    let answer = bench.frame();
    let last = frame((PEER, 4001), (US, 80), ack(answer.seq));
    bench.slow.on_stray_frame(bench.now, PortId(1), last, &mut bench.world);
    assert_eq!(installed_in(&mut bench), 1);
}

#[test]
fn a_connection_of_ours_belongs_to_where_the_syn_ack_has_come() {
    let mut bench = following(Bench::new());
    bench.connect();
    let sent = bench.frame();
    let answer = Peer { ack: sent.seq.wrapping_add(1), flags: flags::SYN | flags::ACK, ..syn(7000) };
    bench.for_client(sent.source_port, answer);
    assert_eq!(installed_in(&mut bench), THIRD);
}

#[test]
fn a_connection_from_a_cookie_belongs_to_where_the_cookie_has_come() {
    let mut bench = following(Bench::listening(8));
    for port in 0..8 {
        bench.for_server(10_000 + port, syn(1));
    }
    bench.frames();
    bench.for_server(4001, syn(5000));
    let answer = bench.frame();
    let echo = answer.options.timestamps.expect("offered").value;
    let mut last = ack(answer.seq);
    last.options.timestamps = Some(Timestamps { value: 2, echo });
    bench.for_server(4001, last);
    assert_eq!(installed_in(&mut bench), THIRD);
}
