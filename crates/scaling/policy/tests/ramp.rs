//! A ramp of ten loads on modelled machines. It measures how near the policy comes to the best fixed number of cores,
//! and to none reserved. The machines are the model of `common`, which says nothing about real ones.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Noise, Plant};
use std::collections::HashMap;
use std::fmt::Write;
use towpath_scaling::{Config, Decision, Observation, PolicyState, step};

/// The offered load in one step of a ramp.
#[derive(Clone, Copy)]
enum Load {
    /// Requests per second, whether or not they are answered.
    Open(f64),
    /// Clients that ask again when they are answered.
    Closed(u32),
}

/// A plant with the loads of its ramp.
struct Machine {
    name: String,
    plant: Plant,
    config: Config,
    loads: Vec<Load>,
    known: HashMap<(usize, u32), Observation>,
    achieved: HashMap<(usize, u32), (f64, f64)>,
}

impl Machine {
    /// Loads are tenths of what the best fixed number of cores can do.
    fn new(name: String, plant: Plant, config: Config, closed: bool) -> Self {
        let sizes = || config.min..=config.most();
        let best = sizes().map(|cores| plant.most(cores)).fold(0.0, f64::max);
        let load = |tenths: u32| {
            let wanted = best * f64::from(tenths) / 10.0;
            if !closed {
                return Load::Open(wanted);
            }
            let wanted = wanted.min(0.99 * best);
            let clients = |cores: u32| {
                let told = Plant { tells: true, ..plant }.quiet(wanted, cores).outcome.unwrap();
                if told.throughput < wanted { f64::MAX } else { told.throughput * told.latency_us * 1e-6 }
            };
            Load::Closed(sizes().map(clients).fold(f64::MAX, f64::min).ceil().max(1.0) as u32)
        };
        let loads = (1..=10).map(load).collect();
        Self { name, plant, config, loads, known: HashMap::new(), achieved: HashMap::new() }
    }
    /// The observation with this load and this many cores, without noise.
    fn at(&mut self, load: usize, cores: u32) -> Observation {
        let (plant, asked) = (self.plant, self.loads[load]);
        *self.known.entry((load, cores)).or_insert_with(|| {
            let offered = match asked {
                Load::Open(offered) => offered,
                Load::Closed(clients) => plant.closed(clients, cores),
            };
            plant.quiet(offered, cores)
        })
    }
    /// Its throughput and latency, also without feedback.
    fn achieves(&mut self, load: usize, cores: u32) -> (f64, f64) {
        let (offered, plant) = (self.at(load, cores).offered, Plant { tells: true, ..self.plant });
        *self.achieved.entry((load, cores)).or_insert_with(|| {
            let told = plant.quiet(offered, cores).outcome.unwrap();
            (told.throughput, told.latency_us)
        })
    }
}

/// One step of a ramp, as parts of what fixed numbers of cores achieve.
struct Step {
    load: usize,
    /// The best fixed number of cores, and the number at the end.
    best: u32,
    cores: u32,
    /// Throughput over the second half and over the whole step, as parts of that with the best number.
    settled: f64,
    whole: f64,
    /// Throughput over the whole step, as a part of that with none reserved.
    symmetric: f64,
    /// Median latency of the second half over the lowest latency of all fixed numbers with about the same throughput.
    latency: f64,
    path: String,
}

impl Step {
    fn line(&self, name: &str, seed: u64) -> String {
        let Self { load, best, cores, settled, whole, symmetric, latency, path } = self;
        let tenths = load + 1;
        format!(
            "{name:<34} {seed:>5} {tenths:>4} {best:>4} {cores:>5} {settled:>7.3} {whole:>5.3} {symmetric:>5.3} {latency:>7.2} {path}\n"
        )
    }
}

const HEAD: &str = "machine                             seed load best cores settled whole symm. latency changes\n";
/// Ticks of each load.
const TICKS: u64 = 2000;

