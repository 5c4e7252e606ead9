//! Messages of the slow path: the values around what they are compared with.

use super::*;
use crate::flow::Window;
use crate::table::bits::{RECOVER_SET, RECOVERY, TAIL, UNDO};

fn window(cwnd: u32, ssthresh: u32) -> Window {
    Window { cwnd, ssthresh, ..setup().window }
}

/// A flow from 0 on with `n` segments out.
fn out(n: u32) -> Harness {
    let mut h = Harness::of(FlowSetup { snd_start: Seq(0), ..setup() });
    h.write(n * MSS);
    h.slow.clear();
    h
}

#[test]
fn a_window_that_was_decided_before_a_loss_does_not_undo_its_reduction() {
    const KEEP: u32 = Window::KEEP;
    for (recovery, cwnd, ssthresh, wanted) in [
        (false, 7000, 9000, (7000, 9000)),
        (false, KEEP, 9000, (10_000, 9000)),
        (false, 7000, KEEP, (7000, 5000)),
        (false, 10, 4000, (1000, 4000)),
        (true, 7000, 9000, (10_000, 5000)),
        (true, KEEP, 4000, (10_000, 4000)),
        (true, 7000, KEEP, (10_000, 5000)),
    ] {
        let mut h = out(1);
        let mut turn = h.turn();
        turn.lines.measures.ssthresh.set(STAGES.loss, 5000);
        if recovery {
            turn.t.set(STAGES.loss, RECOVERY);
        }
        turn.store(STAGES.loss);
        h.message(ToFast::SetWindow(FLOW, window(cwnd, ssthresh)));
        let s = h.snapshot();
        assert_eq!((s.cwnd, s.ssthresh), wanted, "{recovery} {cwnd} {ssthresh}");
    }
}

/// RFC 4015 §3.2: what is restored is what was before the first reduction.
#[test]
fn a_time_out_remembers_the_window_unless_one_from_before_is_remembered() {
    // A time-out before this one, in recovery, a reduction that can be undone; whether the window is remembered.
    for (again, recovery, undo, remembers) in [
        (false, false, false, true),
        (false, false, true, true),
        (false, true, false, true),
        (false, true, true, false),
        (true, false, false, false),
        (true, false, true, false),
    ] {
        let mut h = out(3);
        let mut turn = h.turn();
        turn.lines.recovery.prior_cwnd.set(STAGES.loss, 77);
        turn.lines.addresses.recover.set(STAGES.loss, 3000);
        for (on, flag) in [(again, RECOVER_SET), (recovery, RECOVERY), (undo, UNDO)] {
            if on {
                turn.t.set(STAGES.loss, flag);
            }
        }
        turn.store(STAGES.loss);
        h.message(ToFast::Timeout(FLOW, window(1000, 5000)));
        let prior = h.turn().lines.recovery.prior_cwnd.get();
        assert_eq!(prior, if remembers { 10_000 } else { 77 }, "{again} {recovery} {undo}");
        assert_eq!((h.snapshot().cwnd, h.snapshot().bytes_lost), (1000, 3000));
    }
}

#[test]
fn a_segment_size_that_stays_or_grows_loses_nothing() {
    for (mss, repairs) in [(1000, 0), (1001, 0), (999, 3)] {
        let mut h = out(3);
        h.message(ToFast::SetMss(FLOW, mss));
        let again = h.flush().iter().filter(|s| s.seq < 3000).count();
        assert!(again >= repairs && (again > 0) == (repairs > 0), "{mss}: {again}");
    }
}

#[test]
fn a_lone_segment_is_probed_unless_it_is_being_repaired_or_the_window_is_closed() {
    for (recovery, timed_out, idle, wnd) in [
        (false, false, false, 60_000),
        (false, false, false, 1),
        (true, false, false, 60_000),
        (false, true, false, 60_000),
        (false, false, true, 60_000),
        (false, false, false, 0),
    ] {
        let mut h = out(1);
        let mut turn = h.turn();
        if recovery {
            turn.t.set(STAGES.loss, RECOVERY);
        }
        if timed_out {
            turn.t.set(STAGES.loss, RECOVER_SET);
            turn.lines.addresses.recover.set(STAGES.loss, 1000);
        }
        turn.t.received(STAGES.install).snd_wnd = wnd;
        if idle {
            turn.t.received(STAGES.install).snd_una = Seq(1000);
        }
        turn.store(STAGES.install);
        h.message(ToFast::ProbeTail(FLOW));
        let probes = !recovery && !timed_out && !idle && wnd != 0;
        assert_eq!(h.turn().t.has(TAIL), probes, "{recovery} {timed_out} {idle} {wnd}");
        assert_eq!(h.fast.state.scoreboards.in_use(), usize::from(probes));
    }
}

#[test]
fn frames_that_find_no_room_are_lost_beyond_4096() {
    let mut h = Harness::new();
    for _ in 0..4100 {
        h.message(ToFast::Transmit(PortId(0), vec![1; 60].into()));
    }
    assert_eq!(h.fast.transmit(h.now, 10_000, &h.rings, &mut h.tx), 4096);
}

#[test]
fn a_frame_that_the_slow_path_gives_back_is_not_summed_again() {
    let mut h = Harness::new();
    let mut frame = h.frame(&seg(0, 0, &bytes(0, 100)));
    // As the port may have left it: with the sum of the pseudo-header only.
    frame[14 + 20 + 16] ^= 1;
    h.message(ToFast::Inject(PortId(1), frame.into()));
    assert_eq!((h.view().rx_tail, h.drops()), (100, 0));
}

/// RFC 5682 §3.1: timestamps tell at once whether a time-out was needless, and only the first one is in doubt.
#[test]
fn a_first_time_out_without_timestamps_is_in_doubt() {
    for (timestamps, again, doubtful) in [(false, false, 1), (false, true, 0), (true, false, 0), (true, true, 0)] {
        let mut h = Harness::of(FlowSetup { snd_start: Seq(0), sack: true, timestamps, ..setup() });
        h.write(3 * MSS);
        let mut turn = h.turn();
        if again {
            turn.t.set(STAGES.loss, RECOVER_SET);
            turn.lines.addresses.recover.set(STAGES.loss, 3000);
        }
        turn.store(STAGES.loss);
        h.message(ToFast::Timeout(FLOW, window(1000, 5000)));
        assert_eq!(scoreboard_of(&mut h.turn()).doubtful, doubtful, "{timestamps} {again}");
    }
}
