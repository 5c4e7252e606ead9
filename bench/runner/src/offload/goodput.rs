//! The same program sends to the same sink over the kernel stack and by the kernel's own calls, in turn.

use super::{Options, rounds};
use crate::echo;
use crate::process::Process;
use crate::programs::{json_report, number, rpc, run_on};
use crate::veth_pair::{Side, VethPair};
use serde::Serialize;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::Command;
use towpath_bench_report::{median, print_json};

/// The CPUs of the program, the kernel stack and the other end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CpuPlan {
    /// The program on CPU 0, the other end on CPU 1, and the kernel stack with it.
    Apart,
    /// The program and the other end on CPU 0, the kernel stack on CPU 1.
    Together,
    /// Wherever the kernel puts them. Receive work is done on the CPU that sends the packets.
    Free,
}

impl CpuPlan {
    /// CPUs of the program, the other end and the kernel stack; `None` = all.
    fn cpus(self) -> [Option<usize>; 3] {
        match self {
            Self::Apart => [Some(0), Some(1), Some(1)],
            Self::Together => [Some(0), Some(0), Some(1)],
            Self::Free => [None; 3],
        }
    }
}

/// One of the things compared.
struct Variant {
    /// Its name in the table.
    name: &'static str,
    /// True: over the kernel stack.
    ours: bool,
    /// True: with `TCP_NODELAY`.
    nodelay: bool,
    plan: CpuPlan,
}

const fn variant(name: &'static str, ours: bool, nodelay: bool, plan: CpuPlan) -> Variant {
    Variant { name, ours, nodelay, plan }
}

/// All that is compared. Linux alone on one CPU of two is left out: it says nothing.
const VARIANTS: [Variant; 7] = [
    variant("linux nodelay", false, true, CpuPlan::Apart),
    variant("linux nagle", false, false, CpuPlan::Apart),
    variant("linux nodelay, free", false, true, CpuPlan::Free),
    variant("linux nagle, free", false, false, CpuPlan::Free),
    variant("kernel stack", true, true, CpuPlan::Apart),
    variant("kernel stack, alone", true, true, CpuPlan::Together),
    variant("kernel stack, free", true, true, CpuPlan::Free),
];
/// The plans, in the order of the other ends' ports.
const CPU_PLANS: [CpuPlan; 3] = [CpuPlan::Apart, CpuPlan::Together, CpuPlan::Free];
/// Bytes of a send.
const SIZES: [usize; 5] = [64, 256, 1448, 16 << 10, 64 << 10];
/// The other end's address. Its sinks and echo servers have a port for each plan.
const OTHER: &str = "10.77.0.2";
/// Port of the first sink.
const SINK: usize = 9000;
/// Port of the first echo server.
const ECHO: usize = 9010;

/// One run.
#[derive(Clone, Copy)]
struct Run {
    /// Payload, or requests, per second.
    per_s: f64,
    /// CPU time of the sending thread per send, ns; of a request its time, µs.
    cost: f64,
}

#[derive(Serialize)]
struct Row {
    /// `sends of N bytes` or `64 bytes back and forth`.
    shape: String,
    way: &'static str,
    /// The median of each value of the rounds.
    #[serde(flatten)]
    median: Round,
    /// `per_s` divided by that of Linux's best way in the same rounds (median of the rounds' ratios).
    to_best_linux: f64,
    rounds: Vec<Round>,
}

/// What one round has measured.
#[derive(Clone, Copy, Serialize)]
struct Round {
    /// Payload bits, or requests, per second.
    per_s: f64,
    /// CPU time of the application per send, ns.
    app_ns_per_send: Option<f64>,
    /// Median time of a request, µs.
    p50_us: Option<f64>,
}

/// Runs it and prints the rows.
pub fn run(options: &Options) -> io::Result<()> {
    let bench = Bench::new()?;
    if !options.json {
        println!(
            "one connection to plain Linux over a veth; median of {} interleaved rounds of {} s",
            options.rounds, options.seconds
        );
        println!(
            "{:24} {:20} {:>14} {:>14} {:>9} {:>14}",
            "shape", "way", "per second", "app ns/send", "p50 µs", "to best linux"
        );
    }
    for bytes in SIZES.into_iter().filter(|bytes| options.bytes.is_none_or(|wanted| wanted == *bytes)) {
        let shape = format!("sends of {bytes} bytes");
        let runs =
            rounds(options, &shape, &VARIANTS, |variant| variant.name, |variant| bench.sends(options, variant, bytes))?;
        for row in rows(&shape, &runs, 8.0, true) {
            print(options, &row);
        }
    }
    if options.bytes.is_none_or(|wanted| wanted == 0) {
        let shape = "64 bytes back and forth";
        let runs =
            rounds(options, shape, &VARIANTS, |variant| variant.name, |variant| bench.requests(options, variant))?;
        for row in rows(shape, &runs, 1.0, false) {
            print(options, &row);
        }
    }
    Ok(())
}

