//! The explanation of a policy's state: what would change the number of CPUs, and what is on trial.

use super::show::plain;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use towpath_scaling::{Config, Means, Obstacle, PolicyView, Rule, Term, counted};

/// A number and its limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// One word.
    pub what: String,
    /// The present value.
    pub seen: f64,
    /// The limit.
    pub limit: f64,
    /// True if it must be above the limit, false if below.
    pub above: bool,
}

/// A rule that can call for a change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Condition {
    /// The reason that it would give.
    pub reason: String,
    /// The number of CPUs that it would lead to.
    pub to: Option<u32>,
    /// The conditions. All must hold.
    pub terms: Vec<Measured>,
    /// Ticks for which they have held.
    pub held: u32,
    /// Ticks for which they must hold.
    pub needed: u32,
    /// Why the change is forbidden now, if it is.
    pub barred: Option<String>,
}

/// Means over some ticks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeanStats {
    /// Receive work, CPUs.
    pub busy: f64,
    /// Packets per second.
    pub offered: f64,
    /// The part of the ticks with losses.
    pub pressed: f64,
    /// Requests per second.
    pub throughput: Option<f64>,
    /// Average, µs.
    pub latency_us: Option<f64>,
    /// 99th percentile, µs.
    pub p99_us: Option<f64>,
}

/// A change on trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialStats {
    /// The number of CPUs before it.
    pub from: u32,
    /// Why it was made.
    pub reason: String,
    /// Ticks seen.
    pub seen: u32,
    /// Ticks needed.
    pub needed: u32,
    /// The means before it.
    pub before: MeanStats,
    /// The means since.
    pub after: Option<MeanStats>,
}

/// A size that was worse.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resting {
    /// The size.
    pub cores: u32,
    /// Ticks until it may be tried again.
    pub ticks: u64,
}

/// The policy's observation, and the conditions of its rules.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The rules that can call for a change.
    pub conditions: Vec<Condition>,
    /// The last change, while it is on trial.
    pub trial: Option<TrialStats>,
    /// Ticks until the last change has taken effect.
    pub settling: u32,
    /// Sizes that are not tried yet.
    pub resting: Vec<Resting>,
    /// The load for which a trial has shown that this size is right, packets per second.
    pub chosen_at: Option<f64>,
    /// Changes in the last ten minutes.
    pub changes: u32,
    /// The limit of these changes.
    pub most_changes: u32,
    /// Those of them that were for the worse.
    pub failures: u32,
    /// This many for the worse blow the fuse.
    pub fuse: u32,
}

fn stats(means: &Means) -> MeanStats {
    let said = |value: f64| (value > 0.0).then_some(value);
    MeanStats {
        busy: means.busy,
        offered: means.offered,
        pressed: means.pressed,
        throughput: means.outcome.map(|outcome| outcome.throughput),
        latency_us: means.outcome.and_then(|outcome| said(outcome.latency_us)),
        p99_us: means.outcome.and_then(|outcome| said(outcome.p99_us)),
    }
}

fn barred(bar: Obstacle, tick: u64) -> String {
    match bar {
        Obstacle::Bounds => "the limits do not allow it".into(),
        Obstacle::BackOff(until) => {
            format!("that size was worse, and is left alone for {} s more", until - tick.min(until))
        }
        Obstacle::Rate => "there have been as many changes as there may be in ten minutes".into(),
        Obstacle::Fuse(until) => {
            format!("too many changes were for the worse: nothing is changed for {} s more", until - tick.min(until))
        }
    }
}

fn condition(rule: &Rule, tick: u64) -> Condition {
    let measured =
        |term: &Term| Measured { what: term.what.name().into(), seen: term.seen, limit: term.limit, above: term.above };
    Condition {
        reason: rule.reason.name().into(),
        to: rule.to,
        terms: rule.terms.iter().map(measured).collect(),
        held: rule.held,
        needed: rule.needed,
        barred: rule.barred.map(|bar| barred(bar, tick)),
    }
}

impl Explanation {
    /// The explanation of the policy's view.
    pub fn new(view: &PolicyView, config: &Config) -> Self {
        let trial = view.trial.as_ref().map(|trial| TrialStats {
            from: trial.from,
            reason: trial.reason.name().into(),
            seen: trial.seen,
            needed: trial.needed,
            before: stats(&trial.before),
            after: trial.after.as_ref().map(stats),
        });
        let resting = view.resting.iter().map(|(cores, until)| Resting { cores: *cores, ticks: until - view.tick });
        Self {
            conditions: view.rules.iter().map(|rule| condition(rule, view.tick)).collect(),
            trial,
            settling: view.settling,
            resting: resting.collect(),
            chosen_at: view.chosen_at,
            changes: view.changes,
            most_changes: config.most_changes,
            failures: view.failures,
            fuse: config.fuse,
        }
    }

