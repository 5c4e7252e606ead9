//! Latency of an open loop at parts of the rate that both stacks can carry. Requests come whether or not earlier ones
//! have been answered. A request's latency counts from when it was due.

use crate::programs::{json_report, number, rpc, run_on};
use crate::side_by_side::STACKS;
use crate::veth_pair::{SERVER, Side, VethPair};
use serde::Serialize;
use serde_json::Value;
use std::ffi::OsString;
use std::io;
use towpath_bench_report::{median, print_json_rows};

/// Seconds before a load is measured.
const WARM_UP: f64 = 0.3;
/// Seconds for which the saturated rate is measured.
const SATURATED: f64 = 1.0;

/// Arguments of `towpath bench latency`.
#[derive(clap::Args)]
#[command(
    after_help = "Root. In each round a closed loop measures what Linux and Towpath can carry. Then both get the \
    same requests per second: parts of the lower of the two rates, at exponential distances. A request that was due and has no reply \
    at the end counts with the time that it has waited, so that a stall is not hidden. p99.99 is there where a run has 100,000 \
    requests or more (--seconds).\n\n\
    Examples:\n  towpath bench latency\n  towpath bench latency --loads 80 --seconds 10 --json"
)]
pub struct Options {
    /// One JSON object per row instead of the table
    #[arg(long)]
    json: bool,
    /// Measured seconds of one load
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Rounds of Linux, Towpath; the median counts
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Loads, in percent of the saturated rate
    #[arg(long, value_delimiter = ',', default_value = "15,50,80", value_parser = clap::value_parser!(u32).range(1..=100))]
    loads: Vec<u32>,
    /// Connections
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Bytes of a request and of its reply, 9 at least
    #[arg(long, default_value_t = 64)]
    bytes: usize,
}

/// One row: a load over a stack.
#[derive(Clone, Debug, Serialize)]
struct Row {
    /// `load-15`: this percentage of the saturated rate.
    shape: String,
    stack: &'static str,
    /// The median of each value of the rounds.
    #[serde(flatten)]
    median: Round,
    rounds: Vec<Round>,
}

/// What one round has measured.
#[derive(Clone, Copy, Debug, Serialize)]
struct Round {
    /// What a closed loop of as many connections reached over this stack.
    saturated_per_s: f64,
    /// Requests that were due per second.
    offered_per_s: f64,
    requests_per_s: f64,
    /// Requests that were due and had no reply at the end.
    unanswered: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    /// `None`: fewer than 100,000 requests.
    p9999_us: Option<f64>,
}

/// Runs it and prints the rows.
pub fn run(options: &Options) -> io::Result<()> {
    let bench = Bench { pair: VethPair::new()?, rpc: rpc()?.into(), options };
    let mut runs = vec![[Vec::new(), Vec::new()]; options.loads.len()];
    for round in 0..options.rounds.max(1) {
        eprint!("\rround {} of {}, saturated        ", round + 1, options.rounds);
        let saturated = [bench.saturated(STACKS[0])?, bench.saturated(STACKS[1])?];
        let most = saturated[0].min(saturated[1]);
        for (index, stack) in STACKS.into_iter().enumerate() {
            eprint!("\rround {} of {}, {stack}        ", round + 1, options.rounds);
            for (load, round) in runs.iter_mut().zip(bench.open(stack, saturated[index], most)?) {
                load[index].push(round);
            }
        }
    }
    eprint!("\r{:60}\r", "");
    let by_load = options.loads.iter().zip(&runs);
    let rows: Vec<Row> = by_load.flat_map(|(load, runs)| [row(*load, 0, &runs[0]), row(*load, 1, &runs[1])]).collect();
    if !print_json_rows(options.json, &rows) {
        print(options, &rows);
    }
    Ok(())
}

struct Bench<'a> {
    pair: VethPair,
    rpc: OsString,
    options: &'a Options,
}

