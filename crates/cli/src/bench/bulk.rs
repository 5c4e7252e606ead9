//! One iperf3 connection, to the server and back.

use super::lab::{Lab, SERVER, Side};
use super::measure::{Figures, Server, compare};
use super::{Options, Row};
use serde_json::Value;
use std::io;

/// Both directions; `requests` are bytes.
pub fn run(options: &Options) -> io::Result<Vec<Row>> {
    let lab = Lab::new()?;
    let line = format!("iperf3 -s -4 -B {SERVER} -p 9002 --forceflush");
    let server = Server { words: line.split_whitespace().map(Into::into).collect(), ready: "Server listening" };
    let mut rows = Vec::new();
    for (shape, reverse) in [("receive", ""), ("send", " -R")] {
        if options.shape.as_deref().is_some_and(|wanted| wanted != shape) {
            continue;
        }
        let seconds = options.seconds.ceil() as u64;
        rows.extend(compare(&lab, options.rounds, shape, &server, |lab| {
            let line = format!("iperf3 -4 -c {SERVER} -p 9002 -t {seconds} -J{reverse}");
            let words: Vec<&str> = line.split_whitespace().collect();
            let output = lab.command(Side::Client, &words).output()?;
            figures(&output.stdout)
                .ok_or_else(|| io::Error::other(format!("iperf3: {}", String::from_utf8_lossy(&output.stdout))))
        })?);
    }
    Ok(rows)
}

/// What its report says.
pub fn figures(json: &[u8]) -> Option<Figures> {
    let report: Value = serde_json::from_slice(json).ok()?;
    let received = &report["end"]["sum_received"];
    Some(Figures {
        requests_per_s: received["bits_per_second"].as_f64()? / 8.0,
        p50_us: f64::NAN,
        p99_us: f64::NAN,
        p999_us: f64::NAN,
        requests_total: received["bytes"].as_f64()?,
    })
}
