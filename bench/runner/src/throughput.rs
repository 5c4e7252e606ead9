//! Requests per second over the number of CPUs that the server's side has: Linux beside the fast stack, with every split of
//! these CPUs between its cores and the program's event loops that is worth a look.

use crate::cpu_layout::CpuLayout;
use crate::cpu_time::cpu_busy_ns;
use crate::programs::{json_report, rpc, run_on};
use crate::veth_pair::{SERVER, Side, VethPair};
use serde::Serialize;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Instant;
use towpath_bench_report::{median, print_json_rows};
use towpath_rxcpus::CpuSet;

/// Seconds before a load is measured.
const WARM_UP: f64 = 0.5;

/// Arguments of `towpath bench throughput`.
#[derive(clap::Args)]
#[command(after_help = "Root. The server's side has 1, 2, 4 ... CPUs, and the client, plain Linux, all others: \
    on Linux as many event loops, with receive work spread over the same CPUs; on Towpath cores and event loops together. Over a \
    veth the kernel gives Towpath its frames on the sender's CPUs, so that part of its receive work is not the server's: \
    compare `machine µs`, too. With half of the machine's CPUs at the server the client is the limit.\n\n\
    Examples:\n  towpath bench throughput\n  towpath bench throughput --cpus 4 --connections 256 --seconds 5 --json")]
pub struct Options {
    /// One JSON object per row instead of the table
    #[arg(long)]
    json: bool,
    /// Measured seconds of one run
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Rounds of all arms; the median counts
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// CPUs of the server's side [default: 1, 2, 4 ... up to half of the machine]
    #[arg(long, value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Only this arm, and Linux's to compare: `towpath 2` has two cores
    #[arg(long)]
    arm: Option<String>,
    /// Connections for each of these CPUs, with one request outstanding each
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Bytes of a request and of its reply
    #[arg(long, default_value_t = 64)]
    bytes: usize,
    /// How frames come to the stack: the service's key `port` [default: what suits the veth]
    #[arg(long, value_parser = ["packet", "xdp", "xdp-generic", "auto"])]
    port: Option<String>,
}

/// Who has the server's CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arm {
    Linux,
    /// So many cores of the service. The program has the other CPUs, or shares the only one.
    Towpath {
        cores: usize,
    },
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Linux => f.write_str("linux"),
            Self::Towpath { cores } => write!(f, "towpath {cores}"),
        }
    }
}

/// One arm with a number of CPUs.
#[derive(Clone, Debug, Serialize)]
struct Row {
    experiment: &'static str,
    /// Bytes, CPUs and connections in one word.
    shape: String,
    /// CPUs of the server's side.
    cpus: usize,
    /// `linux`, or `towpath` and the number of its cores.
    arm: String,
    connections: usize,
    bytes: usize,
    /// The median of each value of the rounds.
    #[serde(flatten)]
    median: Measured,
    /// To Linux with as many CPUs: the median of the rounds' ratios, the least and the largest.
    ratio: [f64; 3],
    rounds: Vec<Measured>,
}

/// One run of an arm.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Measured {
    requests_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    /// Busy time of the server's CPUs per request. What a veth receives for Towpath is the client's.
    server_cpu_us_per_request: f64,
    /// Busy time of the whole machine per request, the client and other programs included.
    machine_cpu_us_per_request: f64,
}

/// Runs it and prints the rows.
pub fn run(options: &Options) -> io::Result<()> {
    let layout = CpuLayout::read(None)?;
    let rpc = rpc()?;
    let half = layout.server.0.len().min(layout.cpus() / 2).max(1);
    let counts = if options.cpus.is_empty() { powers(half) } else { options.cpus.clone() };
    if let Some(count) = counts.iter().find(|count| !(1..=half).contains(*count)) {
        return Err(io::Error::other(format!("--cpus {count}: the server's side has 1 to {half} CPUs here")));
    }
    let mut rows = Vec::new();
    for cpus in counts {
        let arms = arms(cpus, options.arm.as_deref());
        if let (Some(only), 1) = (&options.arm, arms.len()) {
            let known: Vec<String> = self::arms(cpus, None)[1..].iter().map(ToString::to_string).collect();
            return Err(io::Error::other(format!("--arm {only}: with {cpus} CPUs there are {}", known.join(", "))));
        }
        let mut runs = vec![Vec::new(); arms.len()];
        for round in 0..options.rounds.max(1) {
            for (arm, runs) in arms.iter().zip(&mut runs) {
                eprint!("\r{cpus} CPUs: round {} of {}, {arm}        ", round + 1, options.rounds);
                runs.push(one(&layout, &rpc, cpus, *arm, options)?);
            }
        }
        eprint!("\r{:60}\r", "");
        rows.extend(arms.iter().zip(&runs).map(|(arm, of_arm)| row(options, cpus, *arm, of_arm, &runs[0])));
    }
    if !print_json_rows(options.json, &rows) {
        print(options, &layout, &rows);
    }
    Ok(())
}

