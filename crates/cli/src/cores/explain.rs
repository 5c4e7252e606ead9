//! `towpath cores explain`: why there are as many as there are, and what would have to be different.

use super::show::plain;
use super::standing::Standing;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::PathBuf;
use towpath_cores::{Bar, Config, Means, Rule, Term, View, counted};

/// Shows the last decisions, and what the next one waits for.
#[derive(Args)]
pub struct Arguments {
    /// What an `observe --state PATH` writes, in place of what the running `enforce` does
    #[arg(long, value_name = "PATH")]
    state: Option<PathBuf>,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// A number and its limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// One word.
    pub what: String,
    /// As it is.
    pub seen: f64,
    /// What it is compared with.
    pub limit: f64,
    /// Must it be above, or below?
    pub above: bool,
}

/// One thing that can call for a change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Condition {
    /// The reason that it would give.
    pub reason: String,
    /// As many CPUs as there would be.
    pub to: Option<u32>,
    /// All of these.
    pub terms: Vec<Measured>,
    /// For how many ticks they have held.
    pub held: u32,
    /// For how many they must.
    pub needed: u32,
    /// Why it may not be now.
    pub barred: Option<String>,
}

/// Means of a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
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
pub struct TrialFigures {
    /// As many CPUs as there were.
    pub from: u32,
    /// Why it was made.
    pub reason: String,
    /// Ticks seen, of ...
    pub seen: u32,
    /// ... so many.
    pub needed: u32,
    /// Before it.
    pub before: Figures,
    /// Since.
    pub after: Option<Figures>,
}

/// A size that was worse.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resting {
    /// The size.
    pub cores: u32,
    /// For so many ticks more it is not tried.
    pub ticks: u64,
}

/// What the policy sees and waits for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// What can call for a change.
    pub conditions: Vec<Condition>,
    /// The last change, while it is on trial.
    pub trial: Option<TrialFigures>,
    /// For so many ticks more nothing is looked at.
    pub settling: u32,
    /// Sizes that are not tried yet.
    pub resting: Vec<Resting>,
    /// A trial has shown that this size is right for such a load, packets per second.
    pub chosen_at: Option<f64>,
    /// Changes in the last ten minutes ...
    pub changes: u32,
    /// ... of at most so many, ...
    pub most_changes: u32,
    /// ... and of them for the worse, ...
    pub failures: u32,
    /// ... of which so many end it.
    pub fuse: u32,
}

fn figures(means: &Means) -> Figures {
    let said = |value: f64| (value > 0.0).then_some(value);
    Figures {
        busy: means.busy,
        offered: means.offered,
        pressed: means.pressed,
        throughput: means.outcome.map(|outcome| outcome.throughput),
        latency_us: means.outcome.and_then(|outcome| said(outcome.latency_us)),
        p99_us: means.outcome.and_then(|outcome| said(outcome.p99_us)),
    }
}

fn barred(bar: Bar, tick: u64) -> String {
    match bar {
        Bar::Bounds => "the limits do not allow it".into(),
        Bar::BackOff(until) => format!("that size was worse, and is left alone for {} s more", until - tick.min(until)),
        Bar::Rate => "there have been as many changes as there may be in ten minutes".into(),
        Bar::Fuse(until) => {
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
    /// Of the policy's view.
    pub fn new(view: &View, config: &Config) -> Self {
        let trial = view.trial.as_ref().map(|trial| TrialFigures {
            from: trial.from,
            reason: trial.reason.name().into(),
            seen: trial.seen,
            needed: trial.needed,
            before: figures(&trial.before),
            after: trial.after.as_ref().map(figures),
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

impl TrialFigures {
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

/// Explains.
pub fn run(arguments: &Arguments) -> Result<String, String> {
    let standing = Standing::find(arguments.state.as_deref())?;
    let standing =
        standing.ok_or("nobody decides: start `towpath cores enforce`, or `towpath cores observe --state PATH`")?;
    if arguments.json {
        let value = serde_json::json!({
            "interface": standing.interface, "mode": standing.mode, "pid": standing.pid, "cores": standing.cores,
            "reserved": standing.reserved, "explanation": standing.explanation, "decisions": standing.decisions,
        });
        return Ok(value.to_string() + "\n");
    }
    Ok(standing.page())
}

impl Standing {
    /// What `towpath cores explain` shows.
    pub fn page(&self) -> String {
        let mut text = self.headline() + "\nthe last decisions:\n";
        for told in &self.decisions {
            let lasted = if told.ticks > 1 { format!(" (for {} s)", told.ticks) } else { String::new() };
            let entry = told.entry.text();
            let line = entry.lines().next().unwrap_or_default();
            let _ = writeln!(text, "{}{lasted}", plain(line));
        }
        text + &self.explanation.text(self.cores)
    }
}
