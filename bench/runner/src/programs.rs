//! The programs that benchmarks start: Towpath's own, from the folder of this one.

use serde_json::Value;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use towpath_service::programs::find;

/// The `towpath` command.
pub fn towpath() -> io::Result<PathBuf> {
    find("towpath")
}

/// The load generator.
pub fn rpc() -> io::Result<PathBuf> {
    find("towpath-rpc")
}

/// The command line that puts the program behind it on the service at `socket`.
pub fn run_on(socket: &Path) -> io::Result<Vec<OsString>> {
    let words = ["run".into(), "--require".into(), "--socket".into(), socket.into(), "--".into()];
    Ok(std::iter::once(towpath()?.into_os_string()).chain(words).collect())
}

/// The flow groups of the service at `socket`, as `towpath status --json` lists them.
pub fn status_flow_groups(socket: &Path) -> io::Result<Vec<Value>> {
    let mut command = Command::new(towpath()?);
    let output = command.args(["status", "--json", "--socket"]).arg(socket).stderr(Stdio::inherit()).output()?;
    let status: Value = serde_json::from_slice(&output.stdout).map_err(io::Error::other)?;
    status["flow_groups"].as_array().cloned().ok_or_else(|| io::Error::other("towpath status names no flow groups"))
}

/// The JSON object that a program has printed. Without one, what it said on standard error is the error.
pub fn json_report(output: &std::process::Output, program: &str) -> io::Result<Value> {
    let failed = |_| io::Error::other(format!("{program} failed: {}", String::from_utf8_lossy(&output.stderr)));
    serde_json::from_slice(&output.stdout).map_err(failed)
}

/// A number of a program's report.
pub fn number(report: &Value, name: &str) -> io::Result<f64> {
    report[name].as_f64().ok_or_else(|| io::Error::other(format!("the report has no {name}: {report}")))
}

/// Runs `ip` with these words.
pub fn ip(line: &str) -> io::Result<()> {
    let output = Command::new("ip").args(line.split_whitespace()).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("ip {line}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

/// A private directory for sockets and logs. It goes with this value.
pub struct ScratchDir(pub PathBuf);

impl ScratchDir {
    /// Makes one for a benchmark of this name.
    pub fn new(name: &str) -> io::Result<Self> {
        let dir = std::env::temp_dir().join(format!("towpath-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        Ok(Self(dir))
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
