//! The kernel stack beside the kernel's own calls: sends and requests ([`goodput`]), and files ([`files`]).

mod files;
mod goodput;

use std::io;

/// Arguments of `towpath bench offload`.
#[derive(clap::Args)]
pub struct Options {
    /// One JSON object per row instead of the table
    #[arg(long)]
    json: bool,
    /// Measured seconds of one run
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Rounds of all variants; the median counts
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only sends of this many bytes (0: only the request's time)
    #[arg(long)]
    bytes: Option<usize>,
    /// Only this part of it
    #[arg(long)]
    only: Option<Part>,
}

/// A part of the benchmark.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Sends of several sizes, and a request's time.
    Goodput,
    /// A file by `sendfile`.
    Sendfile,
    /// A file of nginx's by TLS.
    Tls,
}

/// Runs it and prints the rows.
pub fn run(options: &Options) -> io::Result<()> {
    // A size of sends asks for nothing else.
    let only = options.only.or(options.bytes.map(|_| Part::Goodput));
    let wanted = |part| only.is_none_or(|only| only == part);
    if wanted(Part::Goodput) {
        goodput::run(options)?;
    }
    if wanted(Part::Sendfile) {
        files::sendfile(options)?;
    }
    if wanted(Part::Tls) {
        files::tls(options)?;
    }
    Ok(())
}

/// Runs each variant once in every round. The result has each variant's runs.
fn rounds<const N: usize, Variant, Run>(
    options: &Options,
    shape: &str,
    variants: &[Variant; N],
    name: impl Fn(&Variant) -> &str,
    mut one: impl FnMut(&Variant) -> io::Result<Run>,
) -> io::Result<[Vec<Run>; N]> {
    let mut runs = [const { Vec::new() }; N];
    for round in 0..options.rounds.max(1) {
        for (variant, runs) in variants.iter().zip(&mut runs) {
            eprint!("\r{shape}: round {} of {}, {}        ", round + 1, options.rounds, name(variant));
            runs.push(one(variant)?);
        }
    }
    eprint!("\r{:70}\r", "");
    Ok(runs)
}
