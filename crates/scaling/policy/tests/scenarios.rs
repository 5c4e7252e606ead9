//! The policy in real situations: it makes the same decisions every time, and the right ones. `tests/golden` has them,
//! and TOWPATH_WRITE_GOLDEN=1 writes them anew.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Plant, Run};
use std::path::Path;
use towpath_scaling::{Config, Reason};

/// Checks that the decisions are the recorded ones.
fn as_written(name: &str, run: &Run) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("TOWPATH_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, run.text()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(run.text(), written, "{name}: other decisions than those in {}", path.display());
}

fn config() -> Config {
    Config::new(20)
}

/// The latency with this load and this many cores, without noise.
fn latency(plant: &Plant, offered: f64, cores: u32) -> f64 {
    let quiet = Plant { noise: 0.0, ..*plant };
    quiet.tick(offered, cores, &mut common::Noise(1)).outcome.unwrap_or_default().latency_us
}

#[test]
fn a_step_up_is_followed_at_once() {
    let load = |tick| (Plant { tells: false, ..Plant::USUAL }, if tick < 500 { 1e5 } else { 1.2e6 });
    let run = Run::of(&Config { min: 1, ..config() }, 1, 3000, 2, load);
    let reached = run.cores.iter().skip(500).position(|cores| *cores >= 6).unwrap();
    assert!(reached < 150, "4.8 cores of work had 6 after {reached} ticks");
    assert!(run.changes_from(700) == 0, "and then it is quiet:\n{}", run.text());
    as_written("step-up", &run);
}

#[test]
fn a_step_down_is_followed_slowly() {
    let load = |tick| (Plant { tells: false, ..Plant::USUAL }, if tick < 500 { 1.2e6 } else { 1e5 });
    let run = Run::of(&Config { min: 1, ..config() }, 7, 3000, 3, load);
    assert!(run.changes_from(0) > 0 && run.changes[0].tick > 515, "not for a moment's idleness:\n{}", run.text());
    assert_eq!(run.last(), 1);
    as_written("step-down", &run);
}

#[test]
fn a_ramp_is_followed_up_and_down_without_hunting() {
    let load = |tick: u64| {
        let position = if tick < 3000 { tick } else { 6000 - tick };
        (Plant { tells: false, ..Plant::USUAL }, 1e5 + 400.0 * position as f64)
    };
    let run = Run::of(&Config { min: 1, ..config() }, 1, 6000, 4, load);
    let (up, down) = run.changes.split_at(run.changes.partition_point(|change| change.tick < 3030));
    assert!(up.iter().all(|change| change.reason == Reason::Busy), "{}", run.text());
    assert!(down.iter().all(|change| change.reason == Reason::Idle), "{}", run.text());
    assert_eq!(run.last(), 1);
    as_written("ramp", &run);
}

#[test]
fn bursts_of_one_tick_are_no_reason() {
    let load = |tick| (Plant::USUAL, if tick % 50 == 0 { 9e5 } else { 3e5 });
    let run = Run::of(&Config { min: 1, ..config() }, 2, 3000, 5, load);
    assert!(run.changes.iter().all(|change| change.reason != Reason::Busy), "{}", run.text());
    assert!(run.changes.len() <= 12, "{}", run.text());
    as_written("bursts", &run);
}

#[test]
fn a_load_on_the_border_is_no_cycle() {
    // Two cores at exactly 75 %.
    let load = |_| (Plant { tells: false, noise: 0.08, ..Plant::USUAL }, 1.5 / 4e-6);
    let run = Run::of(&Config { min: 1, ..config() }, 2, 30_000, 6, load);
    assert!(run.changes.len() <= 1, "{}", run.text());
    as_written("border", &run);
}

#[test]
fn a_slow_wave_costs_few_changes() {
    let load = |tick: u64| {
        let phase = (tick % 600) as f64 / 600.0;
        let triangle = if phase < 0.5 { 4.0 * phase - 1.0 } else { 3.0 - 4.0 * phase };
        (Plant { tells: false, ..Plant::USUAL }, 7e5 * (1.0 + 0.3 * triangle))
    };
    let run = Run::of(&Config { min: 1, ..config() }, 4, 6000, 7, load);
    assert!(run.changes.len() <= 60, "{} in ten waves:\n{}", run.changes.len(), run.text());
    as_written("wave", &run);
}

#[test]
fn when_both_sides_want_more_it_does_not_hunt() {
    let run = Run::of(&config(), 1, 3000, 8, |_| (Plant::USUAL, 5e6));
    assert!(run.changes.len() <= 24, "{}", run.text());
    assert!(run.changes_from(2000) <= 6, "{}", run.text());
    as_written("overload", &run);
}

#[test]
fn an_application_that_starves_gets_its_cpus_back() {
    let heavy = Plant { stack_s: 1e-6, app_s: 16e-6, sharing: 0.0, ..Plant::USUAL };
    let run = Run::of(&config(), 8, 3000, 9, |_| (heavy, 0.74e6));
    assert!(run.last() <= 3, "{}", run.text());
    assert_eq!(run.changes[0].reason, Reason::Starved, "{}", run.text());
    as_written("starved", &run);
}

