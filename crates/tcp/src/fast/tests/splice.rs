//! Flows that are to be spliced: they take nothing new, and rest when nothing is left to do.

use super::*;
use crate::messages::{Held, Splicing};

impl Harness {
    fn splicing(&mut self, step: Splicing) {
        self.message(ToFast::Splice(FLOW, step));
    }
    /// Segments that were handed to the slow path.
    fn kept(&mut self) -> usize {
        self.slow.drain(..).filter(|message| matches!(message, ToSlow::Segment(PortId(1), _))).count()
    }
    fn hold(&mut self) -> Held {
        self.splicing(Splicing::Hold(7));
        let held: Vec<_> =
            self.slow.drain(..).filter_map(|m| if let ToSlow::Held(FLOW, 7, h) = m { Some(h) } else { None }).collect();
        assert_eq!(held.len(), 1);
        held[0]
    }
}

#[test]
fn a_flow_rests_when_all_is_read_sent_and_acknowledged() {
    let mut h = Harness::new();
    h.rx(seg(0, 0, &bytes(0, 700)));
    assert_eq!(h.hold(), Held::Unread);
    assert_eq!(h.read(), 700);
    assert_eq!(h.hold(), Held::Outstanding, "its acknowledgement is owed");
    assert_eq!(h.flush()[0].ack, 700);
    h.write(300);
    assert_eq!(h.hold(), Held::Outstanding, "not acknowledged");
    h.rx(seg(700, 300, &[]));
    assert_eq!((h.hold(), h.hold()), (Held::Resting, Held::Resting));
    assert!(h.rx(seg(700, 300, &bytes(700, 100))).is_empty() && h.wait(1_000_000).is_empty());
    assert_eq!((h.kept(), h.drops()), (1, 0));
    assert_eq!(h.snapshot().rcv_nxt, h.setup.rcv_start.add(700));
}

#[test]
fn a_flow_that_is_held_takes_nothing_new_and_goes_on_after_it() {
    let mut h = Harness::new();
    h.rx(seg(0, 0, &bytes(0, 700)));
    assert_eq!(h.hold(), Held::Unread);
    // Nor an end, which would stand ahead of what was not taken.
    assert!(h.rx(seg(700, 0, &bytes(700, 100))).is_empty() && h.rx(seg(800, 0, &[]).with(ACK | FIN)).is_empty());
    assert_eq!((h.kept(), h.drops(), h.view().eof), (2, 0, false));
    assert_eq!(h.read(), 700);
    h.wait(2000);
    assert_eq!(h.hold(), Held::Resting);
    h.splicing(Splicing::Resume);
    assert_eq!(h.flush()[0].ack, 700, "the peer learns where we are");
    assert_eq!(h.write(200).len(), 1, "it sends");
    h.rx(seg(700, 200, &bytes(700, 100)));
    assert_eq!((h.kept(), h.snapshot().snd_una), (1, h.setup.snd_start.add(200)), "what it acknowledges counts");
    h.splicing(Splicing::Release);
    assert!(h.flush().is_empty(), "it did not rest");
    h.rx(seg(700, 200, &bytes(700, 100)));
    assert_eq!(h.read(), 100);
}

#[test]
fn what_fills_a_hole_is_still_taken() {
    let mut h = Harness::new();
    h.rx(seg(500, 0, &bytes(500, 500)));
    assert_eq!(h.hold(), Held::Outstanding);
    h.rx(seg(0, 0, &bytes(0, 500)));
    assert_eq!(h.hold(), Held::Unread);
    assert_eq!(h.read(), 1000);
}

#[test]
fn a_flow_that_ends_is_not_spliced() {
    let mut h = Harness::new();
    h.rx(seg(0, 0, &[]).with(ACK | FIN));
    assert_eq!(h.hold(), Held::Ending);
    let mut h = Harness::new();
    h.app.shut_wr = true;
    h.update().unwrap();
    assert_eq!(h.hold(), Held::Ending);
    let mut h = Harness::new();
    h.message(ToFast::Remove(FLOW));
    h.slow.clear();
    assert_eq!(h.hold(), Held::Ending, "no flow");
}

#[test]
fn the_application_of_a_spliced_flow_learns_of_begin_and_end_and_may_abort() {
    let mut h = Harness::new();
    assert_eq!(h.hold(), Held::Resting);
    h.splicing(Splicing::Begun);
    assert_eq!((h.take_events(), h.view().tx_closed), (event::TX_CLOSED, true));
    h.splicing(Splicing::Ended(None));
    assert_eq!(h.take_events(), event::EOF);
    h.splicing(Splicing::Ended(Some(104)));
    assert_eq!((h.take_events(), h.view().errno), (event::ERROR, 104));
    // What it writes goes nowhere, and a close changes nothing.
    assert!(h.write(100).is_empty());
    h.app.closed = true;
    h.update().unwrap();
    assert!(h.slow.is_empty());
    h.app.abort = true;
    h.update().unwrap();
    h.update().unwrap();
    assert_eq!(h.slow_names(), ["Aborted"], "once");
    assert!(h.flush().is_empty(), "the numbers of a RST are others by now");
    h.message(ToFast::Remove(FLOW));
    assert_eq!(h.slow_names(), ["Removed"]);
}

#[test]
fn who_aborts_before_the_splice_has_begun_resets_the_peer() {
    let mut h = Harness::new();
    assert_eq!(h.hold(), Held::Resting);
    (h.app.closed, h.app.abort) = (true, true);
    h.update().unwrap();
    assert_eq!((h.flush()[0].flags & RST, h.slow_names()), (RST, vec!["Aborted".into()]));
}
