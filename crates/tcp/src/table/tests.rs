//! Fields that share a word, and what a reading says about losses.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::fast::tests::setup;
use crate::flow::{PortId, Window};
use crate::seq::Seq;
use stages::Permits;

const BY: Permits = Permits::issue();

/// One setter, and what it sets.
type Set = fn(&Identity, bool);

#[test]
fn fields_that_share_a_word_leave_each_other_alone() {
    let all = |id: &Identity| {
        let owner = (0..FLOW_GROUPS).find(|group| id.is_owned_by(*group));
        (id.errno(), id.peer_shift(), id.shift(), id.class(), owner, id.service(), id.port().0)
    };
    let sets: [Set; 6] = [
        |id, on| id.set_errno(BY.install, if on { 0xff } else { 0 }),
        |id, on| id.set_shifts(BY.install, if on { 14 } else { 0 }, if on { 14 } else { 0 }),
        |id, on| id.set_class(BY.install, if on { 0xffff } else { 0 }),
        |id, on| id.set_owner(BY.install, on.then_some(FLOW_GROUPS - 1)),
        |id, on| id.set_service(BY.install, if on { 0xff } else { 0 }, if on { 0xff } else { 0 }),
        |id, on| {
            let port = PortId(if on { 0xff } else { 0 });
            id.set_link(BY.install, &Link { port, source: [2; 6], destination: [4; 6], vlan: None });
        },
    ];
    let ones = (255, 14, 14, 0xffff, Some(FLOW_GROUPS - 1), (0xfc, 0xff), 0xff);
    let zeros = (0, 0, 0, 0, None, (0, 0), 0);
    for on in [true, false] {
        let (others, own) = if on { (zeros, ones) } else { (ones, zeros) };
        for changed in 0..sets.len() {
            let id = Identity::default();
            sets.iter().for_each(|set| set(&id, !on));
            assert_eq!(all(&id), others);
            // Twice, because the second time the field's own bits are there already.
            for _ in 0..2 {
                sets[changed](&id, on);
                let mut wanted = others;
                match changed {
                    0 => wanted.0 = own.0,
                    1 => (wanted.1, wanted.2) = (own.1, own.2),
                    2 => wanted.3 = own.3,
                    3 => wanted.4 = own.4,
                    4 => wanted.5 = own.5,
                    _ => wanted.6 = own.6,
                }
                assert_eq!(all(&id), wanted, "{changed} {on}");
            }
        }
    }
}

#[test]
fn shifts_are_fourteen_at_most_and_stand_each_for_its_own_side() {
    let id = Identity::default();
    for (peer, ours, wanted) in [(3, 9, (3, 9)), (9, 3, (9, 3)), (15, 200, (14, 14))] {
        id.set_shifts(BY.install, peer, ours);
        assert_eq!((id.peer_shift(), id.shift()), wanted);
    }
    for owner in [0, 1, 254] {
        id.set_owner(BY.install, Some(owner));
        let owned: Vec<_> = (0..FLOW_GROUPS).filter(|group| id.is_owned_by(*group)).collect();
        assert_eq!(owned, [owner]);
    }
}

#[test]
fn a_window_and_its_parts_are_kept_apart() {
    let m = Measures::default();
    for (growth, beta) in [(0xffff, 0), (0, 0xffff), (256, 717)] {
        m.set_window(BY.install, &Window { cwnd: 1, ssthresh: 77, growth, beta, pacing: 0 });
        assert_eq!((m.growth(), m.beta(), m.ssthresh.get()), (u32::from(growth), u32::from(beta), 77));
    }
}

/// SND.UNA is 1000, and a segment 1000 bytes.
fn block(nxt: u32, max: u32) -> Tcb {
    let mut t = Tcb::default();
    t.received(BY.install).snd_una = Seq(1000);
    t.next(BY.install).snd_nxt = Seq(nxt);
    t.sent(BY.install).snd_max = Seq(max);
    t.size(BY.install).mss = 1000;
    t
}

#[test]
fn a_reading_says_what_was_sent_again_by_the_scoreboard_or_by_how_far_a_time_out_has_come() {
    for (tracked, recovery, nxt, max, resent) in [
        (true, false, 9000, 9000, 77),
        (true, true, 3000, 9000, 77),
        (false, false, 3000, 9000, 2000),
        (false, true, 3000, 9000, 2000),
        (false, false, 9000, 9000, 0),
        (false, true, 9000, 9000, 1000),
        (false, true, 1400, 1400, 400),
        (false, false, 1000, 1000, 0),
    ] {
        let (lines, mut t) = (Lines::default(), block(nxt, max));
        lines.seldom.resent.set(BY.install, 77);
        if tracked {
            t.set(BY.install, bits::TRACKED);
        }
        if recovery {
            t.set(BY.install, bits::RECOVERY);
        }
        assert_eq!(lines.resent(&t), resent, "{tracked} {recovery} {nxt} {max}");
    }
}