/// The ramp, in this order of loads.
fn ramp(machine: &mut Machine, order: &[usize], seed: u64) -> Vec<Step> {
    let config = machine.config.clone();
    let (mut state, mut noise) = (PolicyState::new(config.min, &config), Noise(seed));
    let mut steps = Vec::new();
    for load in order.iter().copied() {
        let (mut path, mut done, mut settled, mut latencies) = (String::new(), 0.0, 0.0, Vec::new());
        for tick in 0..TICKS {
            let cores = state.cores();
            let (throughput, latency_us) = machine.achieves(load, cores);
            done += throughput;
            if tick >= TICKS / 2 {
                settled += throughput;
                latencies.push(latency_us);
            }
            let quiet = machine.at(load, cores);
            let seen = machine.plant.measured(&quiet, cores, &mut noise);
            let (after, decision, reason) = step(&config, state, &seen);
            state = after;
            if let Decision::Change { to, .. } = decision {
                write!(path, "{tick}:{to} {reason}, ").unwrap();
            }
        }
        let fixed: Vec<(f64, f64)> = (config.min..=config.most()).map(|cores| machine.achieves(load, cores)).collect();
        let most = fixed.iter().map(|(throughput, _)| *throughput).fold(0.0, f64::max);
        let able = |part: f64| fixed.iter().enumerate().filter(move |(_, (throughput, _))| *throughput >= part * most);
        let best = able(0.999).min_by(|a, b| a.1.1.total_cmp(&b.1.1)).unwrap().0 as u32 + config.min;
        let quickest = able(0.97).map(|(_, (_, latency))| *latency).fold(f64::MAX, f64::min);
        latencies.sort_by(f64::total_cmp);
        let symmetric = machine.achieves(load, 0).0;
        let ticks = TICKS as f64;
        steps.push(Step {
            load,
            best,
            cores: state.cores(),
            settled: settled / (ticks / 2.0) / most,
            whole: done / ticks / most,
            symmetric: done / ticks / symmetric,
            latency: latencies[latencies.len() / 2] / quickest,
            path,
        });
    }
    steps
}

const UP: [usize; 10] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
const DOWN: [usize; 10] = [9, 8, 7, 6, 5, 4, 3, 2, 1, 0];

/// The limits of `towpath cores`, whose ticks are seconds.
fn receive_path(cpus: u32) -> Config {
    Config { down_ticks: 10, settle_ticks: 2, trial_ticks: 5, explore_ticks: 20, ..Config::new(cpus) }
}

fn shapes(cpus: u32) -> Vec<(&'static str, Plant)> {
    let usual = Plant { cpus, ..Plant::USUAL };
    vec![
        ("usual", usual),
        ("stack-heavy", Plant { stack_s: 8e-6, app_s: 4e-6, ..usual }),
        ("app-heavy", Plant { stack_s: 1e-6, app_s: 16e-6, ..usual }),
        ("even", Plant { stack_s: 6e-6, app_s: 6e-6, sharing: 0.3, ..usual }),
        ("sharing is free", Plant { sharing: 0.0, ..usual }),
        ("sharing is dear", Plant { sharing: 0.6, ..usual }),
        ("noisy", Plant { noise: 0.05, ..usual }),
    ]
}

/// Machines of all sizes and shapes, with the limits of the receive path and with the usual ones.
fn machines(closed: bool, change: impl Fn(Plant) -> Plant) -> Vec<Machine> {
    let mut machines = Vec::new();
    for (limits, config) in [("usual limits", Config::new as fn(u32) -> Config), ("receive path", receive_path)] {
        for cpus in [8, 16, 20, 64] {
            for (shape, plant) in shapes(cpus) {
                let name = format!("{limits} {cpus} {shape}");
                machines.push(Machine::new(name, change(plant), config(cpus), closed));
            }
        }
    }
    machines
}

/// Checks the two targets on every machine, with every seed. At most 5 % are ever lost to none reserved. Once the
/// policy has settled, at most 3 % are lost to the best. One load of a thousand may miss that. If measurements waver by
/// 5 % from tick to tick, one of twenty-five may, because differences of 3 % can drown.
fn meets_the_targets(closed: bool, order: &[usize], seeds: &[u64]) {
    let (mut table, mut missed, mut quiet, mut noisy) = (HEAD.to_owned(), [0, 0], 0, 0);
    let mut broken = false;
    for mut machine in machines(closed, |plant| plant) {
        let is_noisy = machine.plant.noise > 0.03;
        for seed in seeds {
            for step in ramp(&mut machine, order, *seed) {
                let misses = step.settled < 0.97;
                missed[usize::from(is_noisy)] += u32::from(misses);
                if is_noisy {
                    noisy += 1
                } else {
                    quiet += 1
                }
                // The model does not hold for latency near the greatest possible load, because its run ends at a fixed
                // time.
                let slow = (closed || step.load < 8) && step.latency > 1.2;
                let harmed = step.settled < 0.9 || step.whole < 0.9 || step.symmetric < 0.95 || slow;
                broken |= harmed;
                if misses || harmed {
                    table += &step.line(&machine.name, *seed);
                }
            }
        }
    }
    assert!(
        !broken && missed[0] * 1000 <= quiet && missed[1] * 25 <= noisy,
        "{missed:?} of {quiet} and {noisy} noisy:\n{table}"
    );
}

