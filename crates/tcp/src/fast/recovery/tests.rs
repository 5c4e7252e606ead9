//! The window during a recovery, and how a recovery is undone: each rule with the values around its limits.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::fast::STAGES;
use crate::fast::scoreboard::AGAIN;
use crate::fast::tests::{Harness, MSS, scoreboard_of, setup};
use crate::flow::FlowSetup;
use crate::time::Micros;
use towpath_wire::segment::{self, Options, Timestamps};

/// A flow from 0 on that has sent `n` segments, one ms after the other.
fn out(n: u64) -> Harness {
    let mut h = Harness::of(FlowSetup { snd_start: Seq(0), sack: true, srtt_us: 10_000, ..setup() });
    for _ in 0..n {
        h.now = h.now.after(1000);
        assert_eq!(h.write(MSS).len(), 1);
    }
    h.slow.clear();
    h
}

fn block(una: u32, max: u32) -> Tcb {
    let mut t = Tcb::default();
    t.received(STAGES.install).snd_una = Seq(una);
    t.sent(STAGES.install).snd_max = Seq(max);
    t.size(STAGES.install).mss = MSS as u16;
    t
}

#[test]
fn a_time_out_lasts_until_all_that_was_out_is_acknowledged_or_a_recovery_begins() {
    for (set, recovery, una, timed) in [
        (true, false, 4999, true),
        (true, false, 5000, false),
        (true, false, 5001, false),
        (true, true, 4999, false),
        (false, false, 4999, false),
        (false, true, 4999, false),
    ] {
        let (lines, mut t) = (Lines::default(), block(una, 9000));
        lines.addresses.recover.set(STAGES.loss, 5000);
        if set {
            t.set(STAGES.loss, RECOVER_SET);
        }
        if recovery {
            t.set(STAGES.loss, RECOVERY);
        }
        assert_eq!(timed_out(&t, &lines), timed, "{set} {recovery} {una}");
    }
}

#[test]
fn the_pipe_is_what_is_out_without_what_has_left() {
    for (scored, left, wanted) in [(true, 3000, 5000), (true, 9000, 0), (true, 0, 8000), (false, 3000, 8000)] {
        let (lines, mut t) = (Lines::default(), block(1000, 9000));
        lines.recovery.left.set(STAGES.loss, left);
        if scored {
            t.set(STAGES.loss, SCORED);
        }
        assert_eq!(pipe(&t, &lines), wanted, "{scored} {left}");
    }
}

/// RFC 3522 §3.2. The first byte that was sent again is 5000.
#[test]
fn only_the_first_acknowledgement_for_a_repair_tells_by_its_echo_that_the_repair_was_needless() {
    for (undo, stamps, bytes, una, ack, echo, resent_ts, needless) in [
        (true, true, 1000, 5000, 6000, Some(99), 100, true),
        (true, true, 1, 4000, 5001, Some(99), 100, true),
        (true, true, 1000, 5000, 6000, Some(u32::MAX), 0, true),
        (true, true, 1000, 5000, 6000, Some(100), 100, false),
        (true, true, 1000, 5000, 6000, Some(101), 100, false),
        (true, true, 1000, 5000, 6000, None, 100, false),
        (false, true, 1000, 5000, 6000, Some(99), 100, false),
        (true, false, 1000, 5000, 6000, Some(99), 100, false),
        (true, true, 0, 5000, 6000, Some(99), 100, false),
        (true, true, 1000, 5001, 6000, Some(99), 100, false),
        (true, true, 1000, 4000, 5000, Some(99), 100, false),
    ] {
        let (lines, mut t, by) = (Lines::default(), block(una, 9000), STAGES.loss);
        if undo {
            t.set(by, UNDO);
        }
        if stamps {
            t.set(STAGES.install, TIMESTAMPS);
        }
        lines.recovery.undo_from.set(by, 5000);
        lines.recovery.undo_bytes.set(by, bytes);
        lines.recovery.resent_ts.set(by, resent_ts);
        let options = Options { timestamps: echo.map(|echo| Timestamps { value: 0, echo }), ..Options::NONE };
        let s = Segment::of(&segment::Segment { ack, options, ..segment::Segment::NONE }, &mut Vec::new());
        let seen = echoes_original(&t, &lines, Seq(ack), Seq(una), &s);
        assert_eq!(seen, needless, "{undo} {stamps} {bytes} {una} {ack} {echo:?} {resent_ts}");
    }
}

