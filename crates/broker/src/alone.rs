//! Tests in a process of their own: what they do to their process, they do to no other test's.
#![allow(clippy::unwrap_used)]

use nix::sys::signal::{SigSet, Signal};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Is this the process of the test of this name? If not, that one is run, and must succeed. The signals that end a service
/// are blocked in all of its threads.
pub fn alone(name: &str) -> bool {
    const CHILD: &str = "BROKER_TEST_ALONE";
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(CHILD, "1").stdin(Stdio::null());
    // SAFETY: only a system call is made.
    unsafe {
        child.pre_exec(|| {
            let signals: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
            signals.thread_block().map_err(Into::into)
        });
    }
    let output = child.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 passed"), "there is no test {name}: {said}");
    false
}