impl Bench<'_> {
    /// Requests per second of a closed loop.
    fn saturated(&self, stack: &str) -> io::Result<f64> {
        let step = format!("closed:{}@{}", self.options.connections, SATURATED + WARM_UP);
        number(&self.steps(stack, &step)?["steps"][0], "requests_per_s")
    }

    /// All loads in parts of `most`, the lowest first, as what a higher one leaves behind would disturb the next.
    fn open(&self, stack: &str, saturated_per_s: f64, most: f64) -> io::Result<Vec<Round>> {
        let offered = |load: u32| most * f64::from(load) / 100.0;
        let seconds = self.options.seconds + WARM_UP;
        let mut loads = self.options.loads.clone();
        loads.sort_unstable();
        let steps: Vec<String> = loads.iter().map(|load| format!("open:{:.0}@{seconds}", offered(*load))).collect();
        let report = self.steps(stack, &steps.join(","))?;
        let round = |load: &u32| {
            let place = loads.iter().position(|other| other == load).unwrap_or(0);
            let step = &report["steps"][place];
            Ok(Round {
                saturated_per_s,
                offered_per_s: offered(*load),
                requests_per_s: number(step, "requests_per_s")?,
                unanswered: number(step, "unanswered")?,
                p50_us: number(step, "p50_us")?,
                p99_us: number(step, "p99_us")?,
                p999_us: number(step, "p999_us")?,
                p9999_us: step["p9999_us"].as_f64(),
            })
        };
        self.options.loads.iter().map(round).collect()
    }

    /// Runs a server over this stack and a client that makes these steps of load.
    fn steps(&self, stack: &str, steps: &str) -> io::Result<Value> {
        let (options, address) = (self.options, format!("{SERVER}:9031"));
        // The service (and its program, which may change the veth's offloads) exists only while it is measured.
        let service = if stack == "towpath" { Some(self.pair.serve()?) } else { None };
        let mut words = Vec::new();
        if let Some((_, socket)) = &service {
            words.extend(run_on(socket)?);
        }
        let bytes = options.bytes.to_string();
        words.extend([self.rpc.clone(), "values-server".into(), address.clone().into()]);
        words.extend(["--loops", "1", "--bytes", &bytes].map(OsString::from));
        let _server = self.pair.start(self.pair.command(Side::Server, &words), "server.log", "ready")?;
        let client = [self.rpc.clone(), "values-client".into(), address.into()];
        let mut command = self.pair.command(Side::Client, &client);
        command.args(["--connections", &options.connections.to_string(), "--bytes", &bytes]);
        command.args(["--warm-up", &WARM_UP.to_string(), "--steps", steps]);
        let report = json_report(&command.output()?, "the client")?;
        match report["bad"].as_u64() {
            Some(0) => Ok(report),
            _ => Err(io::Error::other(format!("{} replies were wrong", report["bad"]))),
        }
    }
}

fn row(load: u32, stack: usize, rounds: &[Round]) -> Row {
    let of = |field: fn(&Round) -> f64| median(rounds.iter().map(field));
    Row {
        shape: format!("load-{load}"),
        stack: STACKS[stack],
        median: Round {
            saturated_per_s: of(|round| round.saturated_per_s),
            offered_per_s: of(|round| round.offered_per_s),
            requests_per_s: of(|round| round.requests_per_s),
            unanswered: of(|round| round.unanswered),
            p50_us: of(|round| round.p50_us),
            p99_us: of(|round| round.p99_us),
            p999_us: of(|round| round.p999_us),
            // Rounds without it leave no median.
            p9999_us: rounds.iter().map(|round| round.p9999_us).collect::<Option<Vec<f64>>>().map(median),
        },
        rounds: rounds.to_vec(),
    }
}

fn print(options: &Options, rows: &[Row]) {
    println!(
        "{} bytes there and back, open loop on {} connections; median of {} interleaved rounds of {} s for each load",
        options.bytes, options.connections, options.rounds, options.seconds
    );
    println!(
        "{:8} {:8} {:>12} {:>12} {:>12} {:>11} {:>9} {:>9} {:>9} {:>9}",
        "load",
        "stack",
        "saturated/s",
        "offered/s",
        "replies/s",
        "unanswered",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "p99.99 µs"
    );
    for Row { shape, stack, median, .. } in rows {
        let last = median.p9999_us.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"));
        println!(
            "{shape:8} {stack:8} {:>12.0} {:>12.0} {:>12.0} {:>11.0} {:>9.1} {:>9.1} {:>9.1} {last:>9}",
            median.saturated_per_s,
            median.offered_per_s,
            median.requests_per_s,
            median.unanswered,
            median.p50_us,
            median.p99_us,
            median.p999_us
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_quantile_is_there_if_all_rounds_have_it() {
        let round = |p9999_us| Round {
            saturated_per_s: 10.0,
            offered_per_s: 5.0,
            requests_per_s: 5.0,
            unanswered: 0.0,
            p50_us: 1.0,
            p99_us: 2.0,
            p999_us: 3.0,
            p9999_us,
        };
        assert_eq!(row(50, 1, &[round(Some(4.0)), round(None)]).median.p9999_us, None);
        let row = row(50, 1, &[round(Some(4.0)), round(Some(8.0)), round(Some(6.0))]);
        assert_eq!((row.shape.as_str(), row.stack, row.median.p9999_us), ("load-50", "towpath", Some(6.0)));
    }
}
