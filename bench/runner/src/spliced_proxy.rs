//! A proxy that passes on one iperf3 connection: on Linux by `read` and `write`, on Towpath spliced by a module.

use crate::bulk::measured;
use crate::clang::clang;
use crate::side_by_side::{Options, Row, Server, compare};
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

/// Client and server of iperf3 share the client's CPU, and the proxy has the server's. A request is a byte here.
pub fn run(options: &Options) -> io::Result<Vec<Row>> {
    let pair = VethPair::new()?.with_port(options.port.as_deref())?;
    let dir = pair.dir().to_owned();
    HEADERS.iter().try_for_each(|(name, text)| std::fs::write(dir.join(name), text))?;
    let pair = pair.with_module(clang("splice", MODULE, &dir)?);
    let line = format!("iperf3 -s -4 -B {CLIENT} -p 9002 --forceflush");
    let words: Vec<&str> = line.split_whitespace().collect();
    let _behind = pair.start(pair.command(Side::Client, &words), "iperf3.log", "Server listening")?;
    let mut words = vec![proxy(&dir)?.into_os_string()];
    words.extend(["7000", CLIENT, "9002"].map(Into::into));
    let seconds = options.seconds.ceil() as u64;
    compare(&pair, options.rounds, "bulk", &Server { words, ready: "ready" }, |pair, stack| {
        let line = format!("iperf3 -4 -c {SERVER} -p 7000 -t {seconds} -J");
        let words: Vec<&str> = line.split_whitespace().collect();
        let output = pair.command(Side::Client, &words).output()?;
        // A proxy that did not splice would be measured as something else.
        let said = std::fs::read_to_string(dir.join("server.log"))?;
        if said.contains("spliced") != (stack == "towpath") {
            return Err(io::Error::other(format!("what the proxy did is not what is measured: {}", said.trim())));
        }
        measured(&output.stdout)
            .ok_or_else(|| io::Error::other(format!("iperf3: {}", String::from_utf8_lossy(&output.stdout))))
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
