//! Arbitrary input of peers, applications and slow paths: no panic, and the state stays consistent.

use super::*;
use crate::messages::AppMarks;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Segment(Seg),
    Frame(Vec<u8>),
    App(AppUpdate),
    /// Regular progress, so that there is something to attack.
    Write(u32),
    Read,
    Message(u8, Window),
    Time(u64),
    Room(usize),
}

/// Numbers mostly near the edges of windows.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..4, 0u32..5000, (0u32..100).prop_map(|n| n.wrapping_sub(50)), 60_000u32..70_000, any::<u32>()]
}

fn segment() -> impl Strategy<Value = Seg> {
    let flags = prop_oneof![8 => Just(ACK), 2 => Just(ACK | FIN), 1 => Just(RST), 1 => Just(SYN), 1 => any::<u8>()];
    let ts = prop::option::weighted(0.9, (number(), any::<u32>()));
    let sack = prop::collection::vec((number(), number()), 0..5);
    (number(), number(), flags, any::<u16>(), 0usize..1500, ts, sack).prop_map(
        |(seq, ack, flags, wnd, len, ts, sack)| Seg { seq, ack, flags, wnd, data: vec![7; len], ts, urgent: wnd, sack },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let app = (number(), number(), any::<u8>()).prop_map(|(tx_tail, rx_head, bits)| AppUpdate {
        tx_tail,
        rx_head,
        shut_wr: bits & 1 != 0,
        shut_rd: bits & 2 != 0,
        closed: bits & 12 == 12,
        abort: bits & 16 != 0,
        nodelay: bits & 32 != 0,
        cork: bits & 64 != 0,
        quickack: bits & 128 != 0,
        marks: (bits & 1 != 0).then_some(AppMarks {
            urgent: (bits & 2 != 0).then_some(tx_tail),
            flush: (bits & 80 == 80).then_some(tx_tail.wrapping_sub(rx_head)),
            record: (bits & 8 != 0).then_some(tx_tail.wrapping_sub(u32::from(bits))),
        }),
    });
    let window = (number(), number(), any::<u16>(), any::<u16>()).prop_map(|(cwnd, ssthresh, growth, beta)| Window {
        cwnd,
        ssthresh,
        growth,
        beta,
        pacing: 0,
    });
    prop_oneof![
        20 => segment().prop_map(Step::Segment),
        2 => prop::collection::vec(any::<u8>(), 0..200).prop_map(Step::Frame),
        1 => app.prop_map(Step::App),
        10 => (0u32..5000).prop_map(Step::Write),
        5 => Just(Step::Read),
        5 => (0u8..12, window).prop_map(|(n, w)| Step::Message(n, w)),
        5 => (0u64..3_000_000).prop_map(Step::Time),
        2 => (0usize..5).prop_map(Step::Room),
    ]
}

fn consistent(h: &mut Harness) -> Result<(), TestCaseError> {
    let lines = h.fast.table.get(FLOW).unwrap();
    let t = lines.protocol.load();
    let id = &lines.identity;
    prop_assert!(!t.snd_nxt().before(t.snd_una()) && !t.snd_max().before(t.snd_nxt()), "{t:?}");
    prop_assert!(t.snd_queued().bytes_since(t.snd_una()).wrapping_add(1) <= id.tx_bytes.get() + 1, "{t:?}");
    prop_assert!(t.snd_max().distance(t.snd_queued()) <= 1, "{t:?}");
    prop_assert!(t.rcv_limit().distance(t.rcv_adv()) >= -1, "only a FIN may stand beyond the ring: {t:?}");
    prop_assert!(!t.rcv_adv().before(t.rcv_nxt()), "{t:?}");
    prop_assert!(h.snapshot().rx_queued <= id.rx_bytes.get(), "{t:?}");
    let (tracked, left) = (t.has(bits::TRACKED), lines.recovery.left.get());
    if let Some(scoreboard) =
        h.fast.state.scoreboards.by(STAGES.loss).get(if tracked { lines.recovery.scoreboard.get() } else { 0 })
    {
        let mut end = t.snd_una();
        for (start, span) in scoreboard.iter() {
            prop_assert!(start == end && span.end.after(start), "{scoreboard:?} {t:?}");
            end = span.end;
        }
        prop_assert_eq!(end, t.snd_max());
        let counted = scoreboard.bytes(scoreboard::SACKED | scoreboard::LOST);
        prop_assert_eq!(counted, if t.has(bits::SCORED) { left } else { 0 });
        prop_assert!(!t.idle() || scoreboard.probe.is_some(), "nothing is out");
    } else {
        prop_assert!(!tracked && !t.has(bits::SCORED) && !t.any(bits::LOST | bits::TAIL));
    }
    Ok(())
}

proptest! {
    #[test]
    fn nothing_breaks(
        start in (any::<u32>(), any::<u32>()),
        shifts in (0u8..15, 0u8..15),
        mss in 1u16..9000,
        timestamps in any::<bool>(),
        sack in any::<bool>(),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut h = Harness::of(FlowSetup {
            snd_start: Seq(start.0), rcv_start: Seq(start.1), snd_wscale: shifts.0, rcv_wscale: shifts.1, mss, timestamps, sack, ..setup()
        });
        h.tx.buffer.resize(10_000, 0);
        for step in steps {
            match step {
                Step::Segment(s) => h.batch(&[s]),
                Step::Frame(f) => {
                    h.fast.receive(h.now, PortId(1), &Frames(vec![f]), &mut h.rings);
                    h.collect();
                }
                Step::App(update) => {
                    h.app = update;
                    let _ = h.update();
                }
                Step::Write(len) => {
                    let used = h.app.tx_tail.wrapping_sub(h.view().tx_head);
                    h.app.tx_tail = h.app.tx_tail.wrapping_add(len.min(RING.saturating_sub(used)));
                    let _ = h.update();
                }
                Step::Read => {
                    h.app.rx_head = h.view().rx_tail;
                    let _ = h.update();
                }
                Step::Message(n, window) => h.message(match n {
                    0 => ToFast::SetWindow(FLOW, window),
                    1 | 2 => ToFast::Timeout(FLOW, window),
                    3 => ToFast::ProbeWindow(FLOW),
                    4 => ToFast::ProbeTail(FLOW),
                    5 => ToFast::SendAck(FLOW),
                    6 => ToFast::Deactivate(FLOW),
                    8 => ToFast::KeepAlive(FLOW),
                    9 => ToFast::SetMss(FLOW, window.growth),
                    10 => ToFast::SetService { flow: FLOW, tos: window.beta as u8, ttl: 1 },
                    7 => {
                        let errno = Some((window.ssthresh & 127) as i32).filter(|errno| *errno != 0);
                        ToFast::Abort { flow: FLOW, rst: window.cwnd & 1 == 0, errno }
                    }
                    _ => ToFast::Relink(FLOW, h.setup.link),
                }),
                Step::Time(us) => h.now = h.now.after(us),
                Step::Room(room) => h.tx.room = room,
            }
            h.fast.transmit(h.now, 3, &h.rings, &mut h.tx);
            h.collect();
            h.tx.sent.clear();
            consistent(&mut h)?;
        }
        h.tx.room = usize::MAX;
        h.message(ToFast::Remove(FLOW));
        for _ in 0..200 {
            h.wait(1000);
        }
        prop_assert_eq!(h.slow.iter().filter(|m| matches!(m, ToSlow::Removed(_))).count(), 1);
        prop_assert!(h.fast.state.scheduler.is_empty() && h.fast.next_deadline().is_none());
        prop_assert_eq!(h.fast.state.out_of_order.in_use(), 0);
        prop_assert_eq!(h.fast.state.scoreboards.in_use(), 0);
    }
}