/// The rows of a shape from its runs by variant and round.
fn rows(shape: &str, runs: &[Vec<Run>; VARIANTS.len()], unit: f64, sends: bool) -> Vec<Row> {
    let linux = || VARIANTS.iter().zip(runs).filter(|(variant, _)| !variant.ours);
    let best = |round: usize| linux().map(|(_, runs)| runs[round].per_s).fold(0.0, f64::max);
    let row = |(variant, own): (&Variant, &Vec<Run>)| {
        let round = |per_s: f64, cost: f64| Round {
            per_s: unit * per_s,
            app_ns_per_send: sends.then_some(cost),
            p50_us: (!sends).then_some(cost),
        };
        Row {
            shape: shape.to_owned(),
            way: variant.name,
            median: round(median(own.iter().map(|run| run.per_s)), median(own.iter().map(|run| run.cost))),
            to_best_linux: median(own.iter().enumerate().map(|(round, run)| run.per_s / best(round))),
            rounds: own.iter().map(|run| round(run.per_s, run.cost)).collect(),
        }
    };
    VARIANTS.iter().zip(runs).map(row).collect()
}

fn print(options: &Options, row: &Row) {
    if print_json(options.json, row) {
        return;
    }
    let shown = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"));
    let per_s = match row.median.app_ns_per_send {
        Some(_) => format!("{:.2} Gbit", row.median.per_s / 1e9),
        None => format!("{:.0}", row.median.per_s),
    };
    println!(
        "{:24} {:20} {per_s:>14} {:>14} {:>9} {:>13.2}x",
        row.shape,
        row.way,
        shown(row.median.app_ns_per_send),
        shown(row.median.p50_us),
        row.to_best_linux
    );
}

/// Everything that the runs share. The kernel stacks run all the time: asleep they cost nothing.
struct Bench {
    pair: VethPair,
    rpc: OsString,
    /// One on CPU 1, one wherever the kernel puts it.
    stacks: [(Process, PathBuf); 2],
    _others: Vec<Process>,
}

impl Bench {
    fn new() -> io::Result<Self> {
        let (rpc, pair) = (rpc()?.into_os_string(), VethPair::new()?);
        let mut others = Vec::new();
        for (number, plan) in CPU_PLANS.into_iter().enumerate() {
            for (role, port) in [("drain", SINK + number), ("server", ECHO + number)] {
                let words = [rpc.clone(), role.into(), format!("{OTHER}:{port}").into()];
                let command = pair.command_on(Side::Client, plan.cpus()[1], &words);
                others.push(pair.start(command, &format!("{role}-{number}.log"), "ready")?);
            }
        }
        let stacks = [pair.kernel_stack("alone", CpuPlan::Apart.cpus()[2])?, pair.kernel_stack("free", None)?];
        Ok(Self { stacks, pair, rpc, _others: others })
    }

    /// The program with `role`, and receive work placed for it. `ports` is the port of the first plan's other end.
    fn program(&self, variant: &Variant, role: &str, ports: usize) -> io::Result<Command> {
        // Acknowledgements and answers are received where the socket is served: by the kernel stack or in the program.
        let [program, other, served] = variant.plan.cpus();
        self.pair.receive_on(Side::Server, if variant.ours { served } else { program })?;
        self.pair.receive_on(Side::Client, other)?;
        let stack = &self.stacks[usize::from(variant.plan == CpuPlan::Free)];
        let mut words = if variant.ours { run_on(&stack.1)? } else { Vec::new() };
        let port = ports + CPU_PLANS.iter().position(|plan| *plan == variant.plan).unwrap_or(0);
        words.extend([self.rpc.clone(), role.into(), format!("{OTHER}:{port}").into()]);
        Ok(self.pair.command_on(Side::Server, program, &words))
    }

    fn sends(&self, options: &Options, variant: &Variant, bytes: usize) -> io::Result<Run> {
        let mut command = self.program(variant, "sends", SINK)?;
        command.args(["--bytes", &bytes.to_string(), "--seconds", &options.seconds.to_string()]);
        if variant.nodelay {
            command.arg("--nodelay");
        }
        let report = json_report(&command.output()?, "the sender")?;
        Ok(Run { per_s: number(&report, "bytes_per_s")?, cost: number(&report, "cpu_ns_per_send")? })
    }

    fn requests(&self, options: &Options, variant: &Variant) -> io::Result<Run> {
        let mut command = self.program(variant, "client", ECHO)?;
        command.args(["--connections", "1", "--depth", "1", "--seconds", &options.seconds.to_string()]);
        let measured = echo::measured(&command.output()?)?;
        Ok(Run { per_s: measured.requests_per_s, cost: measured.p50_us })
    }
}
