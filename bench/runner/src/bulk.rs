//! One iperf3 connection, to the server and back.

use crate::side_by_side::{Measured, Options, Row, Server, compare};
use crate::veth_pair::{SERVER, Side, VethPair};
use serde_json::Value;
use std::io;

/// Both directions. A request is a byte here.
pub fn run(options: &Options) -> io::Result<Vec<Row>> {
    let pair = VethPair::new()?.with_port(options.port.as_deref())?;
    let line = format!("iperf3 -s -4 -B {SERVER} -p 9002 --forceflush");
    let server = Server { words: line.split_whitespace().map(Into::into).collect(), ready: "Server listening" };
    let mut rows = Vec::new();
    for (shape, reverse) in [("receive", ""), ("send", " -R")] {
        if !options.wants(shape) {
            continue;
        }
        let seconds = options.seconds.ceil() as u64;
        rows.extend(compare(&pair, options.rounds, shape, &server, |pair, _| {
            let line = format!("iperf3 -4 -c {SERVER} -p 9002 -t {seconds} -J{reverse}");
            let words: Vec<&str> = line.split_whitespace().collect();
            let output = pair.command(Side::Client, &words).output()?;
            measured(&output.stdout)
                .ok_or_else(|| io::Error::other(format!("iperf3: {}", String::from_utf8_lossy(&output.stdout))))
        })?);
    }
    Ok(rows)
}

/// The report of `iperf3 -J`.
pub fn measured(json: &[u8]) -> Option<Measured> {
    let report: Value = serde_json::from_slice(json).ok()?;
    let received = &report["end"]["sum_received"];
    Some(Measured {
        requests_per_s: received["bits_per_second"].as_f64()? / 8.0,
        p50_us: f64::NAN,
        p99_us: f64::NAN,
        p999_us: f64::NAN,
        requests_total: received["bytes"].as_f64()?,
    })
}
