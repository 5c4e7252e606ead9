//! User-mode Linux: a Linux kernel that is an ordinary process.
//!
//! It needs no disk image and no privileges. Its root file system is this host's, read-only, and its first program is
//! one of our binaries. The serial lines are inherited descriptors with fixed numbers.

use crate::machine::inherited::{DOORBELLS, MEMORY, MESSAGES, WAKES, WIRE};
use crate::machine::{MachineConfig, Wire, find};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program, from Debian's package below.
pub const PROGRAM: &str = "linux.uml";
/// Debian's package.
pub const PACKAGE: &str = "user-mode-linux";
/// Most bytes of shared memory: UML counts them in 31 bits.
pub const MEMORY_BYTES: u64 = i32::MAX as u64;
/// The library that is preloaded into it.
pub const SHIM: &str = "libtowpath_uml.so";

/// The library to preload: beside our binary, or in `../lib/towpath`.
fn shim(init: &Path) -> Option<PathBuf> {
    let dir = init.parent()?;
    [dir.join(SHIM), dir.join("../lib/towpath").join(SHIM)].into_iter().find(|path| path.is_file())
}

/// The command that starts the guest.
pub(crate) fn command(config: &MachineConfig, scratch: &Path) -> io::Result<Command> {
    let mut command = Command::new(find(config.program.as_deref(), PROGRAM, PACKAGE)?);
    command.args(arguments(config, scratch));
    command.env_clear().env("HOME", scratch).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    if let Some(shim) = shim(&config.init) {
        command.env("LD_PRELOAD", shim);
    }
    Ok(command)
}

/// Its command line.
fn arguments(config: &MachineConfig, scratch: &Path) -> Vec<OsString> {
    let mut line: Vec<OsString> = vec![format!("mem={}M", config.memory_mib).into()];
    line.extend(
        ["rootfstype=hostfs", "rootflags=/", "ro", "con=null", "con0=null,fd:1", "ssl=null"].map(OsString::from),
    );
    line.push(format!("ssl0=fd:{MESSAGES}").into());
    line.push(format!("ssl1=fd:{DOORBELLS},fd:{WAKES}").into());
    line.push(format!("iomem=mmapper,/proc/self/fd/{MEMORY}").into());
    let wire = match &config.wire {
        Wire::None => None,
        Wire::Tap(name) => Some(format!("vec0:transport=tap,ifname={name},depth=128,gro=1")),
        Wire::Socket(_) => Some(format!("vec0:transport=fd,fd={WIRE},vec=0")),
    };
    line.extend(wire.map(OsString::from));
    for (name, path) in [("uml_dir=", scratch), ("init=", config.init.as_path())] {
        let mut word = OsString::from(name);
        word.push(path);
        line.push(word);
    }
    line.extend(
        ["umid=guest", "quiet", "loglevel=4", "--", super::INIT_ARGUMENT, config.kind.name()].map(OsString::from),
    );
    line.push(config.address.as_deref().unwrap_or("-").into());
    line.push(config.gateway.as_deref().unwrap_or("-").into());
    line.push(config.cores.to_string().into());
    line
}
