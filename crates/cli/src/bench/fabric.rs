//! The simulated experiments are a program of their own, which has the simulator in it: `towpath-fabric`, beside this one.

use super::crowd::Crowd;
use std::io;
use std::process::Command;

/// Runs that program.
pub fn run(experiment: &str, options: &Crowd) -> io::Result<()> {
    let program = std::env::current_exe()?.with_file_name("towpath-fabric");
    if !program.exists() {
        return Err(io::Error::other(format!("{} is missing: cargo build --release --workspace", program.display())));
    }
    let json = options.json.then_some("--json");
    let status = Command::new(program).arg(experiment).args(json).args(&options.simulated).status()?;
    if status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("the simulated half has failed: {status}")))
}
