//! What a capture takes from an echo's rate: one whose filter matches nothing, and one of all frames. tcpdump beside Linux,
//! `towpath capture` beside Towpath.

use crate::echo::measured;
use crate::process::Process;
use crate::programs::{rpc, run_on, towpath};
use crate::side_by_side::{STACKS, interleaved};
use crate::veth_pair::{SERVER, Side, VethPair};
use serde::Serialize;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use towpath_bench_report::{median, print_json_rows};

/// The echo's connections, and bytes of a frame that are kept.
const CONNECTIONS: u32 = 64;
const SNAP: u32 = 96;

/// Name, and the filter.
const SHAPES: [(&str, &[&str]); 2] = [("nothing", &["udp", "port", "9"]), ("all", &[])];

/// Arguments of `towpath bench capture`.
#[derive(clap::Args)]
#[command(
    after_help = "Root; needs tcpdump. 64 connections echo 64 bytes. In each round a server runs over Linux, then one over Towpath. Each is \
    measured three times: without a capture, with one whose filter matches no frame, and with one of all frames, 96 bytes of each. Both \
    tools write to a file, on any CPU. `kept` is the rate with the capture beside the rate without. `dropped` are frames that the tool \
    could not keep.\n\n\
    Examples:\n  towpath bench capture\n  towpath bench capture --rounds 7 --json"
)]
pub struct Options {
    /// One JSON object per row instead of the table
    #[arg(long)]
    json: bool,
    /// Measured seconds of one run
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Rounds of Linux, Towpath; the median counts
    #[arg(long, default_value_t = 7)]
    rounds: usize,
}

/// One row: a capture over a stack.
#[derive(Serialize)]
struct Row {
    shape: &'static str,
    stack: &'static str,
    /// The median of each value of the rounds.
    #[serde(flatten)]
    median: Round,
    rounds: Vec<Round>,
}

/// What one round has measured.
#[derive(Clone, Copy, Serialize)]
struct Round {
    /// The rate with the capture, as a part of the rate without.
    kept: f64,
    requests_per_s: f64,
    /// Frames that the capture has lost, of all that its filter let through.
    dropped: f64,
}

/// Runs it and prints the rows.
pub fn run(options: &Options) -> io::Result<()> {
    let bench = Bench { pair: VethPair::new()?, rpc: rpc()?.into(), options };
    let mut runs = STACKS.map(|_| SHAPES.map(|_| Vec::new()));
    interleaved(options.rounds, "capture", |index, stack| bench.one(stack, &mut runs[index]))?;
    let mut rows = Vec::new();
    for (index, (shape, _)) in SHAPES.into_iter().enumerate() {
        for (stack, shapes) in STACKS.into_iter().zip(&runs) {
            let rounds = shapes[index].clone();
            let of = |field: fn(&Round) -> f64| median(rounds.iter().map(field));
            let median = Round {
                kept: of(|round| round.kept),
                requests_per_s: of(|round| round.requests_per_s),
                dropped: of(|round| round.dropped),
            };
            rows.push(Row { shape, stack, median, rounds });
        }
    }
    if print_json_rows(options.json, &rows) {
        return Ok(());
    }
    println!(
        "64-byte echo, {CONNECTIONS} connections, while frames are captured; median of {} interleaved rounds of {} s",
        options.rounds, options.seconds
    );
    println!("{:10} {:8} {:>12} {:>8} {:>9}", "captured", "stack", "requests/s", "kept", "dropped");
    for Row { shape, stack, median, .. } in &rows {
        let percent = |part: f64| format!("{:.1} %", part * 100.0);
        let (kept, dropped) = (percent(median.kept), percent(median.dropped));
        println!("{shape:10} {stack:8} {:>12.0} {kept:>8} {dropped:>9}", median.requests_per_s);
    }
    Ok(())
}

struct Bench<'a> {
    pair: VethPair,
    rpc: OsString,
    options: &'a Options,
}

