//! One request per connection: how fast connections are made, used and closed.

use crate::programs::{json_report, number, rpc};
use crate::side_by_side::{Measured, Options, Row, Server, compare};
use crate::veth_pair::{SERVER, Side, VethPair};
use std::io;

/// Name, connections at a time, and what the times begin and end with: `connect` and the reply, or `connect` alone.
const SHAPES: [(&str, u32, &str); 3] = [("rpc-32", 32, ""), ("rpc-1", 1, ""), ("connect", 1, "connect_")];

/// All shapes, or the one asked for.
pub fn run(options: &Options) -> io::Result<Vec<Row>> {
    let (rpc, pair) = (rpc()?, VethPair::new()?.with_port(options.port.as_deref())?);
    // The client closes first and has the TIME-WAIT states. It must not run out of ports.
    pair.write(Side::Client, "/proc/sys/net/ipv4/ip_local_port_range", "1024 65535")?;
    pair.write(Side::Client, "/proc/sys/net/ipv4/tcp_tw_reuse", "1")?;
    let address = format!("{SERVER}:9000");
    let server = Server { words: vec![rpc.clone().into(), "server".into(), address.clone().into()], ready: "ready" };
    let mut rows = Vec::new();
    for (shape, at_once, times) in SHAPES {
        if !options.wants(shape) {
            continue;
        }
        rows.extend(compare(&pair, options.rounds, shape, &server, |pair, _| {
            let mut client = pair.command(Side::Client, &[rpc.as_os_str(), "short".as_ref(), address.as_ref()]);
            client.args(["--at-once", &at_once.to_string(), "--seconds", &options.seconds.to_string()]);
            let report = json_report(&client.output()?, "the client")?;
            let time = |quantile: &str| number(&report, &format!("{times}{quantile}_us"));
            Ok(Measured {
                requests_per_s: number(&report, "requests_per_s")?,
                p50_us: time("p50")?,
                p99_us: time("p99")?,
                p999_us: time("p999")?,
                requests_total: number(&report, "requests_total")?,
            })
        })?);
    }
    Ok(rows)
}
