//! Traces through both layouts.
use super::Seen;
use super::driver::Driver;
use super::reference;
use super::traces::trace;
use std::collections::HashSet;

/// How much there was to compare.
#[derive(Debug, Default)]
struct Compared {
    frames: u64,
    payload: u64,
    events: u64,
    messages: u64,
    deaths: u32,
    lost: usize,
    unsent: usize,
    bytes: u64,
}

/// One trace under some interleavings.
fn compare(seed: u64, interleavings: u64, deaths_ppm: u32, all: &mut Compared) {
    let (flows, steps) = trace(seed, 120);
    let whole = reference::run(&flows, &steps, &HashSet::new());
    for interleaving in 0..interleavings {
        let mut driver = Driver::new(&flows, seed << 20 | interleaving, deaths_ppm);
        driver.run(&steps);
        // What was abandoned is as if lost on the wire.
        let again = (!driver.lost.is_empty()).then(|| reference::run(&flows, &steps, &driver.lost));
        let expected = again.as_ref().unwrap_or(&whole);
        let name = format!("trace {seed}, interleaving {interleaving}");
        let left = (0..).zip(&expected.seen).filter(|(number, _)| !driver.unsent.contains(number));
        let left: Vec<&Seen> = left.map(|(_, seen)| seen).collect();
        for (n, (got, wanted)) in driver.seen.iter().zip(&left).enumerate() {
            assert_eq!(&got, wanted, "{name}, output {n}");
        }
        assert_eq!(driver.seen.len(), left.len(), "{name}");
        assert_eq!(driver.lines(), expected.lines, "{name}");
        assert_eq!(driver.counters(), expected.counters, "{name}");
        for (flow, shown) in &driver.shown {
            let stream = &expected.streams[flow];
            // Numbers of a FIN, and of what is no longer wanted, stand behind the stream.
            let len = shown.len().min(stream.len());
            assert!(shown[..len] == stream[..len], "{name}: {flow:?} was shown bytes before they were copied");
            all.bytes += len as u64;
        }
        assert_eq!(driver.abandoned(), (driver.lost.len() as u64, driver.unsent.len() as u64), "{name}");
        all.deaths += driver.deaths;
        all.lost += driver.lost.len();
        all.unsent += driver.unsent.len();
    }
    for seen in &whole.seen {
        match seen {
            Seen::Frame(_, frame, _) => {
                all.frames += 1;
                all.payload += u64::from(frame.len() > 100);
            }
            Seen::Event(..) => all.events += 1,
            Seen::Message(_) => all.messages += 1,
        }
    }
}

#[test]
fn the_pipeline_gives_what_run_to_completion_gives() {
    let mut all = Compared::default();
    for seed in 0..100 {
        compare(seed, 10, 0, &mut all);
    }
    assert!(
        all.payload > 1000 && all.frames > 3000 && all.events > 1000 && all.messages > 500 && all.bytes > 1_000_000,
        "{all:?}"
    );
}

#[test]
fn stages_that_end_in_the_middle_lose_what_they_had_in_hand_and_nothing_else() {
    let mut all = Compared::default();
    for seed in 1000..1100 {
        compare(seed, 10, 3000, &mut all);
    }
    assert!(all.deaths > 1000 && all.lost > 500 && all.unsent > 200, "{all:?}");
}

#[test]
#[ignore = "100,000 interleavings: make test-slow"]
fn the_same_under_a_hundred_thousand_interleavings() {
    let mut all = Compared::default();
    for seed in 10_000..11_000 {
        compare(seed, 100, if seed % 2 == 0 { 0 } else { 2000 }, &mut all);
    }
}
