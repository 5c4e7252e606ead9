//! A modelled machine for the policy. Requests take time in the stack and in the application, both wait for CPUs, and
//! noise comes from a seed. It is a toy (queues of M/M/c), not a measurement of any machine.
#![allow(dead_code)]

use towpath_scaling::{Config, Decision, Observation, Outcome, PolicyState, Reason, step};

/// Reproducible noise (xorshift). Not testing/rng: the recorded decisions and the figures of docs/guide/cores.md were made
/// with this sequence.
pub struct Noise(pub u64);

impl Noise {
    /// Evenly from 0 to 1.
    pub fn even(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
    /// About normal: mean 0, deviation 1.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.even()).sum::<f64>() - 6.0
    }
}

/// A machine, and its load in one tick.
#[derive(Clone, Copy)]
pub struct Plant {
    /// CPUs.
    pub cpus: u32,
    /// Seconds of the stack's CPU time for a request.
    pub stack_s: f64,
    /// Seconds of the application's CPU time for a request.
    pub app_s: f64,
    /// The relative extra cost of sharing CPUs: each evicts the other's data from the caches.
    pub sharing: f64,
    /// The value of `busy` that is read for each real second.
    pub exaggeration: f64,
    /// Relative deviation of all measurements.
    pub noise: f64,
    /// True if applications give feedback.
    pub tells: bool,
    /// True if frames are lost for a reason that no core cures.
    pub broken: bool,
}

impl Plant {
    /// A machine with 20 CPUs.
    pub const USUAL: Self = Self {
        cpus: 20,
        stack_s: 4e-6,
        app_s: 8e-6,
        sharing: 0.12,
        exaggeration: 1.0,
        noise: 0.02,
        tells: true,
        broken: false,
    };

    /// Requests per second of clients that ask again as soon as they are answered. It is the rate at which the latency
    /// and the number of clients agree.
    pub fn closed(&self, clients: u32, cores: u32) -> f64 {
        let plant = Self { tells: true, ..*self };
        let waiting = |per_s: f64| {
            let told = plant.quiet(per_s, cores).outcome.unwrap_or_default();
            told.throughput * told.latency_us * 1e-6
        };
        let (mut less, mut more) = (0.0, f64::from(self.cpus) / (self.stack_s + self.app_s));
        for _ in 0..60 {
            let middle = (less + more) / 2.0;
            if waiting(middle) < f64::from(clients) { less = middle } else { more = middle }
        }
        less
    }

    /// Most requests per second that it can answer with so many cores.
    pub fn most(&self, cores: u32) -> f64 {
        let (all, own) = (f64::from(self.cpus), f64::from(cores.min(self.cpus)));
        match cores {
            0 => all / ((self.stack_s + self.app_s) * (1.0 + self.sharing)),
            _ => (own / self.stack_s).min((all - own) / self.app_s),
        }
    }

    /// The observation with so many requests per second, without noise.
    pub fn quiet(&self, offered: f64, cores: u32) -> Observation {
        let (all, own, rest) = (f64::from(self.cpus), f64::from(cores), f64::from(self.cpus - cores.min(self.cpus)));
        let dearer = if cores == 0 { 1.0 + self.sharing } else { 1.0 };
        let (stack_s, app_s) = (self.stack_s * dearer, self.app_s * dearer);
        let most = self.most(cores);
        let done = offered.min(0.999 * most);
        let (wait_stack, wait_app) = if cores == 0 {
            let wait = waiting(all, done, stack_s + app_s);
            (wait / 2.0, wait / 2.0)
        } else {
            (waiting(own, done, stack_s), waiting(rest, done, app_s))
        };
        let app_cpus = if cores == 0 { all } else { rest };
        let app_busy = done * if cores == 0 { stack_s + app_s } else { app_s };
        let latency_us = (stack_s + app_s + wait_stack + wait_app) * 1e6;
        let lost = if cores == 0 { offered > most } else { offered * stack_s > 0.98 * own };
        let outcome = Outcome { throughput: done, latency_us, p99_us: 4.0 * latency_us };
        Observation {
            busy: done * stack_s * self.exaggeration,
            pressure: lost || self.broken,
            app_busy,
            app_waiting: (wait_app / app_s).min(1.0) * (app_busy / app_cpus).min(1.0),
            outcome: self.tells.then_some(outcome),
            offered,
        }
    }