#[test]
fn a_reading_says_what_is_reported_and_what_is_lost() {
    for (scored, tracked, nxt, left, sacked, wanted) in [
        (true, true, 9000, 5000, 2000, (2000, 3000)),
        (true, true, 9000, 1000, 2000, (2000, 0)),
        (false, true, 3000, 5000, 2000, (0, 0)),
        (false, false, 3000, 5000, 2000, (0, 6000)),
        (false, false, 9000, 5000, 2000, (0, 0)),
    ] {
        let (lines, mut t) = (Lines::default(), block(nxt, 9000));
        lines.recovery.left.set(BY.install, left);
        lines.addresses.sacked.set(BY.install, sacked);
        if scored {
            t.set(BY.install, bits::SCORED);
        }
        if tracked {
            t.set(BY.install, bits::TRACKED);
        }
        assert_eq!(lines.scored(&t), wanted, "{scored} {tracked} {nxt} {left} {sacked}");
    }
}

/// A number that is used again shows nothing of the last flow.
#[test]
fn a_new_flow_begins_with_counts_of_nothing() {
    let table = FlowTable::new(2000);
    let setup = FlowSetup { srtt_us: 10_001, ..setup() };
    table.install(BY.install, 0, 5 << 20, &setup).unwrap();
    let fresh = table.snapshot(setup.flow);
    assert_eq!((fresh.srtt_us, fresh.rttvar_us), (10_001, 5000), "RFC 6298 §2.2: half of the first sample");
    let lines = table.get(setup.flow).unwrap();
    let (m, rate, rare, recovery) = (&lines.measures, &lines.rate, &lines.seldom, &lines.recovery);
    for word in [&m.segments_in, &m.empty_in, &rare.unheard, &rare.out_of_order, &rate.rtt_us, &rate.min_rtt_us] {
        word.set(BY.install, 7);
    }
    for word in [&rare.resent, &rare.duplicates, &rare.reorderings, &m.grown, &recovery.reordering] {
        word.set(BY.install, 7);
    }
    for word in [&m.data_out, &m.empty_out, &recovery.retransmits] {
        word.set(BY.install, 7);
    }
    for counter in [&m.bytes_in, &m.bytes_acked] {
        counter.set(BY.install, 7);
    }
    for counter in [&rate.bytes_marked, &rate.bytes_lost] {
        counter.set(BY.install, 7);
    }
    rare.bytes_resent.set(BY.install, 7);
    lines.identity.owed_at.set(BY.install, 7);
    lines.identity.set_errno(BY.install, 7);
    assert_ne!(table.snapshot(setup.flow), fresh);
    table.install(BY.install, 0, 5 << 20, &setup).unwrap();
    assert_eq!(table.snapshot(setup.flow), fresh);
    assert_eq!((m.grown.get(), recovery.reordering.get(), lines.identity.errno()), (0, 0, 0));
    let seldom = [rare.resent.get(), rare.duplicates.get(), rare.reorderings.get(), rare.unheard.get()];
    assert_eq!((seldom, rare.bytes_resent.get(), rare.out_of_order.get()), ([0; 4], 0, 0));
    assert_eq!(lines.identity.ts_recent_at.get(), 5);
}

#[test]
fn a_table_has_room_for_its_flows_and_no_more() {
    let table = FlowTable::new(1500);
    assert_eq!(table.max_flows(), 1500);
    for (flow, fits) in
        [(0, true), (1023, true), (1024, true), (1499, true), (1500, false), (2047, false), (5000, false)]
    {
        let setup = FlowSetup { flow: FlowId(flow), class: flow as u16, ..setup() };
        assert_eq!(table.install(BY.install, 0, 0, &setup).is_some(), fits, "{flow}");
        if fits {
            assert_eq!(table.get(FlowId(flow)).unwrap().identity.class(), flow as u16);
        }
    }
    assert_eq!(table.get(FlowId(1023)).unwrap().identity.class(), 1023);
    assert!(table.get(FlowId(1499)).is_some() && table.get(FlowId(1500)).is_none());
}