#[test]
fn what_is_sent_again_is_counted_from_the_first_of_it_while_it_can_be_undone() {
    for (undo, before, wanted) in
        [(true, 0, (3000, 5077, 500)), (true, 200, (7, 8, 700)), (false, 0, (7, 8, 0)), (false, 200, (7, 8, 200))]
    {
        let mut h = out(2);
        h.now = Micros(5_000_999);
        let mut turn = h.turn();
        let (by, line) = (STAGES.loss, &turn.lines.recovery);
        line.undo_from.set(by, 7);
        line.resent_ts.set(by, 8);
        line.undo_bytes.set(by, before);
        if undo {
            turn.t.set(by, UNDO);
        }
        resent(by, &turn, Seq(3000), 500);
        assert_eq!((line.undo_from.get(), line.resent_ts.get(), line.undo_bytes.get()), wanted, "{undo} {before}");
    }
}

#[test]
fn flags_and_counts_follow_the_scoreboard() {
    for (sacked, lost, again, doubtful) in [
        (false, false, false, 0),
        (true, false, false, 0),
        (false, true, false, 0),
        (true, true, false, 0),
        (true, true, true, 1),
        (false, true, false, 2),
        (false, false, true, 0),
    ] {
        let mut h = out(4);
        let mut turn = h.turn();
        let b = scoreboard_of(&mut turn);
        b.doubtful = doubtful;
        if sacked {
            b.report(Seq(1000), Seq(2000), |_, _| {});
        }
        if again {
            b.resent(Seq(2000), Seq(2500), 9);
        }
        if lost {
            b.lose(|span| span.end == Seq(4000));
        }
        turn.t.set(STAGES.loss, SCORED);
        turn.t.set(STAGES.loss, LOST);
        count(STAGES.loss, &mut turn.state.scoreboards, &mut turn.t, turn.lines);
        let left = 1000 * (u32::from(sacked) + u32::from(lost));
        assert_eq!((turn.lines.recovery.left.get(), turn.t.has(SCORED)), (left, left != 0));
        assert_eq!(turn.t.has(LOST), lost && doubtful != 2, "repairs wait while it is in doubt");
        assert_eq!(turn.lines.seldom.resent.get(), if again { 500 } else { 0 });
        if left != 0 {
            assert_eq!(turn.lines.addresses.sacked.get(), if sacked { 1000 } else { 0 });
        }
        assert_eq!(scoreboard_of(&mut turn).clean, !(sacked || lost || again));
    }
}

/// RFC 4015 §3.2.
#[test]
fn a_needless_recovery_leaves_everything_as_it_was() {
    for (cwnd, prior, ssthresh, prior_ssthresh) in [(3000, 9000, 4000, 8000), (9000, 3000, 8000, 4000)] {
        let mut h = out(4);
        let mut turn = h.turn();
        let by = STAGES.loss;
        turn.t.congestion(by).cwnd = cwnd;
        turn.lines.recovery.prior_cwnd.set(by, prior);
        turn.lines.recovery.prior_ssthresh.set(by, prior_ssthresh);
        turn.lines.measures.ssthresh.set(by, ssthresh);
        turn.lines.measures.grown.set(by, 5);
        turn.t.set(by, RECOVERY | RECOVER_SET | UNDO);
        turn.t.set(by, RESEND | ECN_CWR);
        turn.t.next(by).snd_nxt = Seq(1000);
        let b = scoreboard_of(&mut turn);
        b.lose(|_| true);
        b.doubtful = 2;
        undo(by, &mut turn);
        assert_eq!((turn.t.cwnd(), turn.lines.measures.ssthresh.get()), (9000, 8000));
        assert_eq!((turn.lines.measures.grown.get(), turn.t.snd_nxt()), (0, Seq(4000)));
        assert!(!turn.t.any(RECOVERY | RECOVER_SET | UNDO) && !turn.t.any(RESEND | ECN_CWR));
        assert_eq!((scoreboard_of(&mut turn).bytes(LOST_SPANS), scoreboard_of(&mut turn).doubtful), (0, 0));
        h.collect();
        assert_eq!((h.slow_names(), h.fast.counters().undone), (vec!["Undone".into()], 1));
    }
}

