//! The service's memory for an idle connection, whose rings have been given back.

use crate::process::Process;
use crate::programs::{rpc, run_on};
use crate::veth_pair::{SERVER, Side, VethPair};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use towpath_bench_report::{median, print_json};

/// Connections that are there before, so that nothing is counted which the first ones bring along.
const BEFORE: usize = 1000;
/// Bytes of the request and of the reply that each has carried.
const BYTES: &str = "16384";
/// After this time without data a connection gives back what its rings hold.
const IDLE: Duration = Duration::from_millis(500);
/// A connection asks whether it may, in waits that come within a second, so nothing is over before this time.
const LEAST: Duration = Duration::from_secs(4);
/// A sum that does not change for this long is the last one.
const STILL: Duration = Duration::from_millis(1500);
/// How long it may go on changing.
const LONGEST_CHANGE: Duration = Duration::from_secs(30);
/// How long the connections may take.
const OPENING: Duration = Duration::from_secs(180);

/// Arguments of `towpath bench memory`.
#[derive(clap::Args)]
#[command(
    after_help = "Root. One program under the service has 1,000 connections of a Linux client, and then so many more. Each carries one \
    request of 16 KiB. Then all are idle, and the service's memory is looked at when it has stopped changing: what its processes \
    have for themselves, and the regions that it shares with programs. The growth is divided by the connections. Descriptors and page \
    tables are the kernel's; the latter stand in a column of their own.\n\n\
    Examples:\n  towpath bench memory\n  towpath bench memory --connections 4000 --rounds 1 --json"
)]
pub struct Options {
    /// One JSON object instead of the table
    #[arg(long)]
    json: bool,
    /// Rounds, each with a service of its own; the median counts
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Connections that are counted
    #[arg(long, default_value_t = 6000, value_parser = clap::value_parser!(u32).range(100..=7000))]
    connections: u32,
}

#[derive(Serialize)]
struct Row {
    shape: &'static str,
    stack: &'static str,
    connections: u32,
    /// The median of each value of the rounds.
    #[serde(flatten)]
    median: Round,
    rounds: Vec<Round>,
}

/// Bytes for one connection.
#[derive(Clone, Copy, Serialize)]
struct Round {
    /// The service's own memory and its share of the regions, idle.
    bytes: f64,
    /// Of that: memory that only its processes have.
    own_bytes: f64,
    /// Of that: pages of the regions, which the programs see, too.
    region_bytes: f64,
    /// The kernel's page tables of the service's processes.
    page_table_bytes: f64,
    /// `bytes` before the rings were given back.
    busy_bytes: f64,
}

/// The memory of a service, in bytes.
#[derive(Clone, Copy, Default, PartialEq)]
struct Memory {
    own: f64,
    regions: f64,
    page_tables: f64,
}

/// Runs it and prints the row.
pub fn run(options: &Options) -> io::Result<()> {
    let mut rounds = Vec::new();
    for round in 0..options.rounds.max(1) {
        eprint!("\rround {} of {}        ", round + 1, options.rounds);
        rounds.push(one(options.connections)?);
    }
    eprint!("\r{:60}\r", "");
    let of = |field: fn(&Round) -> f64| median(rounds.iter().map(field));
    let median = Round {
        bytes: of(|round| round.bytes),
        own_bytes: of(|round| round.own_bytes),
        region_bytes: of(|round| round.region_bytes),
        page_table_bytes: of(|round| round.page_table_bytes),
        busy_bytes: of(|round| round.busy_bytes),
    };
    let (shape, stack, connections) = ("idle-connection", "towpath", options.connections);
    let row = Row { shape, stack, connections, median, rounds };
    if !print_json(options.json, &row) {
        println!("bytes for one of {connections} idle connections; median of {} rounds", options.rounds);
        println!(
            "{:>10} {:>14} {:>14} {:>14} {:>20}",
            "idle", "of that own", "of regions", "page tables", "before giving back"
        );
        println!(
            "{:>8.0} B {:>12.0} B {:>12.0} B {:>12.0} B {:>18.0} B",
            median.bytes, median.own_bytes, median.region_bytes, median.page_table_bytes, median.busy_bytes
        );
    }
    Ok(())
}

