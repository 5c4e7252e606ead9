//! The usual tasks of an init: file systems, serial lines, modules, the network.

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, OpenTreeFlags, mount as mount_at, open_tree};
use rustix::termios::{OptionalActions, SpecialCodeIndex};
use std::ffi::CStr;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// The default of `fs.nr_open`.
const MOST_DESCRIPTORS: u64 = 1 << 20;

/// Prints to the console.
pub fn say(text: &str) {
    // The host follows the console. There is no other place to report an error.
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

/// Raises the limit on descriptors to the kernel's maximum, because each socket takes one. A kernel starts with 1,024.
pub fn descriptors() {
    let all = rustix::process::Rlimit { current: Some(MOST_DESCRIPTORS), maximum: Some(MOST_DESCRIPTORS) };
    if let Err(error) = rustix::process::setrlimit(rustix::process::Resource::Nofile, all) {
        say(&format!("more descriptors: {error}"));
    }
}

/// The root file system without the mounts on top of it.
pub fn root() -> Option<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    open_tree(rustix::fs::CWD, "/", flags).inspect_err(|error| say(&format!("the host's files: {error}"))).ok()
}

/// Opens a serial line as raw bytes, without echo.
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

/// Where Debian's package has the modules of user-mode Linux.
const UML_MODULES: &str = "/usr/lib/uml/modules";

/// Loads a module whose dependencies are loaded. Without it the kernel lacks its function, as it would on a host.
pub fn uml_module(path: &str) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let file = format!("{UML_MODULES}/{}/kernel/{path}.ko", release.trim());
    if let Err(error) = load(Path::new(&file), 0) {
        say(&format!("{file}: {error}"));
    }
}

fn load(file: &Path, flags: i32) -> rustix::io::Result<()> {
    let module = rustix::fs::open(file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::system::finit_module(module, c"", flags)
}

/// MODULE_INIT_COMPRESSED_FILE of `linux/module.h`.
const COMPRESSED: i32 = 4;
/// Mount options of the host's file system: messages of at most 256 KiB. Reads are always asked for, because files may
/// change.
const NINE_P: &CStr = c"trans=virtio,version=9p2000.L,msize=262144,cache=mmap";

/// From the initial RAM disk to the host's root file system, read-only.
pub fn enter_host() -> io::Result<()> {
    let mut modules: Vec<_> = std::fs::read_dir("/modules")?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    modules.sort();
    for module in &modules {
        let flags = if module.extension().is_some_and(|kind| kind == "ko") { 0 } else { COMPRESSED };
        if let Err(error) = load(module, flags) {
            say(&format!("{}: {error}", module.display()));
        }
        // The RAM disk uses the guest's memory.
        let _ = std::fs::remove_file(module);
    }
    mount_at("root", "/host", "9p", MountFlags::RDONLY, NINE_P)?;
    std::env::set_current_dir("/host")?;
    rustix::mount::mount_move(".", "/")?;
    rustix::process::chroot(".")?;
    std::env::set_current_dir("/")
}

/// Configures the loopback device and the network interface.
pub fn network(interface: &str, address: Option<&str>, gateway: Option<&str>) -> Result<(), String> {
    ip(&["link", "set", "lo", "up"])?;
    let Some(address) = address else { return Ok(()) };
    ip(&["link", "set", interface, "up"])?;
    ip(&["address", "add", address, "dev", interface])?;
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

/// Powers the guest off.
pub fn power_off() {
    let _ = rustix::system::reboot(rustix::system::RebootCommand::PowerOff);
}
