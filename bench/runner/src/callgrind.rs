//! Instructions as callgrind counts them.

use std::io;
use std::path::Path;
use std::process::Command;

/// Valgrind's command line that counts only `function`.
pub fn callgrind(function: &str, out: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--quiet", "--collect-atstart=no"]);
    command.arg(format!("--toggle-collect={function}")).arg(format!("--callgrind-out-file={}", out.display()));
    command
}

/// The total of a callgrind output file divided by the requests that the program reports.
pub fn per_request(out: &Path, output: &std::process::Output) -> io::Result<f64> {
    let failed = |what: &str| io::Error::other(format!("{what}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    let report: serde_json::Value =
        serde_json::from_slice(&output.stdout).map_err(|_| failed("the counted program failed"))?;
    let requests =
        report["requests"].as_f64().filter(|&n| n > 0.0).ok_or_else(|| failed("no requests were counted"))?;
    let text = std::fs::read_to_string(out).map_err(|_| failed("callgrind wrote nothing"))?;
    let total = text
        .lines()
        .find_map(|line| line.strip_prefix("totals: ").or_else(|| line.strip_prefix("summary: ")))
        .and_then(|words| words.split_whitespace().next()?.parse::<f64>().ok())
        .filter(|&total| total > 0.0)
        .ok_or_else(|| failed("callgrind counted nothing"))?;
    Ok(total / requests)
}

/// Says how to get valgrind where it is missing.
pub fn absent(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::NotFound {
        return io::Error::other("valgrind is missing: apt-get install -y valgrind");
    }
    error
}