/// 1, 2, 4 and so on up to this number.
fn powers(most: usize) -> Vec<usize> {
    std::iter::successors(Some(1), |count| Some(count * 2)).take_while(|count| *count <= most).collect()
}

/// Linux, and 1, 2, 4 ... cores up to half of the CPUs, or those of them that are wanted.
fn arms(cpus: usize, only: Option<&str>) -> Vec<Arm> {
    let ours = powers((cpus / 2).max(1)).into_iter().map(|cores| Arm::Towpath { cores });
    let ours = ours.filter(|arm| only.is_none_or(|only| arm.to_string() == only));
    std::iter::once(Arm::Linux).chain(ours).collect()
}

fn one(layout: &CpuLayout, rpc: &Path, cpus: usize, arm: Arm, options: &Options) -> io::Result<Measured> {
    let all: Vec<u32> = layout.server.0.iter().copied().take(cpus).collect();
    let set = |cpus: &[u32]| CpuSet(cpus.iter().copied().collect());
    let client = layout.all.without(&set(&all));
    let (queues, loops, program) = match arm {
        Arm::Linux => (cpus, cpus, set(&all)),
        Arm::Towpath { cores } if cores < cpus => (cores, cpus - cores, set(&all[cores..])),
        Arm::Towpath { .. } => (cpus, cpus, set(&all)),
    };
    // A pair of its own, as a program on it may change what the other end's kernel leaves to the device.
    let pair = VethPair::with_queues(queues)?.with_port(options.port.as_deref())?;
    let receive = if arm == Arm::Linux { set(&all).mask() } else { "0".into() };
    pair.receive_by(Side::Server, queues, &receive)?;
    pair.receive_by(Side::Client, queues, &client.mask())?;
    let service = match arm {
        Arm::Linux => None,
        Arm::Towpath { cores } => Some(pair.serve_pinned(&set(&all).list(), &all[..cores])?),
    };
    let mut words = Vec::new();
    if let Some((_, socket)) = &service {
        words.extend(run_on(socket)?);
    }
    words.extend([rpc.as_os_str(), "values-server".as_ref(), address().as_ref()].map(OsString::from));
    words.extend(["--loops".into(), loops.to_string().into(), "--bytes".into(), options.bytes.to_string().into()]);
    let server = pair.start(pair.command_among(Side::Server, &program.list(), &words), "server.log", "ready")?;
    let (busy, begun) = (busy_us(&all)?, Instant::now());
    let report = load(&pair, rpc, &client, options, options.connections * cpus)?;
    let (busy, seconds) = (busy_us(&all)? - busy, begun.elapsed().as_secs_f64());
    drop((server, service));
    let number = |name: &str| report["steps"][0][name].as_f64().unwrap_or(0.0);
    let requests_per_s = number("requests_per_s");
    Ok(Measured {
        requests_per_s,
        p50_us: number("p50_us"),
        p99_us: number("p99_us"),
        server_cpu_us_per_request: busy / (requests_per_s * seconds).max(1.0),
        machine_cpu_us_per_request: number("cpu_us_per_request"),
    })
}

fn address() -> String {
    format!("{SERVER}:9030")
}

fn busy_us(cpus: &[u32]) -> io::Result<f64> {
    cpus.iter().try_fold(0.0, |sum, cpu| Ok(sum + cpu_busy_ns(*cpu as usize)? / 1e3))
}