/// RFC 5681 §3.1, equation 4, and RFC 9438 §4.6 for another share than half.
#[test]
fn the_threshold_is_the_share_of_what_the_window_has_let_out_and_two_segments_at_least() {
    for (flight, cwnd, beta, ssthresh) in [
        (9000, 20_000, 512, 4500),
        (9000, 8000, 512, 4000),
        (9000, 20_000, 717, 6301),
        (3999, 20_000, 512, 2000),
        (4002, 20_000, 512, 2001),
        (500, 20_000, 512, 2000),
        (u32::MAX / 2, u32::MAX, 1024, u32::MAX / 2),
    ] {
        let mut h = out(4);
        let mut turn = h.turn();
        let by = STAGES.loss;
        turn.t.sent(STAGES.install).snd_max = Seq(flight);
        turn.t.congestion(by).cwnd = cwnd;
        turn.lines.measures.growth.set(by, beta << 16);
        turn.lines.measures.grown.set(by, 5);
        assert_eq!(enter(by, &mut turn), ssthresh, "{flight} {cwnd} {beta}");
        assert_eq!((turn.lines.measures.ssthresh.get(), turn.lines.measures.grown.get()), (ssthresh, 0));
        assert_eq!(turn.lines.addresses.recover.get(), flight);
        let line = &turn.lines.recovery;
        assert_eq!((line.prior_cwnd.get(), line.undo_from.get(), line.undo_bytes.get()), (cwnd, 0, 0));
        assert!(turn.t.has(RECOVERY | RECOVER_SET | UNDO) && !turn.t.has(TIMING) && !turn.t.has(ECN_CWR));
    }
}

#[test]
fn a_recovery_begins_with_a_loss_of_what_is_not_being_repaired_and_ends_when_all_is_acknowledged() {
    // In recovery, `recover` is valid, it, bytes lost; in recovery then, and the window.
    for (recovery, set, recover, lost, then, cwnd) in [
        (false, false, 9000, 0, false, 7777),
        (false, false, 9000, 1000, true, 4500),
        (false, true, 9000, 1000, false, 7777),
        (false, true, 1001, 1000, false, 7777),
        (false, true, 1000, 1000, true, 4500),
        (false, true, 1000, 0, false, 7777),
        (true, true, 1000, 0, false, 6000),
        (true, true, 1000, 1000, true, 4500),
        (true, true, 1001, 0, true, 4500),
        (true, true, 1001, 1000, true, 4500),
    ] {
        let mut h = out(5);
        let mut turn = h.turn();
        let by = STAGES.loss;
        turn.t.received(STAGES.install).snd_una = Seq(1000);
        turn.t.sent(STAGES.install).snd_max = Seq(4500);
        turn.t.congestion(by).cwnd = 7777;
        turn.lines.measures.ssthresh.set(by, 6000);
        turn.lines.addresses.recover.set(by, recover);
        if recovery {
            turn.t.set(by, RECOVERY);
        }
        if set {
            turn.t.set(by, RECOVER_SET);
        }
        scoreboard_of(&mut turn).doubtful = 1;
        proceed(by, &mut turn, 500, lost, false);
        assert_eq!(turn.t.has(RECOVERY), then, "{recovery} {set} {recover} {lost}");
        // The flight is 3500 and above the threshold; the first repair goes at once.
        let above = if turn.lines.measures.ssthresh.get() < 3500 { 4500 } else { cwnd };
        assert_eq!(turn.t.cwnd(), if then { above } else { cwnd }, "{recovery} {set} {recover} {lost}");
        if then && !(recovery && recover == 1001) {
            let reduction = scoreboard_of(&mut turn).reduction;
            assert_eq!((reduction.flight, reduction.delivered, reduction.out), (3500, 500, 0));
            assert_eq!(scoreboard_of(&mut turn).doubtful, 0);
        }
    }
}

/// RFC 8985 §6.2, step 4: `reo_wnd_persist`.
#[test]
fn the_reordering_window_shrinks_after_its_number_of_recoveries() {
    const KEPT: u32 = learnt::SEEN | learnt::ROUND;
    for (known, wanted) in [
        (16 << 8 | 3 | KEPT, 15 << 8 | 3 | KEPT),
        (255 << 8 | 255, 254 << 8 | 255),
        (2 << 8 | 3 | learnt::SEEN, 1 << 8 | 3 | learnt::SEEN),
        (1 << 8 | 3 | KEPT, KEPT),
        (1 << 8 | 3 | learnt::SEEN, learnt::SEEN),
        (1 << 8 | 3 | learnt::ROUND, learnt::ROUND),
        (3 | KEPT, KEPT),
        (0, 0),
    ] {
        let lines = Lines::default();
        lines.recovery.reordering.set(STAGES.loss, known);
        recovered(STAGES.loss, &lines);
        assert_eq!(lines.recovery.reordering.get(), wanted, "{known:x}");
    }
}

