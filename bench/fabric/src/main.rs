//! Many senders behind one switch port, in virtual time, with the protocol code that the service runs.
#![forbid(unsafe_code)]

mod fairness;
mod incast;
mod rack;

use clap::{Args, Parser, Subcommand};
use std::process::ExitCode;
use towpath_tcp::slow::congestion::Algorithm;

/// Simulated data-centre experiments behind one switch port.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Subcommand)]
enum Experiment {
    /// Bulk flows share one port: how evenly, over windows of 100 ms.
    Fairness(fairness::Options),
    /// One host asks many for 64 KiB at once: how long until it has everything.
    Incast(incast::Options),
}

/// The rack that both experiments use.
#[derive(Args, Clone)]
struct Rack {
    /// Hosts that send.
    #[arg(long, default_value_t = 4)]
    senders: u8,
    /// Gbit/s of every wire.
    #[arg(long, default_value_t = 40.0)]
    gbit: f64,
    /// Propagation delay of one wire in µs; a round trip passes four.
    #[arg(long, default_value_t = 10)]
    delay_us: u64,
    /// Queue of each switch port in KiB.
    #[arg(long, default_value_t = 4096)]
    queue_kib: u64,
    /// The switch marks beyond this many KiB waiting (K of RFC 8257: 65 full frames at 10 Gbit/s, more at more); 0 =
    /// never.
    #[arg(long, default_value_t = 192)]
    mark_kib: u64,
    /// Congestion control.
    #[arg(long, value_parser = algorithm, default_value = "dctcp")]
    cc: Algorithm,
    /// Algorithms other than DCTCP use ECN, too (RFC 3168).
    #[arg(long)]
    ecn: bool,
    /// Seed of ports, sequence numbers and starting times.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// One JSON object per row instead of the table.
    #[arg(long)]
    json: bool,
}

fn algorithm(name: &str) -> Result<Algorithm, String> {
    Algorithm::parse(name).ok_or_else(|| {
        let known: Vec<&str> = Algorithm::NAMED.iter().map(|algorithm| algorithm.name()).collect();
        format!("no congestion control {name:?}; there are {}", known.join(", "))
    })
}

fn main() -> ExitCode {
    let done = match Arguments::parse().experiment {
        Experiment::Fairness(options) => fairness::run(&options),
        Experiment::Incast(options) => incast::run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("towpath-fabric: {error}");
            ExitCode::FAILURE
        }
    }
}
