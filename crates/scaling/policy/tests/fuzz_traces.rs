//! Traces come from other machines and versions. Any text is either refused, or read and replayed.
#![allow(clippy::unwrap_used)]

use towpath_scaling::{Config, Observation, Outcome, Trace};

/// Keys of a header's limits and of lines, and values for them.
const KEYS: [&str; 20] = [
    "min",
    "max",
    "app_min",
    "total",
    "high",
    "gap",
    "up_ticks",
    "settle_ticks",
    "trial_ticks",
    "backoff_ticks",
    "backoff_most_ticks",
    "explore_ticks",
    "most_changes",
    "fuse",
    "cores",
    "tick_ms",
    "busy",
    "app_busy",
    "offered",
    "outcome",
];
const VALUES: [&str; 14] = [
    "0",
    "1",
    "2",
    "600",
    "4294967295",
    "18446744073709551615",
    "-1",
    "0.5",
    "1e308",
    "1e999",
    "null",
    "{}",
    "[]",
    "{\"throughput\":1e17,\"latency_us\":1,\"p99_us\":1}",
];

/// Replaces the first value of a key.
fn bend(line: &mut String, key: &str, value: &str) {
    let name = format!("\"{key}\":");
    let Some(at) = line.find(&name).map(|at| at + name.len()) else { return };
    let end = line[at..].find([',', '}']).map_or(line.len(), |end| at + end);
    line.replace_range(at..end, value);
}

#[test]
fn fuzz_traces() {
    let config = Config { explore_ticks: 5, settle_ticks: 1, trial_ticks: 2, ..Config::new(8) };
    let seen = |busy: f64| Observation {
        busy,
        app_busy: 3.0,
        offered: 1000.0,
        outcome: Some(Outcome { throughput: 500.0, latency_us: 80.0, p99_us: 0.0 }),
        ..Observation::default()
    };
    let whole = Trace::header(&config, 100, 1, "a machine")
        + &Trace::line(1, &seen(0.9)).repeat(20)
        + &Trace::line(2, &seen(0.1)).repeat(20);
    assert_eq!(Trace::parse(&whole).unwrap().ticks.len(), 40);
    type Bent = (Vec<(u8, u8, u8)>, Vec<(u16, char)>);
    bolero::check!().with_type::<Bent>().with_iterations(1_500).for_each(|(bends, noise)| {
        let mut lines: Vec<String> = whole.lines().map(str::to_owned).collect();
        for (nth, (line, key, value)) in bends.iter().take(6).enumerate() {
            // Every other one is in the header, where most can go wrong.
            let line = if nth % 2 == 0 { 0 } else { usize::from(*line) % lines.len() };
            let (key, value) = (KEYS[usize::from(*key) % KEYS.len()], VALUES[usize::from(*value) % VALUES.len()]);
            bend(&mut lines[line], key, value);
        }
        let mut text: Vec<char> = lines.join("\n").chars().collect();
        for (place, character) in noise.iter().take(1) {
            text.insert(usize::from(*place) % (text.len() + 1), *character);
        }
        let Ok(trace) = Trace::parse(&text.iter().collect::<String>()) else { return };
        let mut ticks = 0;
        for said in trace.replay() {
            ticks += 1;
            assert_eq!(said.tick, ticks);
            let allowed = trace.config.allows(said.cores) || said.cores == said.from;
            assert!(allowed, "{said:?} is not what {:?} allows", trace.config);
        }
        assert_eq!(ticks as usize, trace.ticks.len());
    });
}
