//! Properties that hold for any observations.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Plant, Run};
use proptest::prelude::*;
use towpath_scaling::{Config, Decision, Observation, Outcome, PolicyState, step};

fn any_number() -> impl Strategy<Value = f64> {
    prop_oneof![0.0..40.0f64, 0.0..1e7f64, Just(f64::NAN), Just(f64::INFINITY), Just(-1.0), Just(0.0), any::<f64>()]
}

fn any_observation() -> impl Strategy<Value = Observation> {
    let outcome = (any_number(), any_number(), any_number()).prop_map(|(throughput, latency_us, p99_us)| Outcome {
        throughput,
        latency_us,
        p99_us,
    });
    let numbers = (any_number(), any_number(), any_number(), any_number());
    (numbers, any::<bool>(), prop::option::of(outcome)).prop_map(
        |((busy, app_busy, app_waiting, offered), pressure, outcome)| Observation {
            busy,
            pressure,
            app_busy,
            app_waiting,
            outcome,
            offered,
        },
    )
}

/// Long stretches of the same observation, so that the policy reacts.
fn any_story() -> impl Strategy<Value = Vec<(Observation, u32)>> {
    prop::collection::vec((any_observation(), 1..60u32), 1..60)
}

fn any_config() -> impl Strategy<Value = Config> {
    (1..40u32, 0..3u32, 1..20u32).prop_filter_map("no size", |(total, min, max)| {
        let config = Config { min, max, app_min: total.div_ceil(2), ..Config::new(total) };
        config.check().is_ok().then_some(config)
    })
}

proptest! {
    #[test]
    fn limits_hold_and_changes_are_few(config in any_config(), start in 0..50u32, story in any_story()) {
        let mut state = PolicyState::new(start, &config);
        let mut changes: Vec<u64> = Vec::new();
        for (seen, times) in story {
            for _ in 0..times {
                let before = state.cores();
                let (after, decision, _) = step(&config, state, &seen);
                state = after;
                match decision {
                    Decision::Hold => prop_assert_eq!(state.cores(), before),
                    Decision::Change { from, to } => {
                        prop_assert_eq!((from, to), (before, state.cores()));
                        prop_assert!(from != to && config.allows(to), "{} of {:?}", to, config);
                        changes.push(state.tick());
                    }
                }
                let lately = changes.iter().filter(|at| **at + Config::RATE_TICKS > state.tick()).count();
                prop_assert!(lately as u32 <= config.most_changes, "{lately} changes in a minute");
            }
        }
    }

    /// The same observations give the same decisions.
    #[test]
    fn it_is_a_function(config in any_config(), story in any_story()) {
        let run = || story.iter().fold(PolicyState::new(config.min, &config), |state, (seen, times)| {
            (0..*times).fold(state, |state, _| step(&config, state, seen).0)
        });
        // Not by `==`: an observation may be NaN.
        prop_assert_eq!(format!("{:?}", run()), format!("{:?}", run()));
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Under constant observations, changes come to an end.
    #[test]
    fn constant_observations_end_in_silence(seen in any_observation(), start in 0..10u32) {
        let config = Config::new(20);
        let mut state = PolicyState::new(start, &config);
        let mut last = 0;
        for _ in 0..30_000 {
            let (after, decision, _) = step(&config, state, &seen);
            state = after;
            if decision != Decision::Hold {
                last = state.tick();
            }
        }
        // Endless losses and starvation lead to new attempts, but ever less often.
        let calls = seen.is_sound() && (seen.pressure || seen.app_waiting > config.waiting);
        prop_assert!(calls || last < 20_000, "still a change at {last}");
    }

    /// A steady load on a real machine, noise and all.
    #[test]
    fn a_steady_load_ends_in_silence(offered in 1e4..1.4e6f64, start in 0..10u32, seed in 1..u64::MAX, sharing in 0.0..0.3f64) {
        let plant = Plant { sharing, ..Plant::USUAL };
        let run = Run::of(&Config::new(20), start, 12_000, seed, |_| (plant, offered));
        prop_assert!(run.changes_from(9_000) <= 2, "{}", run.text());
    }
}

#[test]
fn a_configuration_without_a_size_is_refused() {
    let config = Config { min: 3, max: 2, ..Config::new(8) };
    assert!(config.check().unwrap_err().to_string().contains("at least 3, at most 2"));
    assert!(Config::new(Config::MOST_CPUS + 1).check().unwrap_err().to_string().contains("total"));
    assert!(Config { high: 1.5, ..Config::new(8) }.check().unwrap_err().to_string().contains("high"));
    for total in 1..200 {
        assert_eq!(Config::new(total).check(), Ok(()), "{total} CPUs");
    }
}
