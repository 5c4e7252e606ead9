//! Requests in one direction, with work for each at the server: how much of a CPU the stack leaves to the program.

use crate::programs::{json_report, number, rpc};
use crate::side_by_side::{Measured, Options, Row, Server, compare};
use crate::veth_pair::{SERVER, Side, VethPair};
use std::io;

/// Bytes of a request.
const SIZES: [u32; 4] = [32, 128, 512, 2048];
/// Cycles of work for a request.
const CYCLES: [u32; 2] = [250, 1000];

/// All shapes, or the one asked for. A shape is called `32B-250`: bytes and cycles.
pub fn run(options: &Options) -> io::Result<Vec<Row>> {
    let (rpc, pair) = (rpc()?, VethPair::new()?);
    let address = format!("{SERVER}:9032");
    let mut rows = Vec::new();
    for (bytes, cycles) in SIZES.into_iter().flat_map(|bytes| CYCLES.map(|cycles| (bytes, cycles))) {
        let shape = format!("{bytes}B-{cycles}");
        if !options.wants(&shape) {
            continue;
        }
        let (size, work) = (bytes.to_string(), cycles.to_string());
        let words = ["worker", &address, "--bytes", &size, "--cycles", &work];
        let words = std::iter::once(rpc.clone().into()).chain(words.map(Into::into)).collect();
        let server = Server { words, ready: "ready" };
        rows.extend(compare(&pair, options.rounds, &shape, &server, |pair, _| {
            // One write holds many requests, so that the client is not the limit.
            let mut client = pair.command(Side::Client, &[rpc.as_os_str(), "sends".as_ref(), address.as_ref()]);
            client.args(["--bytes", "65536", "--seconds", &options.seconds.to_string()]);
            let report = json_report(&client.output()?, "the client")?;
            let requests_per_s = number(&report, "bytes_per_s")? / f64::from(bytes);
            Ok(Measured {
                requests_per_s,
                p50_us: f64::NAN,
                p99_us: f64::NAN,
                p999_us: f64::NAN,
                requests_total: requests_per_s * number(&report, "seconds")?,
            })
        })?);
    }
    Ok(rows)
}
