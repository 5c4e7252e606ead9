//! An unmodified redis-server under redis-benchmark.

use crate::side_by_side::{Measured, Options, Row, Server, compare};
use crate::veth_pair::{SERVER, Side, VethPair};
use std::io;

/// Name, test, connections, pipeline depth, requests at 1 s.
const SHAPES: [(&str, &str, u32, u32, f64); 4] = [
    ("get-c50-P1", "get", 50, 1, 60_000.0),
    ("set-c50-P1", "set", 50, 1, 60_000.0),
    ("get-c50-P16", "get", 50, 16, 500_000.0),
    ("set-c50-P16", "set", 50, 16, 400_000.0),
];

/// All shapes, or the one asked for.
pub fn run(options: &Options) -> io::Result<Vec<Row>> {
    let pair = VethPair::new()?.with_port(options.port.as_deref())?;
    let line = format!("redis-server --bind {SERVER} --port 9001 --save --appendonly no --protected-mode no");
    let words = line.split_whitespace().map(Into::into).collect();
    let server = Server { words, ready: "Ready to accept connections" };
    let mut rows = Vec::new();
    for (shape, test, connections, depth, per_second) in SHAPES {
        if !options.wants(shape) {
            continue;
        }
        let requests = (per_second * options.seconds) as u64;
        rows.extend(compare(&pair, options.rounds, shape, &server, |pair, _| {
            let line = format!(
                "redis-benchmark -h {SERVER} -p 9001 -t {test} -c {connections} -P {depth} -n {requests} --csv"
            );
            let words: Vec<&str> = line.split_whitespace().collect();
            let output = pair.command(Side::Client, &words).output()?;
            measured(&String::from_utf8_lossy(&output.stdout), requests as f64).ok_or_else(|| {
                io::Error::other(format!("redis-benchmark: {}", String::from_utf8_lossy(&output.stderr)))
            })
        })?);
    }
    Ok(rows)
}

/// The report of `redis-benchmark --csv`. Its columns: test, rps, avg, min, p50, p95, p99, max (ms).
pub fn measured(csv: &str, requests: f64) -> Option<Measured> {
    let line = csv.lines().nth(1)?;
    let fields: Vec<f64> = line.split(',').skip(1).filter_map(|field| field.trim_matches('"').parse().ok()).collect();
    let ms = |index: usize| fields.get(index).map(|value| value * 1000.0);
    Some(Measured {
        requests_per_s: *fields.first()?,
        p50_us: ms(3)?,
        p99_us: ms(5)?,
        // redis-benchmark gives no p99.9.
        p999_us: f64::NAN,
        requests_total: requests,
    })
}
