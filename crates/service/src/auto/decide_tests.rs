#![allow(clippy::unwrap_used)]
use super::*;
use proptest::prelude::*;

const HOUR: u64 = 3_600_000_000;

/// The true cost of a carrier. Measurements scatter around it.
#[derive(Clone, Copy, Debug)]
struct Plant {
    cpu_ns: f64,
    wait_ns: f64,
}

impl Plant {
    /// A measurement that is wrong by `noise` (the logarithm of a factor).
    fn measured(self, noise: f64) -> Summary {
        Summary {
            connections: 10,
            turns: 10_000,
            bytes: 1_000_000,
            bulk: false,
            cpu_ns: Some(self.cpu_ns * noise.exp()),
            wait_ns: Some(self.wait_ns * (-noise).exp()),
            goodput: None,
        }
    }
}

/// Steps once a minute, with enough traffic on both carriers in each trial. Returns the decisions in order.
fn live(rules: &Rules, plants: [Plant; 2], noise: &[f64], hours: u64) -> (ClassState, Vec<CarriedBy>) {
    let (mut state, mut decisions) = (ClassState::new(rules, 0), Vec::new());
    let mut errors = noise.iter().cycle();
    for now in (0..hours * HOUR).step_by(60_000_000) {
        let seen = plants.map(|plant| plant.measured(*errors.next().unwrap()));
        let before = state;
        state = step(rules, state, false, Some(&seen), now);
        if state.trials > before.trials {
            decisions.extend(state.decision);
        }
    }
    (state, decisions)
}

fn changes(decisions: &[CarriedBy]) -> usize {
    decisions.windows(2).filter(|pair| pair[0] != pair[1]).count()
}

proptest! {
    #[test]
    fn noise_below_the_threshold_changes_a_decision_once_at_most(
        cpu in 0.5..2.0f64,
        wait in 0.5..2.0f64,
        // Two measurements are wrong by this much each, so their ratio by twice that: less than the gap between gain
        // and keep.
        noise in prop::collection::vec(-0.015..0.015f64, 1..60),
    ) {
        let plants = [Plant { cpu_ns: 1000.0 * cpu, wait_ns: 20_000.0 * wait }, Plant { cpu_ns: 1000.0, wait_ns: 20_000.0 }];
        let (_, decisions) = live(&Rules::default(), plants, &noise, 60);
        prop_assert!(changes(&decisions) <= 1, "{decisions:?}");
    }

    #[test]
    fn the_better_of_two_ways_is_found_whatever_the_noise_of_some_percent(
        factor in 1.2..4.0f64,
        stack_is_better: bool,
        noise in prop::collection::vec(-0.03..0.03f64, 1..60),
    ) {
        let (good, bad) = (Plant { cpu_ns: 1000.0, wait_ns: 20_000.0 }, Plant { cpu_ns: 1000.0 * factor, wait_ns: 20_000.0 });
        let plants = if stack_is_better { [good, bad] } else { [bad, good] };
        let (state, decisions) = live(&Rules::default(), plants, &noise, 24);
        let expected = if stack_is_better { CarriedBy::Stack } else { CarriedBy::Kernel };
        prop_assert!(decisions.iter().all(|carrier| *carrier == expected), "{decisions:?}");
        prop_assert_eq!(state.settled().or(state.decision), Some(expected));
    }

    #[test]
    fn trials_are_few_whatever_is_measured(
        noise in prop::collection::vec(-1.5..1.5f64, 1..60),
    ) {
        let same = Plant { cpu_ns: 1000.0, wait_ns: 20_000.0 };
        let rules = Rules::default();
        let (state, _) = live(&rules, [same, same], &noise, 10);
        prop_assert!(u64::from(state.trials) <= 10 * HOUR / rules.again_us + 1, "{}", state.trials);
    }
}

#[test]
fn trials_become_rarer_while_nothing_changes() {
    let (stack, kernel) = (Plant { cpu_ns: 500.0, wait_ns: 20_000.0 }, Plant { cpu_ns: 1000.0, wait_ns: 20_000.0 });
    let (day, _) = live(&Rules::default(), [stack, kernel], &[0.0], 24);
    // After 5, 10, 20 ... minutes: 5 × 2^n.
    assert!((8..=9).contains(&day.trials), "{}", day.trials);
    assert!(matches!(day.reason, Reason::Gains(gain) if (gain - 2.0).abs() < 0.01));
}

#[test]
fn a_way_that_has_become_worse_is_left_at_the_next_trial() {
    let rules = Rules::default();
    let of = |cpu_ns| Plant { cpu_ns, wait_ns: 20_000.0 }.measured(0.0);
    let state = step(&rules, ClassState::new(&rules, 0), false, Some(&[of(500.0), of(1000.0)]), 1);
    assert_eq!((state.settled(), state.since_us), (Some(CarriedBy::Stack), 1));
    let worse = [of(2000.0), of(1000.0)];
    let state = step(&rules, state, false, Some(&worse), rules.again_us);
    assert_eq!(state.settled(), Some(CarriedBy::Stack), "no trial is due");
    let trial = step(&rules, state, false, Some(&worse), rules.again_us + 1);
    assert_eq!(trial.settled(), None);
    let now = rules.again_us + 2;
    let left = step(&rules, trial, false, Some(&worse), now);
    assert_eq!((left.settled(), left.since_us, left.again_us), (Some(CarriedBy::Kernel), now, rules.again_us));
    assert_eq!(left.reason, Reason::NoGain(0.5));
}

