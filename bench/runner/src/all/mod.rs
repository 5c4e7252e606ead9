//! All benchmarks, one after the other without anybody: their rows, the machine and its noise in one file, and the
//! report of it.

pub mod machine;
mod plan;

use crate::report;
use machine::CpuTicks;
use plan::{Effort, Planned, plan};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;
use towpath_bench_report::{Run, SCHEMA_KEY, Step, counts, recorded};

/// How often instructions are counted at most.
const COUNTS: usize = 3;

/// Arguments of `towpath bench all`.
#[derive(clap::Args)]
#[command(
    after_help = "Root, in the project's directory. It writes DIR/run.json, the rows of each benchmark in DIR/NAME.json, and \
    DIR/report.html. It fails if counted instructions are more than bench/instructions.json tolerates, or if a benchmark could not \
    run. A target that is not met does not fail it.\n\n\
    Examples:\n  towpath bench all\n  towpath bench all --only echo,direct --rounds 3 --seconds 0.5"
)]
pub struct Options {
    /// Where the results go
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    into: PathBuf,
    /// Rounds over a wire and on the same host; the kernel stack and the splits of CPUs have three at most
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Measured seconds of one run
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Only these benchmarks
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Recorded rows of benchmarks that take too long
    #[arg(long, value_name = "DIR", default_value = "bench/figures")]
    figures: PathBuf,
    /// Recorded counts of instructions
    #[arg(long, value_name = "FILE", default_value = "bench/instructions.json")]
    counts: PathBuf,
}

/// Runs all of it and writes the report.
pub fn run(options: &Options) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(io::Error::other("most benchmarks make network namespaces: run them as root"));
    }
    std::fs::create_dir_all(&options.into)?;
    let cpus = std::thread::available_parallelism()?.get();
    let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|only| only == name);
    let mut plan = plan(Effort { rounds: options.rounds.max(1), seconds: options.seconds, cpus });
    plan.retain(|planned| wanted(planned.benchmark));
    let tolerated: Map<String, Value> = serde_json::from_str(&std::fs::read_to_string(&options.counts)?)?;
    let mut run = Run {
        date: machine::date(),
        commit: machine::commit(),
        machine: machine::machine(),
        settings: machine::settings(),
        steps: Vec::new(),
    };
    let effort = format!(
        "{} s each, {} rounds over a wire and on the same host, fewer of the rest",
        options.seconds, options.rounds
    );
    run.settings.push(("runs".to_owned(), effort));
    let (mut problems, mut lines) = (Vec::new(), BTreeMap::<&str, String>::new());
    let mut progress = Progress::new(&plan);
    for planned in &plan {
        progress.begin(planned);
        let (step, text) = one(planned, &tolerated, &mut problems);
        progress.end(planned, &step);
        lines.entry(planned.benchmark).or_default().push_str(&text);
        run.steps.push(step);
        // A run that is interrupted leaves what it has.
        std::fs::write(options.into.join(report::RUN), run.text()?)?;
    }
    for (name, command, file) in recorded::FILES.into_iter().filter(|(name, ..)| wanted(name)) {
        run.steps.extend(old_step(name, command, &options.figures.join(file)));
    }
    for (benchmark, text) in lines {
        std::fs::write(options.into.join(format!("{benchmark}.json")), text)?;
    }
    std::fs::write(options.into.join(report::RUN), run.text()?)?;
    let page = options.into.join(report::PAGE);
    report::write_page(&run, &page)?;
    eprintln!("{}", page.display());
    if problems.is_empty() { Ok(()) } else { Err(io::Error::other(problems.join("\n"))) }
}

/// Runs one command. The text is what it has printed.
fn one(planned: &Planned, recorded: &Map<String, Value>, problems: &mut Vec<String>) -> (Step, String) {
    let mut step = Step { benchmark: planned.benchmark.to_owned(), command: planned.command(), ..Step::default() };
    let (begun, ticks) = (Instant::now(), CpuTicks::now());
    let result = match planned.benchmark {
        "instructions" => count(planned, recorded, &mut step, problems),
        "modules" => output(planned).and_then(|text| {
            step.rows = module_rows(&serde_json::from_str(&text)?);
            Ok(text)
        }),
        _ => output(planned).and_then(|text| {
            step.take(&text)?;
            Ok(text)
        }),
    };
    step.took_s = begun.elapsed().as_secs_f64().round();
    // In steps of a tenth of a percent: more would be noise.
    step.steal = (CpuTicks::now().stolen_since(ticks) * 1000.0).round() / 1000.0;
    let text = result.unwrap_or_else(|error| {
        problems.push(format!("{}: {error}", step.command));
        step.error = Some(error.to_string().lines().last().unwrap_or("it failed").to_owned());
        String::new()
    });
    (step, text)
}

