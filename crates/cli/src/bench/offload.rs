//! The kernel stack beside the kernel's own calls: the same program sends to the same sink, in turn.

use super::echo;
use super::lab::{Lab, Process, Side};
use super::measure::{median, under};
use super::offload_files;
use serde::Serialize;
use serde_json::Value;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::Command;

/// Arguments of `towpath bench offload`.
#[derive(clap::Args)]
pub struct Options {
    /// One JSON object per row instead of the table
    #[arg(long)]
    pub json: bool,
    /// Measured seconds of one run
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// Rounds of all ways; the median counts
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Only sends of so many bytes (0: only the request's time)
    #[arg(long)]
    bytes: Option<usize>,
    /// Only this part of it
    #[arg(long)]
    only: Option<Part>,
}

/// A part of the benchmark.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Sends of several sizes, and a request's time.
    Goodput,
    /// A file by `sendfile`.
    Sendfile,
    /// A file of nginx's by TLS.
    Tls,
}

/// Where the program, the kernel stack and the other end run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The program on CPU 0, the other end on CPU 1, and the kernel stack with it.
    Apart,
    /// The program and the other end on CPU 0, the kernel stack on CPU 1.
    Together,
    /// Wherever the kernel puts them, with receive work where the packets are sent from.
    Free,
}

impl Place {
    /// CPUs of the program, the other end and the kernel stack; `None` = all.
    fn cpus(self) -> [Option<usize>; 3] {
        match self {
            Self::Apart => [Some(0), Some(1), Some(1)],
            Self::Together => [Some(0), Some(0), Some(1)],
            Self::Free => [None; 3],
        }
    }
}

/// A way that is compared.
struct Way {
    /// Its name in the table.
    name: &'static str,
    /// Over the kernel stack?
    ours: bool,
    /// With `TCP_NODELAY`?
    nodelay: bool,
    place: Place,
}

const fn way(name: &'static str, ours: bool, nodelay: bool, place: Place) -> Way {
    Way { name, ours, nodelay, place }
}

/// The ways that are compared. What Linux would do on one CPU of two is not worth measuring.
const WAYS: [Way; 7] = [
    way("linux nodelay", false, true, Place::Apart),
    way("linux nagle", false, false, Place::Apart),
    way("linux nodelay, free", false, true, Place::Free),
    way("linux nagle, free", false, false, Place::Free),
    way("kernel stack", true, true, Place::Apart),
    way("kernel stack, alone", true, true, Place::Together),
    way("kernel stack, free", true, true, Place::Free),
];
/// The places, in the order of [`Bench::others`].
const PLACES: [Place; 3] = [Place::Apart, Place::Together, Place::Free];
/// Bytes of a send.
const SIZES: [usize; 5] = [64, 256, 1448, 16 << 10, 64 << 10];
/// The other end's address; its sinks and echo servers have a port for each place.
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
    /// Payload bits, or requests, per second.
    per_s: f64,
    /// CPU time of the application per send, ns.
    app_ns_per_send: Option<f64>,
    /// Median time of a request, µs.
    p50_us: Option<f64>,
    /// `per_s` divided by that of Linux's best way in the same rounds (median of the rounds' ratios).
    to_best_linux: f64,
}

/// Runs it and prints the rows.
pub fn run(options: &Options) -> io::Result<()> {
    // Who asks for sends of one size wants nothing else.
    let only = options.only.or(options.bytes.map(|_| Part::Goodput));
    let wanted = |part| only.is_none_or(|only| only == part);
    if wanted(Part::Goodput) {
        goodput(options)?;
    }
    if wanted(Part::Sendfile) {
        offload_files::sendfile(options)?;
    }
    if wanted(Part::Tls) {
        offload_files::tls(options)?;
    }
    Ok(())
}

fn goodput(options: &Options) -> io::Result<()> {
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
        let runs = bench.rounds(options, &shape, |way| bench.sends(options, way, bytes))?;
        for row in rows(&shape, &runs, 8.0, true) {
            print(options, &row);
        }
    }
    if options.bytes.is_none_or(|wanted| wanted == 0) {
        let shape = "64 bytes back and forth";
        let runs = bench.rounds(options, shape, |way| bench.requests(options, way))?;
        for row in rows(shape, &runs, 1.0, false) {
            print(options, &row);
        }
    }
    Ok(())
}

/// The rows of a shape from its runs by way and round.
fn rows(shape: &str, runs: &[Vec<Run>; WAYS.len()], unit: f64, sends: bool) -> Vec<Row> {
    let linux = || WAYS.iter().zip(runs).filter(|(way, _)| !way.ours);
    let best = |round: usize| linux().map(|(_, runs)| runs[round].per_s).fold(0.0, f64::max);
    let row = |(way, own): (&Way, &Vec<Run>)| {
        let cost = median(own.iter().map(|run| run.cost).collect());
        Row {
            shape: shape.to_owned(),
            way: way.name,
            per_s: unit * median(own.iter().map(|run| run.per_s).collect()),
            app_ns_per_send: sends.then_some(cost),
            p50_us: (!sends).then_some(cost),
            to_best_linux: median(own.iter().enumerate().map(|(round, run)| run.per_s / best(round)).collect()),
        }
    };
    WAYS.iter().zip(runs).map(row).collect()
}