fn one(connections: u32) -> io::Result<Round> {
    let idle = format!("idle_memory = \"{}ms\"\n", IDLE.as_millis());
    let pair = VethPair::new()?.with_config(&idle)?;
    let (rpc, address) = (rpc()?, format!("{SERVER}:9000"));
    let (service, socket) = pair.serve()?;
    let mut words = run_on(&socket)?;
    words.extend([rpc.clone().into(), "server".into(), address.clone().into()]);
    let _server = pair.start(pair.command(Side::Server, &words), "server.log", "ready")?;
    let open = |count: usize, name: &str| {
        let mut client = pair.command(Side::Client, &[rpc.as_os_str(), "turns".as_ref(), address.as_ref()]);
        client.args(["--connections", &count.to_string(), "--at-once", "64", "--bytes", BYTES]).stdin(Stdio::piped());
        Process::start_within(OPENING, client, &pair.dir().join(name), |text| text.contains("ready"))
    };
    let _before = open(BEFORE, "before.log")?;
    let before = settled(service.pid())?;
    let _counted = open(connections as usize, "counted.log")?;
    let busy = memory(service.pid())?;
    let idle = settled(service.pid())?;
    let each = |now: f64, then: f64| (now - then) / f64::from(connections);
    Ok(Round {
        bytes: each(idle.own + idle.regions, before.own + before.regions),
        own_bytes: each(idle.own, before.own),
        region_bytes: each(idle.regions, before.regions),
        page_table_bytes: each(idle.page_tables, before.page_tables),
        busy_bytes: each(busy.own + busy.regions, before.own + before.regions),
    })
}

/// The memory of a service when it has stopped changing.
fn settled(service: u32) -> io::Result<Memory> {
    let begun = Instant::now();
    let (mut last, mut since) = (memory(service)?, Instant::now());
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let now = memory(service)?;
        if now != last {
            (last, since) = (now, Instant::now());
        }
        // Rings give their memory back after some time. It stays the same until then.
        if since.elapsed() > STILL && begun.elapsed() > LEAST || begun.elapsed() > LONGEST_CHANGE {
            return Ok(last);
        }
    }
}

/// The memory of a service's processes, and of the regions that they have mapped, each once.
fn memory(service: u32) -> io::Result<Memory> {
    let (mut memory, mut regions) = (Memory::default(), BTreeMap::new());
    for pid in family(service) {
        let process = Path::new("/proc").join(pid.to_string());
        memory.own += kib(&process.join("smaps_rollup"), "Anonymous:")?;
        memory.page_tables += kib(&process.join("status"), "VmPTE:")?;
        for mapped in std::fs::read_dir(process.join("map_files"))?.flatten() {
            // A mapping may go while the list is read.
            let Ok(name) = std::fs::read_link(mapped.path()) else { continue };
            if !name.as_os_str().as_encoded_bytes().starts_with(b"/memfd:towpath") {
                continue;
            }
            let Ok(file) = std::fs::metadata(mapped.path()) else { continue };
            regions.insert((file.dev(), file.ino()), file.blocks() * 512);
        }
    }
    memory.regions = regions.values().sum::<u64>() as f64;
    Ok(memory)
}

/// A process and its children.
fn family(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for task in tasks {
        let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        all.extend(children.split_whitespace().filter_map(|word| word.parse().ok()).flat_map(family));
    }
    all
}

/// A value that a file of `/proc` has in KiB, in bytes.
fn kib(file: &Path, name: &str) -> io::Result<f64> {
    let text = std::fs::read_to_string(file)?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse::<f64>().ok());
    value.map(|value| value * 1024.0).ok_or_else(|| io::Error::other(format!("{} has no {name}", file.display())))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_process_has_memory_of_its_own() {
        let own = std::process::id();
        assert_eq!(family(own)[0], own);
        assert!(memory(own).unwrap().own > 4096.0);
        assert!(kib(Path::new("/proc/self/status"), "NoSuchThing:").is_err());
    }
}