/// Counts instructions. A count that is too high is counted again, as only a real growth shows in all.
fn count(
    planned: &Planned,
    recorded: &Map<String, Value>,
    step: &mut Step,
    problems: &mut Vec<String>,
) -> io::Result<String> {
    let once = || {
        let mut counts: Map<String, Value> = serde_json::from_str(&output(planned)?)?;
        counts.remove(SCHEMA_KEY);
        Ok::<_, io::Error>(counts)
    };
    let mut counted = once()?;
    for _ in 1..COUNTS {
        if counts::missed(recorded, &counted).is_empty() {
            break;
        }
        counted = counts::least(&counted, &once()?);
    }
    problems.extend(counts::missed(recorded, &counted));
    counts::keep(step, &counted);
    Ok(serde_json::to_string(&counted)? + "\n")
}

/// The time of each module's run here and in the kernel, as rows.
fn module_rows(answer: &Value) -> Vec<Map<String, Value>> {
    let mut rows = Vec::new();
    for module in answer["modules"].as_array().into_iter().flatten() {
        for (way, times) in [("linux", "kernel_ns"), ("towpath", "ingress_ns")] {
            let times = &module[times];
            let rounds = times["rounds"].as_array().into_iter().flatten().map(|ns| json!({ "ns": ns }));
            let fields = [
                ("shape", module["module"].clone()),
                ("way", json!(way)),
                ("ns", times["median"].clone()),
                ("rounds", rounds.collect()),
            ];
            rows.push(fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect());
        }
    }
    rows
}

/// What this program prints with other arguments.
fn output(planned: &Planned) -> io::Result<String> {
    let output = Command::new(std::env::current_exe()?).args(planned.words()).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return String::from_utf8(output.stdout).map_err(io::Error::other);
    }
    // Progress is on the same stream, each time in the same line.
    let said = String::from_utf8_lossy(&output.stderr).replace('\r', "\n");
    let said = said.lines().map(str::trim_end).rfind(|line| !line.is_empty()).unwrap_or("it failed");
    Err(io::Error::other(said.trim_start_matches("towpath bench: ").to_owned()))
}

/// The rows of a recorded benchmark, if there are any.
fn old_step(benchmark: &str, command: &str, path: &Path) -> Option<Step> {
    let text = std::fs::read_to_string(path).ok()?;
    let (benchmark, command) = (benchmark.to_owned(), format!("towpath bench {command}"));
    let mut step = Step { benchmark, command, ..Step::default() };
    recorded::take(&mut step, &text).ok()?;
    let name = path.display().to_string();
    let committed = machine::committed(&name).map(|date| format!("committed on {date}"));
    // Rows of another machine say so.
    let of_first = |key: &str| Some(step.rows.first()?.get(key)?.as_str()?.to_owned());
    let other = of_first("machine").zip(of_first("measured")).map(|(machine, date)| format!("{machine}, {date}"));
    step.recorded = Some([Some(name), other.or(committed)].into_iter().flatten().collect::<Vec<_>>().join(", "));
    Some(step)
}

/// Lines that say what runs and how long the rest takes.
struct Progress {
    begun: Instant,
    commands: usize,
    number: usize,
    /// Estimated seconds of what has ended, and of what has not.
    done: f64,
    left: f64,
}

impl Progress {
    fn new(plan: &[Planned]) -> Self {
        let left = plan.iter().map(Planned::estimate).sum();
        eprintln!("{} commands, about {:.0} min", plan.len(), left / 60.0);
        Self { begun: Instant::now(), commands: plan.len(), number: 0, done: 0.0, left }
    }

    fn begin(&mut self, planned: &Planned) {
        self.number += 1;
        eprint!("[{:2}/{}] {} ... ", self.number, self.commands, planned.command());
    }

    fn end(&mut self, planned: &Planned, step: &Step) {
        self.done += planned.estimate();
        self.left -= planned.estimate();
        let left = time_left(self.begun.elapsed().as_secs_f64(), self.done, self.left) / 60.0;
        let how =
            step.error.as_ref().map_or_else(|| format!("{:.0} s", step.took_s), |error| format!("FAILED: {error}"));
        eprintln!("{how}; {left:.1} min left");
    }
}

/// Seconds that the rest takes, if it is as much slower than estimated as what has ended.
fn time_left(took: f64, estimated: f64, rest: f64) -> f64 {
    (rest * took / estimated).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_machine_is_slow_in_the_rest_too() {
        assert_eq!(time_left(30.0, 20.0, 100.0), 150.0);
        assert_eq!(time_left(30.0, 20.0, -1e-14), 0.0, "the rest is a difference");
    }
}