    /// The same as it is measured with so many cores, with noise.
    pub fn measured(&self, quiet: &Observation, cores: u32, noise: &mut Noise) -> Observation {
        let of = |value: f64, noise: &mut Noise| (value * (1.0 + self.noise * noise.normal())).max(0.0);
        let app_cpus = f64::from(self.cpus - cores.min(self.cpus));
        let (busy, app_busy) = (quiet.busy, quiet.app_busy);
        let told = quiet.outcome.unwrap_or_default();
        let outcome = Outcome {
            throughput: of(told.throughput, noise),
            latency_us: of(told.latency_us, noise),
            p99_us: of(told.p99_us, noise),
        };
        Observation {
            busy: of(busy, noise),
            app_busy: of(app_busy, noise).min(app_cpus),
            outcome: quiet.outcome.map(|_| outcome),
            offered: of(quiet.offered, noise),
            ..*quiet
        }
    }

    /// One tick with so many requests per second.
    pub fn tick(&self, offered: f64, cores: u32, noise: &mut Noise) -> Observation {
        self.measured(&self.quiet(offered, cores), cores, noise)
    }
}

/// Mean time in the queue of M/M/c.
fn waiting(servers: f64, per_s: f64, service_s: f64) -> f64 {
    let load = per_s * service_s;
    if load >= 0.999 * servers {
        return 400.0 * service_s;
    }
    let mut blocked = 1.0;
    for n in 1..=servers as u32 {
        blocked = load * blocked / (f64::from(n) + load * blocked);
    }
    let waits = blocked / (1.0 - load / servers * (1.0 - blocked));
    waits * service_s / (servers - load)
}

/// One change.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// The tick.
    pub tick: u64,
    /// The new number of cores.
    pub to: u32,
    /// The reason.
    pub reason: Reason,
}

/// The record of a run.
pub struct Run {
    /// Every change.
    pub changes: Vec<Change>,
    /// Cores after each tick.
    pub cores: Vec<u32>,
    /// The reason in each tick.
    pub reasons: Vec<Reason>,
}

impl Run {
    /// Lets the policy run for so many ticks. `load` gives the machine and the requests per second of each tick.
    pub fn of(config: &Config, cores: u32, ticks: u64, seed: u64, load: impl Fn(u64) -> (Plant, f64)) -> Self {
        Self::answering(config, cores, ticks, seed, |tick, _| load(tick))
    }
    /// The same with a load that depends on the number of cores.
    pub fn answering(
        config: &Config,
        cores: u32,
        ticks: u64,
        seed: u64,
        load: impl Fn(u64, u32) -> (Plant, f64),
    ) -> Self {
        let (mut state, mut noise) = (PolicyState::new(cores, config), Noise(seed));
        let mut run = Self { changes: Vec::new(), cores: Vec::new(), reasons: Vec::new() };
        for tick in 0..ticks {
            let (plant, offered) = load(tick, state.cores());
            let seen = plant.tick(offered, state.cores(), &mut noise);
            let (after, decision, reason) = step(config, state, &seen);
            state = after;
            if let Decision::Change { to, .. } = decision {
                run.changes.push(Change { tick, to, reason });
            }
            run.cores.push(state.cores());
            run.reasons.push(reason);
        }
        run
    }
    /// The number of cores at the end.
    pub fn last(&self) -> u32 {
        self.cores.last().copied().unwrap_or(0)
    }
    /// The number of changes from this tick on.
    pub fn changes_from(&self, tick: u64) -> usize {
        self.changes.iter().filter(|change| change.tick >= tick).count()
    }
    /// One line for each change.
    pub fn text(&self) -> String {
        self.changes.iter().map(|Change { tick, to, reason }| format!("{tick} {to} {reason}\n")).collect()
    }
}
