//! An established transfer while its listener is flooded with SYNs of forged sources.

use crate::programs::{json_report, number, rpc, run_on};
use crate::side_by_side::{STACKS, interleaved};
use crate::veth_pair::{SERVER, Side, VethPair};
use serde::Serialize;
use serde_json::Value;
use std::ffi::OsString;
use std::fmt::Write;
use std::io;
use std::time::Duration;
use towpath_bench_report::{median, print_json_rows};

/// The listener's port.
const PORT: u16 = 9000;
/// The forged sources: this many addresses of the veth's network, from this one on.
const SOURCES: u8 = 200;
const FIRST_SOURCE: u8 = 10;
/// The transfer runs for so long before the flood begins.
const ESTABLISHED: f64 = 0.2;
/// Seconds of the transfer that are not measured.
const WARM_UP: f64 = 0.6;
/// The flood lasts longer than what is measured.
const LONGER: f64 = 0.3;

/// Arguments of `towpath bench flood`.
#[derive(clap::Args)]
#[command(
    after_help = "Root. A Linux client sends as fast as it can on one connection. A second program on the client's CPU sends raw SYNs \
    with forged sources to the same listener. Each could be answered: the sources have addresses of the veth's network. Linux and \
    Towpath get the same flood in turn. `SYNs/s` is what the flooder could send.\n\n\
    Examples:\n  towpath bench flood\n  towpath bench flood --per-second 100000 --rounds 7 --json"
)]
pub struct Options {
    /// One JSON object per row instead of the table
    #[arg(long)]
    json: bool,
    /// Measured seconds of one run
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Rounds of Linux, Towpath; the median counts
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// SYNs per second
    #[arg(long, default_value_t = 50_000)]
    per_second: u64,
}

/// One row: the transfer over a stack.
#[derive(Serialize)]
struct Row {
    shape: &'static str,
    stack: &'static str,
    /// The median of each value of the rounds.
    #[serde(flatten)]
    median: Round,
    /// `bytes_per_s` divided by Linux's in the same rounds (median of the rounds' ratios).
    ratio: f64,
    rounds: Vec<Round>,
}

/// What one round has measured.
#[derive(Clone, Copy, Serialize)]
struct Round {
    /// Of the transfer.
    bytes_per_s: f64,
    /// Longest time without a byte.
    longest_stall_ms: f64,
    /// Of the flood.
    syns_per_s: f64,
}

/// Runs it and prints the rows.
pub fn run(options: &Options) -> io::Result<()> {
    let bench = Bench::new(options)?;
    let mut runs: [Vec<Round>; 2] = [Vec::new(), Vec::new()];
    interleaved(options.rounds, "flood", |index, stack| {
        runs[index].push(bench.one(stack)?);
        Ok(())
    })?;
    let row = |(stack, rounds): (&'static str, &Vec<Round>)| {
        let of = |field: fn(&Round) -> f64| median(rounds.iter().map(field));
        let ratios = rounds.iter().zip(&runs[0]).map(|(own, linux)| own.bytes_per_s / linux.bytes_per_s);
        Row {
            shape: "transfer-under-syns",
            stack,
            median: Round {
                bytes_per_s: of(|round| round.bytes_per_s),
                longest_stall_ms: of(|round| round.longest_stall_ms),
                syns_per_s: of(|round| round.syns_per_s),
            },
            ratio: median(ratios),
            rounds: rounds.clone(),
        }
    };
    let rows: Vec<Row> = STACKS.into_iter().zip(&runs).map(row).collect();
    if print_json_rows(options.json, &rows) {
        return Ok(());
    }
    println!(
        "one transfer under a flood of SYNs; median of {} interleaved rounds of {} s",
        options.rounds, options.seconds
    );
    println!("{:8} {:>12} {:>18} {:>10} {:>7}", "stack", "MB/s", "longest stall ms", "SYNs/s", "ratio");
    for Row { stack, median, ratio, .. } in &rows {
        println!(
            "{stack:8} {:>12.1} {:>18.1} {:>10.0} {ratio:>6.2}x",
            median.bytes_per_s / 1e6,
            median.longest_stall_ms,
            median.syns_per_s
        );
    }
    Ok(())
}

