//! `towpath bench`: the same programs over Linux and over Towpath, interleaved, on the same veth and CPUs.

mod anp;
mod bulk;
mod cores;
mod crowd;
mod direct;
mod echo;
mod fabric;
mod fairness;
mod incast;
mod instructions;
mod lab;
mod layout;
mod loss;
mod measure;
mod offload;
mod offload_files;
mod redis;
mod wire;

use clap::Subcommand;
use serde::Serialize;
use std::io;

/// Arguments of `towpath bench`.
#[derive(clap::Args)]
#[command(
    after_help = "Where nothing else is said, they make two network namespaces joined by a veth (root needed), run the server side on CPU 0 and the \
    client side on CPU 1, and alternate Linux and Towpath in every round. The client always runs on plain Linux.\n\n\
    Examples:\n  towpath bench echo\n  towpath bench echo --shape c1-d1 --rounds 5 --json\n  towpath bench instructions --json\n  towpath bench anp\n  towpath bench cores"
)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Echo of 64 bytes: 1, 16, 64 and 1,000 connections, and 32 requests pipelined on each.
    Echo(Options),
    /// redis-server under redis-benchmark, -P 1 and -P 16.
    Redis(Options),
    /// iperf3 with one connection, both ways.
    Bulk(Options),
    /// Two programs of this host: Linux's loopback device, the stack, and joined directly. Needs no root.
    Direct(direct::Options),
    /// Sends of 64 bytes to 64 KiB, a request's time, and files by sendfile and by nginx with TLS: Linux's own calls beside the
    /// kernel stack, over a veth, and beside the kernel stack in a second kernel.
    Offload(offload::Options),
    /// Instructions per 64-byte echo request in the fast path and in the socket library, counted by callgrind over the
    /// in-memory port. Stable from run to run; needs valgrind, not root.
    Instructions(instructions::Options),
    /// One bulk connection through `towpath-relay` over eight bad paths: loss, bursts, reordering. Both stacks send to Linux.
    Loss(loss::Options),
    /// How evenly many flows share one port: 50 to 500 real ones through `towpath-relay`, Linux beside Towpath (root), and 50 to 2,000
    /// simulated ones at 40 Gbit/s.
    Fairness(fairness::Options),
    /// One host asks many for 64 KiB at once: real ones through `towpath-relay`, Linux beside Towpath (root), and simulated ones.
    Incast(incast::Options),
    /// CPUs that only receive: none, so many, or as many as the allocator chooses, for two architectures of server (root).
    Anp(anp::Options),
    /// A service with room for several cores while the load goes up and down: cores and p99 over time (root).
    Cores(cores::Options),
}

/// What the side-by-side benchmarks have in common.
#[derive(clap::Args)]
struct Options {
    /// One JSON object per row instead of the table.
    #[arg(long)]
    json: bool,
    /// Measured seconds of one run.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Rounds of Linux, Towpath; the median counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only the shape of this name (see the table's first column).
    #[arg(long)]
    shape: Option<String>,
}

/// One row: a shape over a stack.
#[derive(Clone, Debug, Serialize)]
struct Row {
    shape: String,
    stack: &'static str,
    /// Requests (or, for `bulk`, bytes) per second.
    requests_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    /// Busy time of the server side's CPU per request: application, stack cores and interrupts together.
    server_cpu_ns_per_request: f64,
    /// Run time of the server side's own threads per request (application and service), without interrupts.
    server_tasks_ns_per_request: f64,
    /// `requests_per_s` divided by Linux's in the same rounds (median of the rounds' ratios).
    ratio: f64,
}

/// Runs a benchmark; the error text says what to do.
pub fn run(args: &Arguments) -> io::Result<()> {
    match &args.what {
        What::Echo(options) => report(options, "64-byte echo", &echo::run(options)?),
        What::Redis(options) => report(options, "redis-benchmark", &redis::run(options)?),
        What::Bulk(options) => report(options, "iperf3, 1 connection (bytes/s)", &bulk::run(options)?),
        What::Direct(options) => return direct::run(options),
        What::Offload(options) => return offload::run(options),
        What::Instructions(options) => return instructions::run(options),
        What::Loss(options) => return loss::run(options),
        What::Fairness(options) => return fairness::run(options),
        What::Incast(options) => return incast::run(options),
        What::Anp(options) => return anp::run(options),
        What::Cores(options) => return cores::run(options),
    }
    Ok(())
}

fn report(options: &Options, title: &str, rows: &[Row]) {
    if options.json {
        for row in rows {
            if let Ok(text) = serde_json::to_string(row) {
                println!("{text}");
            }
        }
        return;
    }
    println!("{title}; median of {} interleaved rounds of {} s", options.rounds, options.seconds);
    println!(
        "{:16} {:8} {:>14} {:>9} {:>9} {:>9} {:>12} {:>12} {:>7}",
        "shape", "stack", "requests/s", "p50 µs", "p99 µs", "p99.9 µs", "CPU ns/req", "tasks ns/req", "ratio"
    );
    for row in rows {
        println!(
            "{:16} {:8} {:>14.0} {:>9.1} {:>9.1} {:>9.1} {:>12.1} {:>12.1} {:>6.2}x",
            row.shape,
            row.stack,
            row.requests_per_s,
            row.p50_us,
            row.p99_us,
            row.p999_us,
            row.server_cpu_ns_per_request,
            row.server_tasks_ns_per_request,
            row.ratio
        );
    }
}