fn print(options: &Options, row: &Row) {
    if options.json {
        println!("{}", serde_json::to_string(row).unwrap_or_default());
        return;
    }
    let figure = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"));
    let per_s = match row.app_ns_per_send {
        Some(_) => format!("{:.2} Gbit", row.per_s / 1e9),
        None => format!("{:.0}", row.per_s),
    };
    println!(
        "{:24} {:20} {per_s:>14} {:>14} {:>9} {:>13.2}x",
        row.shape,
        row.way,
        figure(row.app_ns_per_send),
        figure(row.p50_us),
        row.to_best_linux
    );
}

/// What all runs share. The kernel stacks are there all the time: asleep they cost nothing.
struct Bench {
    lab: Lab,
    rpc: OsString,
    /// One on CPU 1, one wherever the kernel puts it.
    stacks: [(Process, PathBuf); 2],
    _others: Vec<Process>,
}

impl Bench {
    fn new() -> io::Result<Self> {
        let rpc = std::env::current_exe()?.with_file_name("towpath-rpc");
        if !rpc.exists() {
            return Err(io::Error::other(format!("{} is missing: cargo build --release --workspace", rpc.display())));
        }
        let (lab, rpc) = (Lab::new()?, rpc.into_os_string());
        let mut others = Vec::new();
        for (number, place) in PLACES.into_iter().enumerate() {
            for (role, port) in [("drain", SINK + number), ("server", ECHO + number)] {
                let words = [rpc.clone(), role.into(), format!("{OTHER}:{port}").into()];
                let command = lab.command_on(Side::Client, place.cpus()[1], &words);
                others.push(lab.start(command, &format!("{role}-{number}.log"), "ready")?);
            }
        }
        let stacks = [lab.kernel_stack("alone", Place::Apart.cpus()[2])?, lab.kernel_stack("free", None)?];
        Ok(Self { stacks, lab, rpc, _others: others })
    }

    fn rounds(
        &self,
        options: &Options,
        shape: &str,
        one: impl Fn(&Way) -> io::Result<Run>,
    ) -> io::Result<[Vec<Run>; WAYS.len()]> {
        let mut runs: [Vec<Run>; WAYS.len()] = Default::default();
        for round in 0..options.rounds.max(1) {
            for (way, runs) in WAYS.iter().zip(&mut runs) {
                eprint!("\r{shape}: round {} of {}, {}        ", round + 1, options.rounds, way.name);
                runs.push(one(way)?);
            }
        }
        eprint!("\r{:70}\r", "");
        Ok(runs)
    }

    /// The program with `role`, receive work placed for it, and the port of the place's other end, `ports` being that of the first.
    fn program(&self, way: &Way, role: &str, ports: usize) -> io::Result<Command> {
        // Acknowledgements and answers are received where the socket is served: by the kernel stack or in the program.
        let [program, other, served] = way.place.cpus();
        self.lab.receive_on(Side::Server, if way.ours { served } else { program })?;
        self.lab.receive_on(Side::Client, other)?;
        let stack = &self.stacks[usize::from(way.place == Place::Free)];
        let mut words = if way.ours { under(&stack.1)? } else { Vec::new() };
        let port = ports + PLACES.iter().position(|place| *place == way.place).unwrap_or(0);
        words.extend([self.rpc.clone(), role.into(), format!("{OTHER}:{port}").into()]);
        Ok(self.lab.command_on(Side::Server, program, &words))
    }

    fn sends(&self, options: &Options, way: &Way, bytes: usize) -> io::Result<Run> {
        let mut command = self.program(way, "sends", SINK)?;
        command.args(["--bytes", &bytes.to_string(), "--seconds", &options.seconds.to_string()]);
        if way.nodelay {
            command.arg("--nodelay");
        }
        let output = command.output()?;
        let failed = || io::Error::other(format!("the sender failed: {}", String::from_utf8_lossy(&output.stderr)));
        let report: Value = serde_json::from_slice(&output.stdout).map_err(|_| failed())?;
        let field = |name: &str| report[name].as_f64().ok_or_else(failed);
        Ok(Run { per_s: field("bytes_per_s")?, cost: field("cpu_ns_per_send")? })
    }

    fn requests(&self, options: &Options, way: &Way) -> io::Result<Run> {
        let mut command = self.program(way, "client", ECHO)?;
        command.args(["--connections", "1", "--depth", "1", "--seconds", &options.seconds.to_string()]);
        let figures = echo::figures(&command.output()?)?;
        Ok(Run { per_s: figures.requests_per_s, cost: figures.p50_us })
    }
}