struct Bench<'a> {
    pair: VethPair,
    rpc: OsString,
    options: &'a Options,
    /// The MAC addresses of the client and of the server.
    macs: [String; 2],
}

impl<'a> Bench<'a> {
    fn new(options: &'a Options) -> io::Result<Self> {
        let pair = VethPair::new()?;
        let mac = |side| Ok::<_, io::Error>(pair.read(side, "/sys/class/net/eth1/address")?.trim().to_owned());
        let macs = [mac(Side::Client)?, mac(Side::Server)?];
        // Without them the server would ask the wire for each source, and answer none.
        let mut neighbours = String::new();
        for last in (FIRST_SOURCE..).take(SOURCES.into()) {
            let _ = writeln!(neighbours, "neigh replace 10.77.0.{last} lladdr {} dev eth1 nud permanent", macs[0]);
        }
        let file = pair.dir().join("neighbours");
        std::fs::write(&file, neighbours)?;
        let output =
            pair.command_on(Side::Server, None, &["ip".as_ref(), "-batch".as_ref(), file.as_os_str()]).output()?;
        if !output.status.success() {
            return Err(io::Error::other(format!("ip neigh: {}", String::from_utf8_lossy(&output.stderr).trim())));
        }
        Ok(Self { pair, rpc: rpc()?.into(), options, macs })
    }

    fn one(&self, stack: &str) -> io::Result<Round> {
        let (pair, options) = (&self.pair, self.options);
        let service = if stack == "towpath" { Some(pair.serve()?) } else { None };
        let address = format!("{SERVER}:{PORT}");
        let mut words = match &service {
            Some((_, socket)) => run_on(socket)?,
            None => Vec::new(),
        };
        words.extend([self.rpc.clone(), "sink".into(), address.clone().into()]);
        words.extend(["--warm-up-seconds".into(), WARM_UP.to_string().into()]);
        words.extend(["--seconds".into(), options.seconds.to_string().into()]);
        let mut sink = pair.start(pair.command(Side::Server, &words), "sink.log", "ready")?;
        let client = |role: &str| pair.command(Side::Client, &[self.rpc.as_os_str(), role.as_ref(), address.as_ref()]);
        let source = pair.start(client("source"), "source.log", "")?;
        std::thread::sleep(Duration::from_secs_f64(ESTABLISHED));
        let mut flood = client("flood");
        flood.args(["--from-mac", &self.macs[0], "--to-mac", &self.macs[1]]);
        flood.args(["--first-source", &format!("10.77.0.{FIRST_SOURCE}"), "--sources", &SOURCES.to_string()]);
        flood.args(["--per-second", &options.per_second.to_string()]);
        flood.args(["--seconds", &(WARM_UP + options.seconds + LONGER).to_string()]);
        let flood = json_report(&flood.output()?, "the flooder")?;
        sink.wait_end(10.0)?;
        drop(source);
        let report = self.sinks_report()?;
        Ok(Round {
            bytes_per_s: number(&report, "bytes")? / number(&report, "seconds")?,
            longest_stall_ms: number(&report, "longest_stall_ms")?,
            syns_per_s: number(&flood, "syns")? / number(&flood, "seconds")?,
        })
    }

    /// The last line that the sink has printed.
    fn sinks_report(&self) -> io::Result<Value> {
        let text = std::fs::read_to_string(self.pair.dir().join("sink.log"))?;
        let line = text.lines().rfind(|line| line.starts_with('{'));
        line.and_then(|line| serde_json::from_str(line).ok())
            .ok_or_else(|| io::Error::other(format!("the sink has no report: {}", text.trim())))
    }
}
