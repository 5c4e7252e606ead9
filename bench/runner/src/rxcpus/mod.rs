//! Receive work on all CPUs alike, on reserved CPUs, on as many as `towpath cores enforce` chooses, and in the
//! application's own loop.

mod arm;
mod irq_suspend;
mod other_programs;
mod table;
mod testbed;

use arm::Arm;
use serde_json::Value;
use std::io;
use table::Rows;
use testbed::{Run, Testbed};

/// Arguments of `towpath bench anp`.
#[derive(clap::Args)]
#[command(
    after_help = "Root. Every round has all arms in turn: `symmetric` (nothing is set), `reserved N` (`towpath cores enforce --cpus N`), \
    `chosen` (`towpath cores enforce` decides, by what the server says of itself) and `busy poll` (the server's event loops poll the device \
    themselves). A round in which other programs ran is repeated, and marked if that does not help.\n\n\
    Examples:\n  towpath bench anp\n  towpath bench anp --ramp --json\n  towpath bench anp --server poller --arms symmetric,reserved --seconds 10"
)]
pub struct Options {
    /// One JSON object per row instead of the tables
    #[arg(long)]
    json: bool,
    /// Measured seconds of each load
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Seconds before that
    #[arg(long, default_value_t = 0.5)]
    warm_up: f64,
    /// Extra seconds before each load in which the arm `chosen` finds its number
    #[arg(long, default_value_t = 40.0)]
    settle: f64,
    /// Rounds of all arms; the median counts
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only this server
    #[arg(long, value_enum)]
    server: Option<Server>,
    /// Event loops of the server [default: 4, or as many as it has CPUs]
    #[arg(long)]
    loops: Option<usize>,
    /// Connections [default: 16 for each event loop]
    #[arg(long)]
    connections: Option<usize>,
    /// Bytes of a value
    #[arg(long, default_value_t = 1024)]
    bytes: usize,
    /// Open loops at these percentages of the closed loop's requests/s
    #[arg(long, value_delimiter = ',', default_values_t = [60])]
    open: Vec<u32>,
    /// Ten loads instead, closed loops of a tenth of the connections and so on up to all
    #[arg(long)]
    ramp: bool,
    /// Only these arms (`symmetric` is always there)
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [arm::ArmKind::Symmetric, arm::ArmKind::Reserved, arm::ArmKind::Chosen, arm::ArmKind::BusyPoll])]
    arms: Vec<arm::ArmKind>,
    /// Most CPUs to reserve [default: half of the server's]
    #[arg(long)]
    most: Option<u32>,
    /// CPUs that other programs may use in a round
    #[arg(long, default_value_t = 0.08)]
    foreign: f64,
    /// How often a round in which they use more is repeated
    #[arg(long, default_value_t = 2)]
    repeats: usize,
}

/// The architecture of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Server {
    /// Redis-like: each event loop reads, changes the value and sends.
    Loops,
    /// Netpoll-like: pollers receive, worker threads change the value and send.
    Poller,
}

impl Server {
    fn name(self) -> &'static str {
        match self {
            Self::Loops => "loops",
            Self::Poller => "poller",
        }
    }
}

/// Runs it and prints the rows.
pub fn run(options: &Options) -> io::Result<()> {
    let testbed = Testbed::new(options)?;
    let arms = arm::all(&options.arms, testbed.most());
    if !options.json {
        println!("{}", testbed.sentence());
    }
    for server in [Server::Loops, Server::Poller] {
        if options.server.is_some_and(|wanted| wanted != server) {
            continue;
        }
        let loads = loads(&testbed, options, server)?;
        let mut rows = Rows::new(server.name(), testbed.cpus(), &arms);
        for round in 0..options.rounds.max(1) {
            for (index, arm) in arms.iter().enumerate() {
                eprint!("\r{}: round {} of {}, {:20}", server.name(), round + 1, options.rounds, arm.name());
                rows.add(index, quiet(&testbed, options, server, *arm, &loads)?);
            }
        }
        eprint!("\r{:70}\r", "");
        rows.print(options.json, options.ramp);
    }
    Ok(())
}

/// The loads, as the client's steps name them, without their durations.
fn loads(testbed: &Testbed, options: &Options, server: Server) -> io::Result<Vec<String>> {
    let all = testbed.connections(options);
    if options.ramp {
        return Ok((1..=10).map(|tenth| format!("closed:{}", (all * tenth / 10).max(1))).collect());
    }
    let closed = format!("closed:{all}");
    if options.open.is_empty() {
        return Ok(vec![closed]);
    }
    // All arms get the same rates.
    let run = quiet(testbed, options, server, Arm::Symmetric, std::slice::from_ref(&closed))?;
    let reached = run.steps.first().and_then(|step| step["requests_per_s"].as_f64()).unwrap_or(0.0);
    let open =
        options.open.iter().map(|percent| format!("open:{:.0}", (reached * f64::from(*percent) / 100.0).max(1.0)));
    Ok(std::iter::once(closed).chain(open).collect())
}

/// A run in which hardly any other program ran, if there is one; else the quietest run.
fn quiet(testbed: &Testbed, options: &Options, server: Server, arm: Arm, loads: &[String]) -> io::Result<Run> {
    let mut best: Option<Run> = None;
    for _ in 0..=options.repeats {
        let mut run = testbed.run(options, server, arm, loads)?;
        run.marked = run.foreign > options.foreign;
        let done = !run.marked || run.why.is_some();
        if best.as_ref().is_none_or(|best| run.foreign < best.foreign) {
            best = Some(run);
        }
        if done {
            break;
        }
    }
    best.ok_or_else(|| io::Error::other("there was no run"))
}

/// A number of a step's report; 0 if it has none.
fn number(step: &Value, name: &str) -> f64 {
    step[name].as_f64().unwrap_or(0.0)
}
