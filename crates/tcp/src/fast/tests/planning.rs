//! The next segment, and the tail probe, as a function of a flow's lines.

use super::*;
use crate::table::bits::{CORK, FIN_WANTED, LOST, NODELAY, SCORED};
use plan::Plan;

/// SND.UNA is 0, and 4000 bytes are out in segments of 1000.
fn block(queued: u32, wnd: u32) -> Tcb {
    let mut t = Tcb::default();
    t.received(STAGES.install).snd_wnd = wnd;
    t.next(STAGES.install).snd_nxt = Seq(4000);
    t.sent(STAGES.install).snd_max = Seq(4000);
    t.written(STAGES.install).snd_queued = Seq(queued);
    t.size(STAGES.install).mss = 1000;
    t
}

/// RFC 8985 §7.3.
#[test]
fn the_tail_probe_is_new_data_that_the_peer_has_room_for_or_the_last_segment_again() {
    for (queued, wnd, cork, seq, len, push) in [
        (4500, 4500, false, 4000, 500, true),
        (4500, 4499, false, 3000, 1000, false),
        (4500, 60_000, true, 3000, 1000, false),
        (5000, 60_000, true, 4000, 1000, true),
        (6000, 60_000, false, 4000, 1000, false),
        (6000, 5000, false, 4000, 1000, false),
        (6000, 4999, false, 3000, 1000, false),
        (4000, 60_000, false, 3000, 1000, true),
    ] {
        let (lines, mut t) = (Lines::default(), block(queued, wnd));
        if cork {
            t.set(STAGES.application, CORK);
        }
        let wanted = Plan { seq: Seq(seq), len, fin: false, push };
        assert_eq!(plan::tail(&t, &lines), Some(wanted), "{queued} {wnd} {cork}");
    }
    // Less than a segment is out.
    let (lines, mut t) = (Lines::default(), block(4000, 60_000));
    t.received(STAGES.install).snd_una = Seq(3300);
    let wanted = Plan { seq: Seq(3300), len: 700, fin: false, push: true };
    assert_eq!(plan::tail(&t, &lines), Some(wanted));
}

/// RFC 9937 §6.2: a repair goes when a whole segment fits, and at once if nothing else is in flight.
#[test]
fn a_repair_goes_if_the_window_has_room_for_a_whole_segment() {
    for (lost, left, cwnd, goes) in [
        (true, 3000, 2000, true),
        (true, 3000, 1999, false),
        (true, 3000, 5000, true),
        (true, 3999, 1000, false),
        (true, 4000, 1, true),
        (true, 3000, 500, false),
        (false, 4000, 9000, false),
    ] {
        let (lines, mut t) = (Lines::default(), block(4000, 60_000));
        lines.recovery.left.set(STAGES.loss, left);
        t.congestion(STAGES.loss).cwnd = cwnd;
        t.set(STAGES.loss, SCORED);
        if lost {
            t.set(STAGES.loss, LOST);
        }
        assert_eq!(plan::repair_may_go(&t, &lines), goes, "{lost} {left} {cwnd}");
    }
}

/// A FIN takes a number of its own, which has to be within the window (RFC 9293 §3.4).
#[test]
fn a_fin_goes_with_the_last_data_if_the_window_has_room_for_it() {
    for (queued, wnd, cwnd, len, fin) in [
        (4500, 4501, 9000, 500, true),
        (4500, 4500, 9000, 500, false),
        (5000, 60_000, 9000, 1000, true),
        (5001, 60_000, 9000, 1000, false),
        (4500, 60_000, 4500, 500, true),
    ] {
        let (lines, mut t) = (Lines::default(), block(queued, wnd));
        t.set(STAGES.application, FIN_WANTED | NODELAY);
        t.congestion(STAGES.loss).cwnd = cwnd;
        let wanted = Plan { seq: Seq(4000), len, fin, push: len == queued - 4000 };
        assert_eq!(plan::next(&t, &lines), Some(wanted), "{queued} {wnd} {cwnd}");
    }
}
