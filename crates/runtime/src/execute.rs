//! Runs a program in a stack's kernel, to look at it or to set it up.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

/// Most bytes that are kept of each of the two outputs.
const OUTPUT_BYTES: usize = 1 << 20;

/// The default `PATH`. A kernel gives its first program none, and the programs that set up networks are in `sbin`.
const SEARCHED: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The result of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Executed {
    /// Its exit code; 128 plus the signal's number if it was killed.
    pub code: i32,
    /// Its standard output, the first MiB.
    pub out: Vec<u8>,
    /// Its standard error, likewise.
    pub err: Vec<u8>,
}

/// Runs a program and waits for it. It has the network namespace of this thread, and no input.
pub fn execute(words: &[String]) -> io::Result<Executed> {
    let (program, rest) = words.split_first().ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    let path = std::env::var_os("PATH").unwrap_or_else(|| SEARCHED.into());
    let output = Command::new(program).args(rest).env("PATH", path).stdin(Stdio::null()).output()?;
    let cut = |mut bytes: Vec<u8>| {
        bytes.truncate(OUTPUT_BYTES);
        bytes
    };
    let code = output.status.code().unwrap_or_else(|| 128 + output.status.signal().unwrap_or(0));
    Ok(Executed { code, out: cut(output.stdout), err: cut(output.stderr) })
}