#[test]
fn readings_that_mislead_cost_trials_and_no_cores() {
    // Softirq time reads five times the real one. So the band asks for 7 cores, and the application does best with
    // fewer.
    let wrong = Plant { exaggeration: 5.0, app_s: 16e-6, ..Plant::USUAL };
    let run = Run::of(&Config { min: 1, ..config() }, 1, 12_000, 10, |_| (wrong, 0.25e6));
    let best = (1..=10).map(|cores| latency(&wrong, 0.25e6, cores)).fold(f64::MAX, f64::min);
    let last = latency(&wrong, 0.25e6, run.last());
    assert!(last <= best * 1.1, "{last} µs with {} cores instead of {best}:\n{}", run.last(), run.text());
    assert!(run.last() <= 4, "the reading asks for 7:\n{}", run.text());
    as_written("misleading", &run);
}

#[test]
fn what_applications_say_is_not_needed_but_its_loss_in_a_trial_takes_the_change_back() {
    let load = |tick| (Plant { tells: tick < 510, ..Plant::USUAL }, if tick < 500 { 3.6e5 } else { 4.2e5 });
    let run = Run::of(&Config { min: 1, explore_ticks: 100_000, ..config() }, 2, 3000, 11, load);
    assert!(run.changes.iter().any(|change| change.reason == Reason::FeedbackLost), "{}", run.text());
    assert_eq!(run.last(), 3, "and without it the band goes on:\n{}", run.text());
    as_written("feedback-lost", &run);
}

#[test]
fn losses_that_no_core_cures_take_none() {
    let load = |tick| (Plant { broken: tick >= 300, ..Plant::USUAL }, 2e5);
    let run = Run::of(&Config { min: 1, explore_ticks: 100_000, ..config() }, 2, 12_000, 12, load);
    assert!(run.changes.iter().any(|change| change.reason == Reason::NoCure), "{}", run.text());
    assert!(run.last() <= 3, "{}", run.text());
    assert!(run.changes_from(4400) <= 4, "tried again less and less often:\n{}", run.text());
    as_written("no-cure", &run);
}

#[test]
fn where_reserving_gains_it_leaves_none_and_stays() {
    // Stack and application evict each other's data from the caches, which costs a quarter. There are CPUs enough.
    let gains = Plant { sharing: 0.25, ..Plant::USUAL };
    let run = Run::of(&config(), 0, 6000, 13, |_| (gains, 7e5));
    assert!(run.last() >= 3, "{}", run.text());
    assert_eq!(run.changes_from(4000), 0, "and then it is quiet:\n{}", run.text());
    as_written("reserving-gains", &run);
}

#[test]
fn where_reserving_does_not_gain_it_reserves_none() {
    let none = Plant { sharing: 0.0, ..Plant::USUAL };
    let run = Run::of(&config(), 4, 6000, 14, |_| (none, 1.2e6));
    assert_eq!(run.last(), 0, "{}", run.text());
    assert_eq!(run.changes_from(4000), 0, "{}", run.text());
    as_written("symmetric-wins", &run);
}

#[test]
fn sizes_with_which_waiting_clients_ask_for_less_are_tried_once() {
    // Clients that wait for each answer ask for half as much again when reserved cores make it come sooner. With none
    // reserved nobody asks for so much.
    let gains = Plant { sharing: 0.6, noise: 0.01, ..Plant::USUAL };
    for (name, began) in [("waiting-grows", 0), ("waiting-shrinks", 4)] {
        let run = Run::answering(&config(), began, 6000, 17, |_, cores| (gains, gains.closed(8, cores)));
        let away: Vec<u32> =
            run.changes.iter().filter(|change| change.reason == Reason::Explore).map(|c| c.to).collect();
        let to_none = away.iter().filter(|to| **to == 0).count();
        let most = (0..=10).map(|cores| gains.closed(8, cores)).fold(0.0, f64::max);
        assert!(gains.closed(8, run.last()) >= 0.97 * most, "{}", run.text());
        assert_eq!(to_none, usize::from(began > 0), "{}", run.text());
        assert_eq!(run.changes_from(1000), 0, "and then it is quiet:\n{}", run.text());
        as_written(name, &run);
    }
}

#[test]
fn two_cpus_are_one_for_each_or_none_reserved() {
    let small = Plant { cpus: 2, sharing: 0.05, ..Plant::USUAL };
    let run = Run::of(&Config::new(2), 1, 6000, 15, |_| (small, 1.2e5));
    assert_eq!(run.last(), 0, "with two CPUs one of them is too many:\n{}", run.text());
    as_written("two-cpus", &run);
}

#[test]
fn nothing_to_do_needs_nothing() {
    let run = Run::of(&config(), 6, 3000, 16, |_| (Plant { tells: false, ..Plant::USUAL }, 10.0));
    assert_eq!(run.last(), 0, "{}", run.text());
    as_written("idle", &run);
}
