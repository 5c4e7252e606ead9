//! A kernel of Debian's beside the one that this host runs: booted in QEMU for one script. Its processor is emulated.

use crate::Program;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Where `scripts/setup guest` unpacks Linux 6.12.
const NEWER: &str = "/usr/lib/towpath/kernel-6.12";

/// What a script in the guest has said.
pub struct Said(String);

impl Said {
    /// The line `guest: WHAT ...` without these words. Fails, with everything that was said, if there is none.
    pub fn line(&self, what: &str) -> &str {
        let prefix = format!("guest: {what} ");
        let line = self.0.lines().find_map(|line| line.trim_end().strip_prefix(&prefix));
        line.unwrap_or_else(|| panic!("{what} is missing:\n{}", self.0)).trim()
    }

    /// All of it.
    pub fn whole(&self) -> &str {
        &self.0
    }
}

/// The directory with Linux 6.12 and its modules. Fails if it is missing, and names the command that helps.
pub fn newer_kernel() -> PathBuf {
    crate::require_guest();
    let found = std::fs::read_dir(Path::new(NEWER).join("boot")).is_ok_and(|mut all| all.next().is_some());
    assert!(found, "Linux 6.12 for a guest of QEMU is missing: scripts/setup guest");
    NEWER.into()
}

/// Runs a script of `testing/system/guest` in a guest with this kernel, and waits for its end. Its first argument is the
/// kernel's directory, for `modprobe -d`.
pub fn run<S: AsRef<OsStr>>(kernel: &Path, script: &str, arguments: &[S], seconds: u64) -> Said {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest");
    let boot =
        Program::new(&[folder.join("boot")]).arg("--root").arg(kernel).arg("-").arg(folder.join(script)).arg(kernel);
    let said = arguments.iter().fold(boot, Program::arg).run(seconds);
    Said(format!("{}{}", said.out, said.err))
}
