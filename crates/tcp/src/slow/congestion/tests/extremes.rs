//! Even with impossible samples, windows are valid.

use crate::flow::Window;
use crate::slow::congestion::{Algorithm, Interval, Sample};
use crate::time::Micros;
use proptest::prelude::*;

/// Small, large and ordinary numbers.
fn any_u32() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(1), Just(u32::MAX), 0..100_000u32, any::<u32>()]
}

fn any_u64() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(u64::MAX), 0..1_000_000u64, any::<u64>()]
}

prop_compose! {
    fn sample()(
        windows in [any_u32(), any_u32(), any_u32(), any_u32()],
        rtts in [any_u32(), any_u32(), any_u32()],
        totals in [any_u64(), any_u64(), any_u64(), any_u64(), any_u64(), any_u64()],
        interval in [any_u64(), any_u64(), any_u64(), any_u64(), any_u64()],
        app_limited in any::<bool>(),
        recovering in any::<bool>(),
        timeouts in any_u32(),
    ) -> Sample {
        let [mss, flight, cwnd, ssthresh] = windows;
        let [srtt_us, rtt_us, min_rtt_us] = rtts;
        let [now, bytes_acked, bytes_marked, bytes_lost, retransmits, pacing] = totals;
        let [us, acked, marked, lost, again] = interval;
        Sample {
            now: Micros(now),
            mss: mss.clamp(1, 65_535),
            flight, cwnd, ssthresh, bytes_acked, bytes_marked, bytes_lost, retransmits, srtt_us, rtt_us, min_rtt_us,
            pacing, app_limited, recovering, timeouts,
            interval: Interval { us, acked, marked, lost, retransmits: again },
        }
    }
}

fn check(window: Window, sample: &Sample, first: bool) {
    let floor = sample.mss;
    let ok = |bytes: u32| bytes >= floor || (!first && bytes == Window::KEEP);
    assert!(ok(window.cwnd) && ok(window.ssthresh), "{window:?} after {sample:?}");
    assert!((1..=1024).contains(&window.beta), "{window:?}");
}

proptest! {
    #[test]
    fn no_sample_leads_to_a_panic_or_to_a_window_below_one_segment(
        mss in 1u32..65_536,
        calls in proptest::collection::vec((0..7u8, sample()), 1..60),
    ) {
        for algorithm in Algorithm::NAMED.into_iter().chain([Algorithm::Constant(1), Algorithm::Constant(u64::MAX)]) {
            let mut control = algorithm.start();
            check(control.initial(mss, false), &Sample { mss, ..Sample::default() }, true);
            for (what, sample) in &calls {
                let sample = &Sample { mss, ..*sample };
                let window = match what {
                    0..3 => control.on_interval(sample),
                    3 => control.on_loss(sample),
                    4 => control.on_undo(sample),
                    5 => control.on_idle(sample),
                    _ => {
                        // An unchanged threshold is the current one (RFC 5681 §3.1).
                        let sample = &Sample { ssthresh: sample.ssthresh.max(2 * mss), ..*sample };
                        let window = control.on_timeout(sample);
                        check(window, sample, true);
                        Some(window)
                    }
                };
                if let Some(window) = window {
                    check(window, sample, false);
                }
                check(algorithm.start().adopt(sample), sample, false);
            }
        }
    }
}
