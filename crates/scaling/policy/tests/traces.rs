//! Observations of real machines (`tests/traces`, recorded by `towpath cores observe --record`). The policy answers
//! them the same way every time; TOWPATH_WRITE_GOLDEN=1 writes the answers anew.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use towpath_scaling::{Config, Decision, Observation, Outcome, Trace, TraceError};

fn traces() -> Vec<(PathBuf, Trace)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces");
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), Trace::parse(&fs::read_to_string(path).unwrap()).unwrap())).collect()
}

/// Every tick with a change, or with another reason than before.
fn decisions(trace: &Trace) -> String {
    let mut last = None;
    let mut text = String::new();
    for said in trace.replay() {
        if said.decision() != Decision::Hold || last != Some(said.reason) {
            text.push_str(&format!("{} {} {}\n", said.tick, said.cores, said.reason));
        }
        last = Some(said.reason);
    }
    text
}

#[test]
fn recorded_traces_have_the_decisions_that_were_written_down() {
    let all = traces();
    assert!(all.len() >= 4, "{} traces", all.len());
    for (path, trace) in all {
        let golden = path.with_extension("golden");
        if std::env::var_os("TOWPATH_WRITE_GOLDEN").is_some() {
            fs::write(&golden, decisions(&trace)).unwrap();
        }
        let written = fs::read_to_string(&golden).unwrap_or_default();
        assert_eq!(decisions(&trace), written, "other decisions than those in {}", golden.display());
    }
}

#[test]
fn the_traces_are_of_what_they_are_named_after() {
    let all = traces();
    let of = |name: &str| {
        let found = all.iter().find(|(path, _)| path.file_stem().is_some_and(|stem| stem == name));
        &found.unwrap().1.ticks
    };
    let told: Vec<bool> = of("feedback-lost").iter().map(|(_, seen)| seen.outcome.is_some()).collect();
    assert!(told[2..20].iter().all(|told| *told) && told[25..].contains(&false) && told[47], "lost, and back");
    assert!(of("threaded-napi").iter().all(|(_, seen)| seen.outcome.is_none()));
    assert!(
        of("quiet-card").iter().all(|(_, seen)| seen.offered < 100.0 && seen.app_busy > 1.0),
        "a saturated machine"
    );
    assert!(
        of("enforced-steps").iter().any(|(cores, _)| *cores == 1)
            && of("redis-steps").iter().all(|(cores, _)| *cores == 0)
    );
}

#[test]
fn a_trace_comes_back_as_it_was_written() {
    let config = Config { high: 0.7, down_ticks: 10, ..Config::new(8) };
    let outcome = Some(Outcome { throughput: 0.1 + 0.2, latency_us: 83.25, p99_us: 0.0 });
    let seen = Observation { busy: 1.0 / 3.0, pressure: true, app_busy: 2.5, app_waiting: 0.25, outcome, offered: 1e7 };
    let silent = Observation { outcome: None, ..seen };
    let text = Trace::header(&config, 1000, 2, "a test") + &Trace::line(2, &seen) + &Trace::line(3, &silent);
    let trace = Trace::parse(&text).unwrap();
    assert_eq!((&trace.config, trace.cores, trace.tick_ms, trace.machine.as_str()), (&config, 2, 1000, "a test"));
    assert_eq!(trace.ticks, [(2, seen), (3, silent)]);
    assert_eq!(Trace::line(1, &Observation { busy: f64::NAN, ..seen }), "", "what cannot be is not written");
}

#[test]
fn limits_that_a_trace_does_not_name_are_as_usual() {
    let trace =
        Trace::parse(r#"{"towpath_cores_trace":1,"tick_ms":1000,"config":{"total":8,"max":3,"later":1}}"#).unwrap();
    assert_eq!(trace.config, Config { max: 3, ..Config::new(8) });
}

#[test]
fn what_is_no_trace_is_refused_with_the_line() {
    let error = |text: &str| Trace::parse(text).unwrap_err();
    for text in ["", "\n", "{}", "[]", "no", r#"{"towpath_cores_trace":1}"#, "\u{0}"] {
        assert!(matches!(error(text), TraceError::Header(_)), "{text}: {}", error(text));
    }
    assert!(matches!(error(r#"{"towpath_cores_trace":2}"#), TraceError::Version(2)));
    let impossible = r#"{"towpath_cores_trace":1,"tick_ms":1000,"config":{"total":8,"min":7}}"#;
    assert!(matches!(error(impossible), TraceError::Config(_)));
    let header = Trace::header(&Config::new(8), 1000, 0, "");
    let good = Trace::line(0, &Observation::default());
    assert!(matches!(error(&format!("{header}{good}{{\"cores\":1}}\n")), TraceError::Line(3, _)));
    assert!(
        matches!(error(&format!("{header}{}", good.trim_end().get(..20).unwrap())), TraceError::Line(2, _)),
        "cut off"
    );
}