    /// For people. Ticks are seconds.
    pub fn text(&self, cores: u32) -> String {
        let mut text = String::new();
        if let Some(trial) = &self.trial {
            text.push_str(&trial.text(cores));
        } else if self.settling > 0 {
            let _ =
                writeln!(text, "the last change takes effect: {} s more before anything is looked at", self.settling);
        }
        text.push_str("what would change it:\n");
        for condition in &self.conditions {
            let _ = writeln!(text, "  {}", condition.text(cores));
        }
        if let Some(load) = self.chosen_at {
            let _ = writeln!(
                text,
                "a trial has shown that {cores} is right for a load of about {load:.0} packets/s: until that changes, being busy or idle calls for nothing"
            );
        }
        for Resting { cores, ticks } in &self.resting {
            let _ = writeln!(text, "{}: that was worse, and is left alone for {ticks} s more", counted(*cores, "CPU"));
        }
        let Self { changes, most_changes, failures, fuse, .. } = self;
        let _ = writeln!(
            text,
            "changes in the last ten minutes: {changes} of at most {most_changes}; for the worse: {failures}, of which {fuse} end it for a while"
        );
        text
    }
}

impl TrialStats {
    fn text(&self, cores: u32) -> String {
        let mut text = format!(
            "on trial: {} in place of {}, because of {}; {} of {} s seen\n",
            counted(cores, "CPU"),
            self.from,
            plain(&self.reason),
            self.seen,
            self.needed
        );
        let after = self.after.as_ref();
        let mut row = |name: &str, before: Option<f64>, after: Option<f64>, digits: usize| {
            let (Some(before), after) = (before, after) else { return };
            let after = after.map_or_else(|| "-".into(), |after| format!("{after:.digits$}"));
            let _ = writeln!(text, "  {name:<18} {before:>12.digits$} before  {after:>12} now");
        };
        row("requests/s", self.before.throughput, after.and_then(|a| a.throughput), 0);
        row("average µs", self.before.latency_us, after.and_then(|a| a.latency_us), 1);
        row("p99 µs", self.before.p99_us, after.and_then(|a| a.p99_us), 1);
        row("receive CPUs", Some(self.before.busy), after.map(|a| a.busy), 2);
        row("packets/s", Some(self.before.offered), after.map(|a| a.offered), 0);
        row("share with losses", Some(self.before.pressed), after.map(|a| a.pressed), 2);
        text
    }
}

impl Measured {
    fn text(&self) -> String {
        let side = if self.above { "above" } else { "below" };
        let (seen, limit) = (self.seen, self.limit);
        let percent = |name: &str| format!("{name} {side} {:.0} % ({:.0} % now)", 100.0 * limit, 100.0 * seen);
        match self.what.as_str() {
            "busy-per-core" => percent("each is busy"),
            "waiting" => percent("applications wait"),
            "application-busy" => percent("applications use of their CPUs"),
            "busy" => format!("receive work is {side} {limit:.2} CPUs ({seen:.2} now)"),
            "pressure" => format!(
                "packets are lost or the kernel runs out of time ({} now)",
                if seen > 0.0 { "so" } else { "not" }
            ),
            "calm" => format!("nothing has happened for {limit:.0} s ({seen:.0} s now)"),
            other => format!("{} {side} {limit:.2} ({seen:.2} now)", plain(other)),
        }
    }
}

impl Condition {
    fn text(&self, cores: u32) -> String {
        let what = match self.to {
            Some(to) if to > cores => format!("{} more", to - cores),
            Some(to) => format!("{} fewer", cores - to),
            None => "another size".into(),
        };
        let terms: Vec<String> = self.terms.iter().map(Measured::text).collect();
        let time = match self.reason.as_str() {
            "explore" => String::new(),
            _ => format!(", for {} s (held for {})", self.needed, self.held.min(self.needed)),
        };
        let barred = self.barred.as_ref().map_or_else(String::new, |why| format!("; but {}", plain(why)));
        format!("{what} ({}): when {}{time}{barred}", plain(&self.reason), terms.join(" and "))
    }
}
