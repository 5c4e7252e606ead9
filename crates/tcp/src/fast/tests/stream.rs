//! The stream arrives as it was sent, whatever the network does to segments.

use super::*;
use proptest::prelude::*;
use towpath_rng::Rng;

proptest! {
    /// Any cutting, reordering, overlap and duplication of a stream yields the stream; the sender repeats what is not
    /// acknowledged.
    #[test]
    fn received(
        rcv_start in any::<u32>(),
        total in 1u32..30_000,
        ring_bits in 10u32..15,
        shift in 0u8..4,
        pieces in prop::collection::vec((any::<u32>(), 1u32..1400, 1usize..6, any::<bool>()), 10..120),
    ) {
        let rx_bytes = 1 << ring_bits;
        let mut h = Harness::of(FlowSetup { rcv_start: Seq(rcv_start), rcv_wscale: shift, rx_bytes, rcv_wnd: rx_bytes, ..setup() });
        let (mut read, mut at) = (0, 0u32);
        let mut pieces = pieces.into_iter().cycle();
        let mut turns = 0;
        while read < total || !h.view().eof {
            turns += 1;
            prop_assert!(turns < 20_000, "stuck at {at} of {total}");
            let mut batch = vec![];
            let (_, _, count, reads) = pieces.next().unwrap();
            for n in 0..count {
                let (place, len, ..) = pieces.next().unwrap();
                // One piece per turn continues the stream, the others are around it.
                let from = if n == count / 2 { at } else { (at + place % 5000).saturating_sub(1500) };
                let from = from.min(total);
                let len = len.min(total - from);
                let fin = if from + len == total { FIN } else { 0 };
                batch.push(seg(from, 0, &bytes(from, len)).with(ACK | fin));
            }
            h.batch(&batch);
            if reads || turns % 16 == 0 {
                read += h.read();
            }
            h.now = h.now.after(300);
            for s in h.flush() {
                prop_assert!(s.ack.wrapping_sub(at) <= total + 1, "the acknowledgement never goes back");
                at = s.ack.min(total);
                prop_assert!(s.ack + (u32::from(s.wnd) << shift) <= h.app.rx_head + rx_bytes + 1);
            }
        }
        prop_assert_eq!(read, total);
        prop_assert_eq!(h.fast.state.out_of_order.in_use(), 0);
    }

    /// Two fast paths over a network that loses, duplicates and reorders, with time-outs: both streams arrive.
    #[test]
    fn both_ways(
        seed in any::<u64>(),
        loss in 0u32..20,
        lengths in (0u32..60_000, 0u32..60_000),
        starts in (any::<u32>(), any::<u32>()),
        nodelay in any::<bool>(),
        timestamps in any::<bool>(),
    ) {
        let a = FlowSetup { snd_start: Seq(starts.0), rcv_start: Seq(starts.1), nodelay, timestamps, rx_bytes: 8192, rcv_wnd: 8192, snd_wnd: 8192, tx_bytes: 16384, ..setup() };
        let tuple = FourTuple { local: a.tuple.remote, local_port: 4000, remote: a.tuple.local, remote_port: 80 };
        let b = FlowSetup { snd_start: a.rcv_start, rcv_start: a.snd_start, tuple, ..a.clone() };
        let mut ends = [Harness::of(a), Harness::of(b)];
        let totals = [lengths.0, lengths.1];
        let mut rng = Rng::new(seed);
        let mut dice = move |n: u32| rng.below(n.into()) as u32;
        let mut read = [0, 0];
        let mut heard = [0, 0];
        for turn in 0.. {
            prop_assert!(turn < 100_000, "stuck: {read:?} of {totals:?}\n{:#?}\n{:#?}", ends[0].snapshot(), ends[1].snapshot());
            for i in 0..2 {
                let h = &mut ends[i];
                let room = 16384 - (h.app.tx_tail - h.view().tx_head);
                let len = dice(3000).min(room).min(totals[i] - h.app.tx_tail);
                h.app.shut_wr = h.app.tx_tail + len == totals[i];
                let ring = h.rings.tx.get_mut(&FLOW).unwrap();
                for n in h.app.tx_tail..h.app.tx_tail + len {
                    ring[n as usize % 16384] = byte(n);
                }
                h.app.tx_tail += len;
                h.update().unwrap();
                if dice(3) == 0 {
                    read[i] += h.read();
                }
                h.now = h.now.after(u64::from(dice(800)));
                h.fast.transmit(h.now, 100, &h.rings, &mut h.tx);
                h.collect();
                let mut frames: Vec<_> = std::mem::take(&mut h.tx.sent).into_iter().map(|(_, f)| f).collect();
                for n in (1..frames.len()).rev() {
                    if dice(4) == 0 {
                        frames.swap(n, dice(n as u32 + 1) as usize);
                    }
                }
                let mut arriving = vec![];
                for frame in frames {
                    for _ in 0..u32::from(dice(100) >= loss) + u32::from(dice(30) == 0) {
                        arriving.push(frame.clone());
                    }
                }
                let (to, now) = (&mut ends[1 - i], ends_now(turn));
                to.now = to.now.max(now);
                heard[i] = if arriving.is_empty() { heard[i] + 1 } else { 0 };
                to.fast.receive(to.now, PortId(1), &Frames(arriving), &mut to.rings);
                to.collect();
            }
            // The slow path waits until nothing happens, then repeats or probes.
            if heard[0] > 5 && heard[1] > 5 {
                heard = [0, 0];
                for h in &mut ends {
                    let s = h.snapshot();
                    if s.snd_wnd < MSS && (s.snd_queued.after(s.snd_una) || s.snd_max.after(s.snd_una) || s.flags & flow_flags::FIN_ACKED == 0) {
                        h.message(ToFast::ProbeWindow(FLOW));
                    }
                    h.message(ToFast::Timeout(FLOW, Window { cwnd: 2 * MSS, ssthresh: 8 * MSS, growth: 256, beta: 512, pacing: 0 }));
                }
            }
            let done = |h: &Harness| h.snapshot().flags & flow_flags::FIN_ACKED != 0 && h.view().eof;
            if done(&ends[0]) && done(&ends[1]) && read == [totals[1], totals[0]] {
                break;
            }
        }
        for h in &ends {
            prop_assert_eq!((h.view().errno, h.fast.counters().contract_violations), (0, 0));
            prop_assert_eq!(h.fast.state.out_of_order.in_use(), 0);
        }
    }
}

/// Moves both clocks.
fn ends_now(turn: u64) -> Micros {
    Micros(1_000_000 + turn * 400)
}