fn load(
    pair: &VethPair,
    rpc: &Path,
    client: &CpuSet,
    options: &Options,
    connections: usize,
) -> io::Result<serde_json::Value> {
    let words = [rpc.as_os_str(), "values-client".as_ref(), address().as_ref()].map(OsString::from);
    let mut command = pair.command_among(Side::Client, &client.list(), &words);
    command.args(["--connections", &connections.to_string(), "--bytes", &options.bytes.to_string()]);
    command.args(["--threads", &client.0.len().min(connections).max(1).to_string(), "--warm-up", &WARM_UP.to_string()]);
    command.args(["--steps", &format!("closed:{connections}@{}", options.seconds + WARM_UP)]);
    let report = json_report(&command.output()?, "the client")?;
    match report["bad"].as_u64() {
        Some(0) => Ok(report),
        _ => Err(io::Error::other(format!("{} replies were wrong", report["bad"]))),
    }
}

fn row(options: &Options, cpus: usize, arm: Arm, runs: &[Measured], linux: &[Measured]) -> Row {
    let of = |field: fn(&Measured) -> f64| median(runs.iter().map(field));
    let ratios = || runs.iter().zip(linux).map(|(run, linux)| run.requests_per_s / linux.requests_per_s);
    Row {
        experiment: "throughput",
        shape: format!("{}B-{cpus}cpu-c{}", options.bytes, options.connections * cpus),
        cpus,
        arm: arm.to_string(),
        connections: options.connections * cpus,
        bytes: options.bytes,
        median: Measured {
            requests_per_s: of(|run| run.requests_per_s),
            p50_us: of(|run| run.p50_us),
            p99_us: of(|run| run.p99_us),
            server_cpu_us_per_request: of(|run| run.server_cpu_us_per_request),
            machine_cpu_us_per_request: of(|run| run.machine_cpu_us_per_request),
        },
        rounds: runs.to_vec(),
        ratio: [median(ratios()), ratios().fold(f64::INFINITY, f64::min), ratios().fold(0.0, f64::max)],
    }
}

fn print(options: &Options, layout: &CpuLayout, rows: &[Row]) {
    println!(
        "{} bytes there and back; {} CPUs; median of {} interleaved rounds of {} s",
        options.bytes,
        layout.cpus(),
        options.rounds,
        options.seconds
    );
    println!(
        "{:>4} {:12} {:>12} {:>9} {:>9} {:>10} {:>10} {:>7} {:>13}",
        "CPUs", "arm", "requests/s", "p50 µs", "p99 µs", "server µs", "machine µs", "ratio", "range"
    );
    for row in rows {
        let [ratio, least, largest] = row.ratio;
        println!(
            "{:>4} {:12} {:>12.0} {:>9.1} {:>9.1} {:>10.2} {:>10.2} {ratio:>6.2}x {:>13}",
            row.cpus,
            row.arm,
            row.median.requests_per_s,
            row.median.p50_us,
            row.median.p99_us,
            row.median.server_cpu_us_per_request,
            row.median.machine_cpu_us_per_request,
            format!("{least:.2}-{largest:.2}")
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_of_cpus_has_linux_and_some_splits() {
        let names = |cpus| arms(cpus, None).iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        assert_eq!(names(1), "linux, towpath 1");
        assert_eq!(names(8), "linux, towpath 1, towpath 2, towpath 4");
        assert_eq!(arms(8, Some("towpath 2")), [Arm::Linux, Arm::Towpath { cores: 2 }]);
        assert_eq!(powers(8), [1, 2, 4, 8]);
    }

    #[test]
    fn a_ratio_is_to_linux_in_the_same_round() {
        let options = Options {
            json: false,
            seconds: 1.0,
            rounds: 3,
            cpus: Vec::new(),
            arm: None,
            connections: 2,
            bytes: 64,
            port: None,
        };
        let rates = |rates: [f64; 3]| rates.map(|requests_per_s| Measured { requests_per_s, ..Measured::default() });
        let row = row(&options, 4, Arm::Towpath { cores: 1 }, &rates([10.0, 40.0, 30.0]), &rates([10.0, 10.0, 20.0]));
        assert_eq!((row.ratio, row.median.requests_per_s, row.connections), ([1.5, 1.0, 4.0], 30.0, 8));
    }
}