/// RFC 9937 §6.2. `RecoverFS` is 10,000, and a segment 1000 bytes.
#[test]
fn the_window_in_a_recovery_follows_the_proportional_rate_reduction() {
    // Pipe, threshold; delivered and sent so far; delivered now, safe; the window.
    for (pipe, ssthresh, delivered, out_so_far, now, safe, cwnd) in [
        // Above the threshold: the share of what has arrived, rounded up, less what has gone.
        (9000, 5000, 2000, 500, 1000, false, 10_000),
        (9000, 5000, 2000, 500, 1000, true, 10_000),
        (9000, 5000, 2000, 500, 1001, false, 10_001),
        (9000, 7000, 2000, 500, 1000, false, 10_600),
        (9000, 5000, 2000, 5000, 1000, false, 9000),
        (5001, 5000, 2000, 500, 1000, false, 6001),
        // At it nothing, below it what leads to it: not more than has arrived, or a segment more if that is safe.
        (5000, 5000, 2000, 500, 1000, false, 5000),
        (3000, 5000, 1000, 1000, 500, false, 3500),
        (3000, 5000, 1000, 1000, 500, true, 4500),
        (3000, 5000, 1000, 1000, 1500, true, 5000),
        (3000, 5000, 2500, 1200, 500, false, 4800),
        (3000, 5000, 3000, 1000, 500, false, 5000),
        (3000, 5000, 1000, 5000, 500, false, 3500),
        // The first repair goes at once.
        (3000, 3100, 0, 0, 10, false, 4000),
        (3000, 3100, 0, 1, 10, false, 3010),
        (9000, 5000, 0, 0, 0, false, 10_000),
        (9000, 5000, 4000, 0, 0, false, 11_000),
    ] {
        let mut h = out(2);
        let mut turn = h.turn();
        turn.t.sent(STAGES.install).snd_max = Seq(pipe);
        turn.lines.measures.ssthresh.set(STAGES.loss, ssthresh);
        scoreboard_of(&mut turn).reduction = Reduction { delivered, out: out_so_far, flight: 10_000 };
        proportional(STAGES.loss, &mut turn, now, safe);
        assert_eq!(turn.t.cwnd(), cwnd, "{pipe} {ssthresh} {delivered} {out_so_far} {now} {safe}");
        assert_eq!(scoreboard_of(&mut turn).reduction.delivered, delivered + now);
    }
}

/// RFC 8985 §7.4.2.
#[test]
fn a_loss_that_a_probe_has_repaired_reduces_the_window_once() {
    for (recovery, cwnd, then, ssthresh) in
        [(false, 9000, 2000, 2000), (false, 1500, 1500, 2000), (true, 9000, 9000, 77)]
    {
        let mut h = out(4);
        let mut turn = h.turn();
        turn.t.congestion(STAGES.loss).cwnd = cwnd;
        turn.lines.measures.ssthresh.set(STAGES.loss, 77);
        if recovery {
            turn.t.set(STAGES.loss, RECOVERY);
        }
        repaired_by_probe(STAGES.loss, &mut turn);
        assert_eq!((turn.t.cwnd(), turn.lines.measures.ssthresh.get()), (then, ssthresh), "{recovery} {cwnd}");
    }
}

#[test]
fn a_scoreboard_begins_with_what_is_out_and_knows_when_it_was_sent_if_that_was_timed() {
    for (timing, max, at, again) in [
        (true, 1000, 12_345, false),
        (false, 1000, 1_000_000, true),
        (true, 0, 1_000_000, false),
        (false, 0, 1_000_000, false),
    ] {
        let mut h = out(0);
        let mut turn = h.turn();
        turn.t.sent(STAGES.install).snd_max = Seq(max);
        turn.lines.measures.rtt_at.set(STAGES.install, 12_345);
        if timing {
            turn.t.set(STAGES.loss, TIMING);
        }
        assert!(track(STAGES.loss, &mut turn) && turn.t.has(TRACKED));
        let spans: Vec<_> =
            scoreboard_of(&mut turn).iter().map(|(start, span)| (start.0, span.end.0, span.at, span.state)).collect();
        assert_eq!(spans, [(0, max, at, if again { AGAIN } else { 0 })], "{timing} {max}");
        assert_eq!(scoreboard_of(&mut turn).clean, !again);
        turn.lines.recovery.deadline.set(STAGES.loss, 5);
        turn.lines.seldom.resent.set(STAGES.loss, 5);
        turn.t.set(STAGES.loss, SCORED);
        turn.t.set(STAGES.loss, LOST | TAIL);
        for _ in 0..2 {
            untrack(STAGES.loss, &mut turn);
            let line = &turn.lines.recovery;
            assert_eq!((line.scoreboard.get(), line.deadline.get(), turn.lines.seldom.resent.get()), (0, 0, 0));
            assert!(!turn.t.any(TRACKED | SCORED) && !turn.t.any(LOST | TAIL));
            assert_eq!(turn.state.scoreboards.in_use(), 0);
        }
    }
}
