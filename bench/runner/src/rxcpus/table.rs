//! The rows: the best fixed number of reserved CPUs, and how far from it the scaling policy's choice is.

use super::arm::Arm;
use super::number;
use super::testbed::{Change, Run};
use serde::Serialize;
use towpath_bench_report::{median, print_json_rows};

/// Two throughputs that differ by less are the same; then average latency decides.
const ALIKE: f64 = 0.01;
/// The part of the best fixed number's requests/s that the scaling policy's choice should reach.
const NEAR_BEST: f64 = 0.97;
/// The part of symmetric's requests/s that it should reach.
const NEAR_SYMMETRIC: f64 = 0.95;
/// Fewer CPUs than this are too few to judge the scaling policy by.
const JUDGED: usize = 8;

/// One row: an arm under a load.
#[derive(Clone, Debug, Serialize)]
struct Row {
    experiment: &'static str,
    server: &'static str,
    /// CPUs of the machine.
    cpus: usize,
    step: usize,
    load: String,
    arm: String,
    /// CPUs that only receive, if that is a fixed number.
    reserved: Option<u32>,
    requests_per_s: f64,
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    /// Busy time of all CPUs per request: client, server, interrupts and other programs.
    cpu_us_per_request: f64,
    /// Requests/s and p99 over symmetric's in the same round (median of the rounds' ratios).
    to_symmetric: f64,
    p99_to_symmetric: f64,
    /// The same over the best number of reserved CPUs for this load, none included.
    to_best: f64,
    p99_to_best: f64,
    /// The arm that is meant by that.
    best: String,
    /// Rounds, and those in which other programs ran.
    rounds: usize,
    marked: usize,
    /// CPUs that other programs used, most of all rounds.
    foreign_cpus: f64,
    /// The scaling policy's choices in the last round.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    chosen: Vec<Change>,
    /// Seconds that it decided in, and those in which it had heard from the server.
    decided_s: u64,
    heard_s: u64,
    /// Packets that were received by polling, in the last round.
    #[serde(skip_serializing_if = "Option::is_none")]
    polled_packets: Option<u64>,
    /// Why there are no figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

/// Runs of all arms under all loads of a server.
pub struct Rows {
    server: &'static str,
    cpus: usize,
    arms: Vec<Arm>,
    runs: Vec<Vec<Run>>,
}

impl Rows {
    /// None yet.
    pub fn new(server: &'static str, cpus: usize, arms: &[Arm]) -> Self {
        Self { server, cpus, arms: arms.to_vec(), runs: arms.iter().map(|_| Vec::new()).collect() }
    }
    /// The next round's run of an arm.
    pub fn add(&mut self, arm: usize, run: Run) {
        self.runs[arm].push(run);
    }

    /// Prints them.
    pub fn print(&self, json: bool, ramp: bool) {
        let rows = self.rows();
        if print_json_rows(json, &rows) {
            return;
        }
        println!("\nserver: {}", self.server);
        println!(
            "{:14} {:12} {:>12} {:>9} {:>9} {:>9} {:>9} {:>10} {:>9} {:>9} {:>8}",
            "load",
            "arm",
            "requests/s",
            "mean µs",
            "p50 µs",
            "p99 µs",
            "p99.9 µs",
            "CPU µs/req",
            "to symm.",
            "its p99",
            "to best"
        );
        rows.iter().for_each(print);
        rows.iter()
            .filter(|row| !row.chosen.is_empty())
            .take(1)
            .for_each(|row| println!("chosen: {}", choices(&row.chosen)));
        if ramp {
            self.judge(&rows);
        }
    }

    /// The scaling policy beside the best fixed number, load by load.
    fn judge(&self, rows: &[Row]) {
        println!(
            "\n{:14} {:12} {:>14} {:>14} {:>8} {:>9}",
            "load", "best", "its requests/s", "chosen's", "ratio", "to symm."
        );
        for row in rows.iter().filter(|row| row.arm == Arm::Chosen.name()) {
            let best = rows.iter().find(|other| other.step == row.step && other.arm == row.best);
            println!(
                "{:14} {:12} {:>14.0} {:>14.0} {:>8.3} {:>9.3}",
                row.load,
                row.best,
                best.map_or(0.0, |best| best.requests_per_s),
                row.requests_per_s,
                row.to_best,
                row.to_symmetric
            );
        }
        println!("{}", verdict(rows));
        if self.cpus < JUDGED {
            println!("{} CPUs are too few to judge it by; {JUDGED} would do", self.cpus);
        }
    }