#[test]
fn without_figures_the_last_decision_stands_and_without_one_the_host_keeps_the_sockets() {
    let rules = Rules::default();
    let state = step(&rules, ClassState::new(&rules, 0), false, None, rules.trial_most_us - 1);
    assert_eq!((state.settled(), state.trials), (None, 0));
    let state = step(&rules, state, false, None, rules.trial_most_us);
    assert_eq!((state.settled(), state.reason), (Some(CarriedBy::Kernel), Reason::NoMeasurements));
    let on_stack = ClassState { phase: Phase::Trial(0), decision: Some(CarriedBy::Stack), ..state };
    let state = step(&rules, on_stack, false, None, rules.trial_most_us);
    assert_eq!((state.settled(), state.since_us), (Some(CarriedBy::Stack), on_stack.since_us));
    let nothing = [Summary::default(); 2];
    let state = step(&rules, on_stack, false, Some(&nothing), rules.trial_most_us);
    assert_eq!((state.settled(), state.reason), (Some(CarriedBy::Stack), Reason::TooLittle));
    // The first trial has no time limit.
    let state = step(&rules, ClassState::new(&rules, 0), false, Some(&nothing), 9 * rules.trial_most_us);
    assert_eq!((state.settled(), state.reason), (None, Reason::Trial));
}

#[test]
fn less_cpu_time_does_not_pay_for_longer_waits_nor_the_other_way_round() {
    let carrier = |cpu_ns, wait_ns| Plant { cpu_ns, wait_ns }.measured(0.0);
    let kernel = carrier(1000.0, 20_000.0);
    let of = |stack, accepts| benefit(&[stack, kernel], accepts, 1.1).unwrap();
    assert!((of(carrier(250.0, 30_000.0), false) - 20.0 / 30.0).abs() < 1e-9);
    assert!((of(carrier(2000.0, 10_000.0), false) - 0.5).abs() < 1e-9);
    assert!((of(carrier(250.0, 20_500.0), false) - 4.0).abs() < 1e-9);
    // The wait on accepted connections depends on the peer, too.
    assert!((of(carrier(250.0, 30_000.0), true) - 4.0).abs() < 1e-9);
}

#[test]
fn bulk_is_judged_by_bytes_and_goodput() {
    let rules = Rules::default();
    let figures = |turns: u64, cpu_ns: u64, busy_ns: u64| ClassStats {
        connections: 2,
        turns,
        sent: 64 << 20,
        calls: 4096,
        cpu_calls: 64,
        cpu_ns,
        busy_ns,
        busy_bytes: 1 << 30,
        ..ClassStats::default()
    };
    let bulk = Summary::of(&figures(10, 64_000, 1_000_000_000), &rules);
    assert!(bulk.bulk);
    // 1 µs per call, 4096 calls, 65536 KiB.
    assert_eq!((bulk.cpu_ns, bulk.goodput), (Some(62.5), Some((1u64 << 30) as f64)));
    let requests = Summary::of(&figures(4096, 64_000, 1_000_000_000), &rules);
    assert_eq!((requests.bulk, requests.cpu_ns), (false, Some(1000.0)));
    let slower = Summary::of(&figures(10, 16_000, 2_000_000_000), &rules);
    assert_eq!(benefit(&[slower, bulk], true, 1.1), Some(0.5));
}

#[test]
fn a_listeners_later_runs_are_held_against_what_the_other_way_was_when_it_was_tried() {
    let rules = Rules::default();
    let of = |cpu_ns| Plant { cpu_ns, wait_ns: 20_000.0 }.measured(0.0);
    let state = step(&rules, ClassState::new(&rules, 0), true, Some(&[of(500.0), of(1000.0)]), 1);
    assert_eq!(rerun(&rules, state, of(900.0), 9).settled(), Some(CarriedBy::Stack));
    assert_eq!(rerun(&rules, state, Summary::default(), 9), state, "too little to say anything");
    let left = rerun(&rules, state, of(1100.0), 9);
    assert_eq!((left.settled(), left.since_us), (Some(CarriedBy::Kernel), 9));
    // The kernel's next run is compared with that.
    assert_eq!(rerun(&rules, left, of(1000.0), 10).settled(), Some(CarriedBy::Kernel));
    assert_eq!(rerun(&rules, left, of(2000.0), 10).settled(), Some(CarriedBy::Stack));
    assert_eq!(rerun(&rules, ClassState::new(&rules, 0), of(1.0), 9).settled(), None, "on trial");
}
