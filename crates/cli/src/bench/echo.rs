//! 64-byte echo with `towpath-rpc` at both ends.

use super::lab::{Lab, SERVER, Side};
use super::measure::{Figures, Server, compare};
use super::{Options, Row};
use serde_json::Value;
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
    let rpc = std::env::current_exe()?.with_file_name("towpath-rpc");
    if !rpc.exists() {
        return Err(io::Error::other(format!("{} is missing: cargo build --release --workspace", rpc.display())));
    }
    let lab = Lab::new()?;
    let address = format!("{SERVER}:9000");
    let server = Server { words: vec![rpc.clone().into(), "server".into(), address.clone().into()], ready: "ready" };
    let mut rows = Vec::new();
    for (shape, connections, depth) in SHAPES {
        if options.shape.as_deref().is_some_and(|wanted| wanted != shape) {
            continue;
        }
        rows.extend(compare(&lab, options.rounds, shape, &server, |lab| {
            let mut client = lab.command(Side::Client, &[rpc.as_os_str(), "client".as_ref(), address.as_ref()]);
            client.args(["--connections", &connections.to_string(), "--depth", &depth.to_string()]);
            client.args(["--seconds", &options.seconds.to_string()]);
            figures(&client.output()?)
        })?);
    }
    Ok(rows)
}

/// What its report says.
pub fn figures(output: &std::process::Output) -> io::Result<Figures> {
    let failed = || io::Error::other(format!("the client failed: {}", String::from_utf8_lossy(&output.stderr)));
    let report: Value = serde_json::from_slice(&output.stdout).map_err(|_| failed())?;
    let field = |name: &str| report[name].as_f64().ok_or_else(failed);
    Ok(Figures {
        requests_per_s: field("requests_per_s")?,
        p50_us: field("p50_us")?,
        p99_us: field("p99_us")?,
        p999_us: field("p999_us")?,
        requests_total: field("requests_total")?,
    })
}