    fn rows(&self) -> Vec<Row> {
        let steps = self.runs.iter().flatten().map(|run| run.steps.len()).max().unwrap_or(0);
        (0..steps).flat_map(|step| self.rows_of(step)).collect()
    }

    fn rows_of(&self, step: usize) -> Vec<Row> {
        let best = self.best(step);
        let load = self.runs.iter().flatten().find_map(|run| run.steps.get(step)?["load"].as_str());
        let row = |index: usize| {
            let runs = &self.runs[index];
            let of = |name: &str| median(self.values(index, step, name));
            Row {
                experiment: "anp",
                server: self.server,
                cpus: self.cpus,
                step,
                load: load.unwrap_or_default().to_owned(),
                arm: self.arms[index].name(),
                reserved: self.arms[index].fixed(),
                requests_per_s: of("requests_per_s"),
                mean_us: of("mean_us"),
                p50_us: of("p50_us"),
                p99_us: of("p99_us"),
                p999_us: of("p999_us"),
                cpu_us_per_request: of("cpu_us_per_request"),
                to_symmetric: self.ratio((index, 0), step, "requests_per_s"),
                p99_to_symmetric: self.ratio((index, 0), step, "p99_us"),
                to_best: self.ratio((index, best), step, "requests_per_s"),
                p99_to_best: self.ratio((index, best), step, "p99_us"),
                best: self.arms[best].name(),
                rounds: runs.len(),
                marked: runs.iter().filter(|run| run.marked).count(),
                foreign_cpus: runs.iter().map(|run| run.foreign).fold(0.0, f64::max),
                chosen: runs.last().map(|run| run.chosen.clone()).unwrap_or_default(),
                decided_s: runs.last().map_or(0, |run| run.decided),
                heard_s: runs.last().map_or(0, |run| run.heard),
                polled_packets: runs.last().and_then(|run| run.polled),
                why: runs.iter().find_map(|run| run.why.clone()),
            }
        };
        (0..self.arms.len()).map(row).collect()
    }

    /// A figure of an arm in all rounds that have it.
    fn values(&self, arm: usize, step: usize, name: &str) -> Vec<f64> {
        self.runs[arm].iter().filter_map(|run| Some(number(run.steps.get(step)?, name))).collect()
    }

    /// The median of the rounds' ratios; rounds in which either is missing do not count.
    fn ratio(&self, (arm, other): (usize, usize), step: usize, name: &str) -> f64 {
        let rounds = self.runs[arm].iter().zip(&self.runs[other]);
        let ratio = |(arm, other): (&Run, &Run)| {
            let other = number(other.steps.get(step)?, name);
            (other > 0.0).then_some(number(arm.steps.get(step)?, name) / other)
        };
        median(rounds.filter_map(ratio))
    }