#[test]
fn upwards_it_is_within_three_percent_of_the_best_fixed_number_and_never_loses_to_none_reserved() {
    meets_the_targets(false, &UP, &[1, 77]);
}

#[test]
fn downwards_as_well() {
    meets_the_targets(false, &DOWN, &[4242]);
}

#[test]
fn clients_that_wait_for_answers_get_as_much_upwards() {
    meets_the_targets(true, &UP, &[1, 77]);
}

#[test]
fn clients_that_wait_for_answers_get_as_much_downwards() {
    meets_the_targets(true, &DOWN, &[4242]);
}

/// One load for so many ticks. Returns the loss against the best fixed number, as ticks without any throughput; the
/// changes; and those in the last third.
fn steady(machine: &mut Machine, load: usize, start: u32, ticks: u64, seed: u64) -> (f64, usize, usize) {
    let config = machine.config.clone();
    let best = (config.min..=config.most()).map(|cores| machine.achieves(load, cores).0).fold(0.0, f64::max);
    let (mut state, mut noise, mut lost, mut changes, mut late) =
        (PolicyState::new(start, &config), Noise(seed), 0.0, 0, 0);
    for tick in 0..ticks {
        let cores = state.cores();
        lost += 1.0 - machine.achieves(load, cores).0 / best;
        let quiet = machine.at(load, cores);
        let seen = machine.plant.measured(&quiet, cores, &mut noise);
        let (after, decision, _) = step(&config, state, &seen);
        state = after;
        if decision != Decision::Hold {
            changes += 1;
            late += usize::from(tick >= ticks - ticks / 3);
        }
    }
    (lost, changes, late)
}

/// The fixed number with the best throughput, and of those the one with the lowest latency.
fn best_of(machine: &mut Machine, load: usize) -> u32 {
    let (min, most) = (machine.config.min, machine.config.most());
    let fixed: Vec<(u32, (f64, f64))> = (min..=most).map(|cores| (cores, machine.achieves(load, cores))).collect();
    let top = fixed.iter().map(|(_, (throughput, _))| *throughput).fold(0.0, f64::max);
    let able = fixed.iter().filter(|(_, (throughput, _))| *throughput >= 0.999 * top);
    able.min_by(|a, b| a.1.1.total_cmp(&b.1.1)).unwrap().0
}

#[test]
fn what_is_tried_in_vain_costs_little_and_ends() {
    const TICKS: u64 = 6000;
    let (mut table, mut harmed) = (String::new(), false);
    for closed in [false, true] {
        for mut machine in machines(closed, |plant| plant) {
            for load in [2, 5, 8] {
                let start = best_of(&mut machine, load);
                let (lost, changes, late) = steady(&mut machine, load, start, TICKS, 5);
                let part = if machine.plant.noise > 0.03 { 0.04 } else { 0.02 };
                if lost > part * TICKS as f64 || changes > 24 || late > 2 {
                    harmed = true;
                    let name = &machine.name;
                    writeln!(table, "{name}, load {load}: {lost:.1} ticks lost, {changes} changes, {late} late")
                        .unwrap();
                }
            }
        }
    }
    assert!(!harmed, "the best number of cores is there at first:\n{table}");
}

/// Without feedback no size is explored. Even where reserving pays off, none are reserved until there are losses. But
/// nothing is lost to none reserved, either.
#[test]
fn without_a_word_of_applications_it_loses_nothing_to_none_reserved_but_does_not_find_the_best() {
    let (mut table, mut harmed, mut missed) = (HEAD.to_owned(), false, 0);
    for order in [UP, DOWN] {
        for mut machine in machines(false, |plant| Plant { tells: false, ..plant }) {
            for step in ramp(&mut machine, &order, 1) {
                harmed |= step.symmetric < 0.95;
                missed += u32::from(step.settled < 0.97);
                table += &step.line(&machine.name, 1);
            }
        }
    }
    assert!(!harmed, "{table}");
    assert!(missed > 0, "it does find it: say so in docs/guide/cores.md");
}
