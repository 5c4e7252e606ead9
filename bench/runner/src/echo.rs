//! 64-byte echo with `towpath-rpc` at both ends.

use crate::programs::{json_report, number, rpc};
use crate::side_by_side::{Measured, Options, Row, Server, compare};
use crate::veth_pair::{SERVER, Side, VethPair};
use std::io;

/// Name, connections, requests outstanding on each.
const SHAPES: [(&str, u32, u32); 6] = [
    ("c1-d1", 1, 1),
    ("c16-d1", 16, 1),
    ("c64-d1", 64, 1),
    ("c1000-d1", 1000, 1),
    ("c1-d32", 1, 32),
    ("c16-d32", 16, 32),
];

/// All shapes, or the one asked for.
pub fn run(options: &Options) -> io::Result<Vec<Row>> {
    let (rpc, pair) = (rpc()?, VethPair::new()?.with_port(options.port.as_deref())?);
    let address = format!("{SERVER}:9000");
    let server = Server { words: vec![rpc.clone().into(), "server".into(), address.clone().into()], ready: "ready" };
    let mut rows = Vec::new();
    for (shape, connections, depth) in SHAPES {
        if !options.wants(shape) {
            continue;
        }
        rows.extend(compare(&pair, options.rounds, shape, &server, |pair, _| {
            let mut client = pair.command(Side::Client, &[rpc.as_os_str(), "client".as_ref(), address.as_ref()]);
            client.args(["--connections", &connections.to_string(), "--depth", &depth.to_string()]);
            client.args(["--seconds", &options.seconds.to_string()]);
            measured(&client.output()?)
        })?);
    }
    Ok(rows)
}

/// The client's report.
pub fn measured(output: &std::process::Output) -> io::Result<Measured> {
    let report = json_report(output, "the client")?;
    Ok(Measured {
        requests_per_s: number(&report, "requests_per_s")?,
        p50_us: number(&report, "p50_us")?,
        p99_us: number(&report, "p99_us")?,
        p999_us: number(&report, "p999_us")?,
        requests_total: number(&report, "requests_total")?,
    })
}