    /// The arm with a fixed number of reserved CPUs that serves this load best.
    fn best(&self, step: usize) -> usize {
        let of = |arm: usize, name: &str| median(self.values(arm, step, name));
        let fixed = (0..self.arms.len()).filter(|&arm| self.arms[arm].fixed().is_some());
        fixed
            .reduce(|best, arm| {
                if better(
                    (of(arm, "requests_per_s"), of(arm, "mean_us")),
                    (of(best, "requests_per_s"), of(best, "mean_us")),
                ) {
                    arm
                } else {
                    best
                }
            })
            .unwrap_or(0)
    }
}

/// True if the first (requests/s, average latency) is better than the second.
fn better(one: (f64, f64), other: (f64, f64)) -> bool {
    let alike = (one.0 - other.0).abs() <= ALIKE * other.0;
    if alike { one.1 < other.1 * (1.0 - ALIKE) } else { one.0 > other.0 }
}

/// How often the scaling policy reached its aims.
fn verdict(rows: &[Row]) -> String {
    let chosen = || rows.iter().filter(|row| row.arm == Arm::Chosen.name());
    let near = chosen().filter(|row| row.to_best >= NEAR_BEST).count();
    let unhurt = chosen().filter(|row| row.to_symmetric >= NEAR_SYMMETRIC).count();
    let all = chosen().count();
    format!(
        "within 3 % of the best fixed number at {near} of {all} loads, no more than 5 % worse than symmetric at {unhurt}"
    )
}

fn choices(changes: &[Change]) -> String {
    let one = |change: &Change| format!("{} from {} s ({})", change.cores, change.s, change.reason);
    changes.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn print(row: &Row) {
    if let Some(why) = &row.why {
        println!("{:14} {:12} {why}", row.load, row.arm);
        return;
    }
    let mark = if row.marked > 0 {
        format!("  other programs ran in {} of {} rounds", row.marked, row.rounds)
    } else {
        String::new()
    };
    println!(
        "{:14} {:12} {:>12.0} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>10.2} {:>8.3}x {:>8.3}x {:>7.3}x{mark}",
        row.load,
        row.arm,
        row.requests_per_s,
        row.mean_us,
        row.p50_us,
        row.p99_us,
        row.p999_us,
        row.cpu_us_per_request,
        row.to_symmetric,
        row.p99_to_symmetric,
        row.to_best
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(throughput: f64, mean: f64) -> Run {
        let step = json!({"load": "closed:8", "requests_per_s": throughput, "mean_us": mean, "p99_us": 2.0 * mean});
        Run { steps: vec![step], ..Run::default() }
    }

    fn rows(results: &[(Arm, &[(f64, f64)])]) -> Vec<Row> {
        let arms: Vec<Arm> = results.iter().map(|(arm, _)| *arm).collect();
        let mut rows = Rows::new("loops", 2, &arms);
        for (index, (_, runs)) in results.iter().enumerate() {
            runs.iter().for_each(|(throughput, mean)| rows.add(index, run(*throughput, *mean)));
        }
        rows.rows()
    }

    #[test]
    fn ratios_are_those_of_neighbours_and_the_best_is_a_fixed_number() {
        let rows = rows(&[
            (Arm::Symmetric, &[(100.0, 10.0), (200.0, 10.0), (300.0, 10.0)]),
            (Arm::Reserved(1), &[(120.0, 9.0), (240.0, 9.0), (150.0, 9.0)]),
            (Arm::Chosen, &[(999.0, 9.0), (240.0, 9.0), (300.0, 9.0)]),
        ]);
        assert_eq!((rows[1].to_symmetric, rows[1].requests_per_s), (1.2, 150.0));
        assert_eq!(
            rows[2].best, "symmetric",
            "200 a second in the median; the scaling policy's choice is no fixed number"
        );
        assert_eq!(rows[2].to_best, 1.2);
        assert_eq!(rows[2].p99_to_best, 0.9);
        let said = "within 3 % of the best fixed number at 1 of 1 loads, no more than 5 % worse than symmetric at 1";
        assert_eq!(verdict(&rows), said);
    }

    #[test]
    fn the_verdict_counts_loads_at_which_the_choice_was_near_enough() {
        let rows = rows(&[
            (Arm::Symmetric, &[(100.0, 10.0)]),
            (Arm::Reserved(1), &[(110.0, 10.0)]),
            (Arm::Chosen, &[(96.0, 10.0)]),
        ]);
        let said = "within 3 % of the best fixed number at 0 of 1 loads, no more than 5 % worse than symmetric at 1";
        assert_eq!(verdict(&rows), said);
    }

    #[test]
    fn latency_decides_between_the_same_throughputs() {
        assert!(better((1000.0, 50.0), (1005.0, 60.0)));
        assert!(!better((1000.0, 60.0), (1005.0, 60.0)));
        assert!(better((1100.0, 99.0), (1000.0, 1.0)));
    }

    #[test]
    fn an_arm_that_could_not_run_says_why_and_spoils_nothing() {
        let mut rows = Rows::new("loops", 2, &[Arm::Symmetric, Arm::BusyPoll]);
        rows.add(0, run(100.0, 10.0));
        rows.add(1, Run { why: Some("no".into()), ..Run::default() });
        let rows = rows.rows();
        assert_eq!((rows.len(), rows[1].why.as_deref(), rows[1].best.as_str()), (2, Some("no"), "symmetric"));
        assert!(serde_json::to_string(&rows[1]).is_ok_and(|line| line.contains("\"requests_per_s\":null")));
    }
}
