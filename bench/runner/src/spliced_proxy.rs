//! A proxy that passes on one connection: on Linux by `read` and `write`, on Towpath spliced by a module.

use crate::clang::clang;
use crate::programs::{json_report, number, rpc};
use crate::side_by_side::{Measured, Options, Row, Server, compare};
use crate::veth_pair::{CLIENT, SERVER, Side, VethPair};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The proxy, and the module with its headers.
const PROXY: &str = include_str!("../../../crates/preload/examples/splice-proxy.c");
const MODULE: &str = include_str!("../../../bpf/modules/splice.bpf.c");
const HEADERS: [(&str, &str); 2] = [
    ("towpath.h", include_str!("../../../bpf/modules/towpath.h")),
    ("splice.h", include_str!("../../../bpf/modules/splice.h")),
];

/// What the client sends, again and again. It stays in the page cache.
const FILE_BYTES: usize = 64 << 20;

/// The two ends share the client's CPU, and the proxy has the server's. One sends a file, the other drops what comes: no
/// end copies a byte, or both of them would limit the proxy. A request is a byte here.
pub fn run(options: &Options) -> io::Result<Vec<Row>> {
    let (rpc, pair) = (rpc()?, VethPair::new()?.with_port(options.port.as_deref())?);
    let dir = pair.dir().to_owned();
    HEADERS.iter().try_for_each(|(name, text)| std::fs::write(dir.join(name), text))?;
    let pair = pair.with_module(clang("splice", MODULE, &dir)?);
    let file = dir.join("sent");
    std::fs::write(&file, vec![7; FILE_BYTES])?;
    let behind = format!("{CLIENT}:9002");
    let words = [rpc.as_os_str(), "drain".as_ref(), behind.as_ref()];
    let _behind = pair.start(pair.command(Side::Client, &words), "drain.log", "ready")?;
    let mut words = vec![proxy(&dir)?.into_os_string()];
    words.extend(["7000", CLIENT, "9002"].map(Into::into));
    let (before, seconds) = (format!("{SERVER}:7000"), options.seconds.to_string());
    compare(&pair, options.rounds, "bulk", &Server { words, ready: "ready" }, |pair, stack| {
        let words = [rpc.as_os_str(), "send-file".as_ref(), before.as_ref(), file.as_os_str(), "--seconds".as_ref()];
        let output = pair.command(Side::Client, &words).arg(&seconds).output()?;
        // A proxy that did not splice would be measured as something else.
        let said = std::fs::read_to_string(dir.join("server.log"))?;
        if said.contains("spliced") != (stack == "towpath") {
            return Err(io::Error::other(format!("what the proxy did is not what is measured: {}", said.trim())));
        }
        let report = json_report(&output, "the client")?;
        Ok(Measured {
            requests_per_s: number(&report, "bytes_per_s")?,
            p50_us: f64::NAN,
            p99_us: f64::NAN,
            p999_us: f64::NAN,
            requests_total: number(&report, "bytes")?,
        })
    })
}

/// Compiles the proxy.
fn proxy(dir: &Path) -> io::Result<PathBuf> {
    let (source, program) = (dir.join("splice-proxy.c"), dir.join("splice-proxy"));
    std::fs::write(&source, PROXY)?;
    let output = Command::new("clang").args(["-O2", "-o"]).arg(&program).arg(&source).output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("clang: {}", String::from_utf8_lossy(&output.stderr))));
    }
    Ok(program)
}
