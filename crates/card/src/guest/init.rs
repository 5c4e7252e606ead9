//! What an init does: file systems, lines, the network.

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, mount as mount_at};
use rustix::termios::{OptionalActions, SpecialCodeIndex};
use std::io;
use std::process::{Command, Stdio};

/// Tells the console.
pub fn say(text: &str) {
    // It is a line that the host follows; there is nowhere else to complain.
    let _ = io::Write::write_all(&mut io::stdout(), format!("towpath: {text}\n").as_bytes());
}

/// Mounts what is not the host's: processes, devices, memory for temporary files.
pub fn mount() {
    for (kind, at) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/run"), ("tmpfs", "/tmp")]
    {
        let mounted = mount_at("none", at, kind, MountFlags::empty(), None);
        // Debian's kernel has mounted /dev itself.
        if let Err(error) = mounted.or_else(|error| if kind == "devtmpfs" { Ok(()) } else { Err(error) }) {
            say(&format!("{at}: {error}"));
        }
    }
}

/// Opens a serial line as it is: bytes, without echo.
pub fn serial(path: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let line = rustix::fs::open(path, flags, Mode::empty())?;
    let mut termios = rustix::termios::tcgetattr(&line)?;
    termios.make_raw();
    termios.special_codes[SpecialCodeIndex::VMIN] = 1;
    termios.special_codes[SpecialCodeIndex::VTIME] = 0;
    rustix::termios::tcsetattr(&line, OptionalActions::Now, &termios)?;
    Ok(line)
}

/// Where Debian's package has the kernel's modules.
const MODULES: &str = "/usr/lib/uml/modules";

/// Loads a module; those that it needs must be there. Without it the kernel lacks what is in it, as it would on a host.
pub fn module(path: &str) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let file = format!("{MODULES}/{}/kernel/{path}.ko", release.trim());
    let loaded = rustix::fs::open(&file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|module| rustix::system::finit_module(module, c"", 0));
    if let Err(error) = loaded {
        say(&format!("{file}: {error}"));
    }
}

/// Sets up the loopback device and the network card.
pub fn network(address: Option<&str>, gateway: Option<&str>) -> Result<(), String> {
    ip(&["link", "set", "lo", "up"])?;
    let Some(address) = address else { return Ok(()) };
    ip(&["link", "set", "vec0", "up"])?;
    ip(&["address", "add", address, "dev", "vec0"])?;
    match gateway {
        Some(gateway) => ip(&["route", "add", "default", "via", gateway]),
        None => Ok(()),
    }
}

fn ip(words: &[&str]) -> Result<(), String> {
    let line = || format!("ip {}", words.join(" "));
    let mut command = Command::new("ip");
    command.args(words).stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("{}: {error} (apt-get install iproute2)", line()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{}: {}", line(), String::from_utf8_lossy(&output.stderr).trim()))
}

/// Ends the kernel.
pub fn power_off() {
    let _ = rustix::system::reboot(rustix::system::RebootCommand::PowerOff);
}
