//! The report of the `towpath doctor` that has started this `towpath run`.

use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use towpath_ring::report::{self, HookMethod, Report};

/// Enters a program that is not served, and why. Without a doctor it does nothing.
pub fn not_served(program: &Path, why: &str) {
    let Some(place) = std::env::var_os(report::VARIABLE) else { return };
    let memfd = rustix::fs::open(place, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let Some(report) = memfd.ok().and_then(|memfd| Report::map(memfd.as_fd()).ok()) else { return };
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get() as u32);
    report.enter(std::process::id(), parent, HookMethod::None, program.as_os_str().as_bytes(), why.as_bytes());
}
