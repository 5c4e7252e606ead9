//! `towpath bench`: the same programs over Linux and over Towpath, interleaved, on the same interfaces and CPUs.
#![forbid(unsafe_code)]

mod all;
mod bulk;
mod callgrind;
mod captured;
mod clang;
mod connections;
mod cpu_layout;
mod cpu_time;
mod direct;
mod echo;
mod fairness;
mod impaired_path;
mod incast;
mod instructions;
mod latency;
mod loss;
mod many_connections;
mod many_flows;
mod modules;
mod offload;
mod process;
mod programs;
mod redis;
mod report;
mod rxcpus;
mod service_cores;
mod service_memory;
mod side_by_side;
mod spliced_proxy;
mod stages;
mod syn_flood;
mod throughput;
mod veth_pair;
mod work;

use clap::{Parser, Subcommand};
use std::io::{self, Write};
use std::process::ExitCode;

/// Measure beside Linux
#[derive(Parser)]
#[command(
    name = "towpath-bench",
    bin_name = "towpath bench",
    version,
    arg_required_else_help = true,
    after_help = "Where nothing else is said, they make two network namespaces joined by a veth (root needed), run the server side on CPU 0 and the \
    client side on CPU 1, and alternate Linux and Towpath in every round. The client always runs on plain Linux.\n\n\
    Examples:\n  towpath bench echo\n  towpath bench echo --shape c1-d1 --rounds 5 --json\n  towpath bench instructions --json\n  towpath bench anp\n  towpath bench cores"
)]
struct Arguments {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Subcommand)]
enum Benchmark {
    /// All shapes, in turns, in about 23 minutes: JSON and one page (root). What takes longer is read from the last
    /// recorded run.
    All(all::Options),
    /// The page of a run of `all`, made again.
    Report(report::Options),
    /// Echo of 64 bytes: 1, 16, 64 and 1,000 connections, and 32 requests pipelined on each.
    Echo(side_by_side::Options),
    /// redis-server under redis-benchmark, -P 1 and -P 16.
    Redis(side_by_side::Options),
    /// iperf3 with one connection, both ways.
    Bulk(side_by_side::Options),
    /// A proxy between two ends: by read and write on Linux, spliced by a module on Towpath (root; needs clang).
    Splice(side_by_side::Options),
    /// An echo's rate while frames are captured: tcpdump beside Linux, `towpath capture` beside Towpath (root).
    Capture(captured::Options),
    /// Requests of 32 bytes to 2 KiB in one direction, with 250 and 1,000 cycles of work for each at the server.
    Work(side_by_side::Options),
    /// One request per connection, 32 at a time and one after the other, and the time to connect.
    Connections(side_by_side::Options),
    /// Two programs of this host: Linux's loopback device, the stack, and joined directly. Needs no root.
    Direct(direct::Options),
    /// 100,000 connections that take turns, beside 1,000 (root).
    Many(many_connections::Options),
    /// An established transfer while its listener is flooded with SYNs (root).
    Flood(syn_flood::Options),
    /// The service's memory for an idle connection, whose rings have been given back (root).
    Memory(service_memory::Options),
    /// Latency of an open loop up to p99.9, since a request was due, at 15, 50 and 80 % of what both stacks carry.
    Latency(latency::Options),
    /// Sends of 64 bytes to 64 KiB, a request's time, and files by sendfile and by nginx with TLS: Linux's own calls
    /// beside the kernel stack, over a veth, and beside the kernel stack in a second kernel.
    Offload(offload::Options),
    /// Instructions per 64-byte echo request in the fast path and in the socket library, counted by callgrind over the
    /// in-memory port. Stable from run to run; needs valgrind, not root.
    Instructions(instructions::Options),
    /// What each stage takes of one connection's frames, what a hand-over between two CPUs costs, and what more CPUs could have.
    /// Two threads are measured beside one. Needs two idle CPUs and valgrind, not root.
    Stages(stages::Options),
    /// What a module costs a frame: instructions counted by callgrind, and time beside the kernel's own run of the program
    /// (root; needs valgrind and clang). What the module that splices gains a proxy, as `splice` measures it.
    Modules(modules::Options),
    /// One bulk connection through `towpath-impair` over eight bad paths: loss, bursts, reordering. Both stacks send to
    /// Linux.
    Loss(loss::Options),
    /// How evenly many flows share one port. 50 to 500 are real, through `towpath-impair`, Linux beside Towpath (root).
    /// 50 to 2,000 are simulated, at 40 Gbit/s.
    Fairness(fairness::Options),
    /// One host asks many for 64 KiB at once: real ones through `towpath-impair`, Linux beside Towpath (root), and
    /// simulated ones.
    Incast(incast::Options),
    /// CPUs that only receive: none, a fixed number, or as many as the scaling policy chooses, for two architectures of
    /// server (root).
    #[command(name = "anp")]
    ReceiveCpus(rxcpus::Options),
    /// A service with room for several cores while the load goes up and down: cores and p99 over time (root).
    Cores(service_cores::Options),
    /// Requests per second over the number of the server's CPUs, Linux beside splits of them between cores and program
    /// (root).
    Throughput(throughput::Options),
}

fn main() -> ExitCode {
    match run(&Arguments::parse().benchmark) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "towpath bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a benchmark. The error's text says how to help it.
fn run(benchmark: &Benchmark) -> io::Result<()> {
    match benchmark {
        Benchmark::All(options) => return all::run(options),
        Benchmark::Report(options) => return report::run(options),
        Benchmark::Echo(options) => side_by_side::print(options, "64-byte echo", &echo::run(options)?),
        Benchmark::Redis(options) => side_by_side::print(options, "redis-benchmark", &redis::run(options)?),
        Benchmark::Bulk(options) => {
            side_by_side::print(options, "iperf3, 1 connection (bytes/s)", &bulk::run(options)?)
        }
        Benchmark::Splice(options) => {
            side_by_side::print(options, "a proxy, 1 connection (bytes/s)", &spliced_proxy::run(options)?)
        }
        Benchmark::Work(options) => {
            side_by_side::print(options, "requests in one direction, with work for each", &work::run(options)?)
        }
        Benchmark::Connections(options) => {
            side_by_side::print(options, "one request per connection", &connections::run(options)?)
        }
        Benchmark::Capture(options) => return captured::run(options),
        Benchmark::Direct(options) => return direct::run(options),
        Benchmark::Many(options) => return many_connections::run(options),
        Benchmark::Flood(options) => return syn_flood::run(options),
        Benchmark::Memory(options) => return service_memory::run(options),
        Benchmark::Latency(options) => return latency::run(options),
        Benchmark::Offload(options) => return offload::run(options),
        Benchmark::Instructions(options) => return instructions::run(options),
        Benchmark::Stages(options) => return stages::run(options),
        Benchmark::Modules(options) => return modules::run(options),
        Benchmark::Loss(options) => return loss::run(options),
        Benchmark::Fairness(options) => return fairness::run(options),
        Benchmark::Incast(options) => return incast::run(options),
        Benchmark::ReceiveCpus(options) => return rxcpus::run(options),
        Benchmark::Cores(options) => return service_cores::run(options),
        Benchmark::Throughput(options) => return throughput::run(options),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