impl Bench<'_> {
    /// Measures one stack's server without a capture, and with each.
    fn one(&self, stack: &str, shapes: &mut [Vec<Round>; SHAPES.len()]) -> io::Result<()> {
        let service = if stack == "towpath" { Some(self.pair.serve()?) } else { None };
        let socket = service.as_ref().map(|(_, socket)| socket.as_path());
        let mut words = socket.map_or(Ok(Vec::new()), run_on)?;
        words.extend([self.rpc.clone(), "server".into(), format!("{SERVER}:9000").into()]);
        let _server = self.pair.start(self.pair.command(Side::Server, &words), "server.log", "ready")?;
        // The first run warms up what the others find warm.
        self.rate()?;
        let without = self.rate()?;
        for ((shape, filter), rounds) in SHAPES.into_iter().zip(shapes) {
            let capture = Capture::begin(&self.pair, socket, filter)?;
            let requests_per_s = self.rate()?;
            let (frames, lost) = capture.end()?;
            // Each request is a frame, and so is each reply.
            let some = frames >= requests_per_s * self.options.seconds;
            if some != filter.is_empty() {
                return Err(io::Error::other(format!("the capture of {shape} over {stack} has seen {frames} frames")));
            }
            rounds.push(Round { kept: requests_per_s / without, requests_per_s, dropped: lost / frames.max(1.0) });
        }
        Ok(())
    }

    fn rate(&self) -> io::Result<f64> {
        let address = format!("{SERVER}:9000");
        let mut client = self.pair.command(Side::Client, &[self.rpc.as_os_str(), "client".as_ref(), address.as_ref()]);
        client.args(["--connections", &CONNECTIONS.to_string(), "--seconds", &self.options.seconds.to_string()]);
        Ok(measured(&client.output()?)?.requests_per_s)
    }
}

/// A capture that runs.
struct Capture {
    process: Process,
    log: PathBuf,
}

impl Capture {
    /// Begins one: of the service at `socket`, or of the kernel's frames.
    fn begin(pair: &VethPair, socket: Option<&Path>, filter: &[&str]) -> io::Result<Self> {
        let (log, file) = (pair.dir().join("capture.log"), pair.dir().join("frames"));
        let mut words: Vec<OsString> = Vec::new();
        match socket {
            Some(socket) => {
                words.extend([towpath()?.into(), "capture".into(), "--json".into(), "--socket".into(), socket.into()]);
            }
            None => words.extend(["tcpdump", "-Z", "root", "-i", "eth1"].map(Into::into)),
        }
        words.extend(["-s".into(), SNAP.to_string().into(), "-w".into(), file.clone().into()]);
        words.extend(filter.iter().map(Into::into));
        let _ = fs::remove_file(&file);
        // Both write the head of the file when they have begun; tcpdump may keep it back, and says so.
        let begun = |said: &str| said.contains("listening on") || fs::metadata(&file).is_ok_and(|file| file.len() > 0);
        let process = Process::start(pair.command_on(Side::Server, None, &words), &log, begun)?;
        Ok(Self { process, log })
    }

    /// Ends it: the frames that its filter let through, and those of them that it could not keep.
    fn end(self) -> io::Result<(f64, f64)> {
        drop(self.process);
        let said = fs::read_to_string(&self.log)?;
        counts(&said)
            .ok_or_else(|| io::Error::other(format!("the capture does not say what it has seen: {}", said.trim())))
    }
}

/// What `towpath capture --json` or tcpdump has said at its end.
fn counts(said: &str) -> Option<(f64, f64)> {
    let json = said.lines().rfind(|line| line.starts_with('{'));
    if let Some(line) = json {
        let report: serde_json::Value = serde_json::from_str(line).ok()?;
        return Some((report["matched"].as_f64()?, report["dropped"].as_f64()?));
    }
    let number = |what: &str| {
        let line = said.lines().find(|line| line.contains(what))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let (captured, dropped): (f64, f64) = (number("captured")?, number("dropped by kernel")?);
    Some((captured + dropped, dropped))
}

#[cfg(test)]
mod tests {
    use super::counts;

    #[test]
    fn both_tools_say_what_they_have_seen() {
        let tcpdump = "tcpdump: listening on eth1\n90 packets captured\n101 packets received by filter\n10 packets dropped by kernel\n";
        assert_eq!(counts(tcpdump), Some((100.0, 10.0)));
        assert_eq!(counts("{\"frames\":90,\"matched\":100,\"dropped\":10}\n"), Some((100.0, 10.0)));
        assert_eq!(counts("tcpdump: eth1: No such device exists\n"), None);
    }
}
