//! The differences between the kinds of machine: the root file system, and the names of the lines, the memory and the
//! network interface.

use super::mounts;
use crate::machine::MachineKind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Modules of UML, dependencies first: IPv6, BBR, and TLS with its usual ciphers.
const MODULES: [&str; 9] = [
    "lib/crc-ccitt",
    "net/ipv6/ipv6",
    "net/ipv4/tcp_bbr",
    "crypto/ctr",
    "crypto/gf128mul",
    "crypto/ghash-generic",
    "crypto/gcm",
    "crypto/ccm",
    "net/tls/tls",
];
/// Vendor and device number of ivshmem.
const IVSHMEM: (&str, &str) = ("0x1af4", "0x1110");
/// How long the host may take to open its end of a line.
const LINE: Duration = Duration::from_secs(10);

/// Enters the host's root file system. UML has it from the start.
pub fn enter(kind: MachineKind) -> io::Result<()> {
    match kind {
        MachineKind::Uml => Ok(()),
        MachineKind::Qemu => mounts::enter_host(),
    }
}

/// Loads the modules that the kernel does not contain and our programs need.
pub fn modules(kind: MachineKind) {
    match kind {
        MachineKind::Uml => MODULES.into_iter().for_each(mounts::uml_module),
        MachineKind::Qemu => {}
    }
}

/// The line of the messages.
pub fn messages(kind: MachineKind) -> io::Result<OwnedFd> {
    match kind {
        MachineKind::Uml => mounts::serial("/dev/ttyS0"),
        MachineKind::Qemu => port("messages"),
    }
}

/// The line of the notifications.
pub fn wake_line(kind: MachineKind) -> io::Result<OwnedFd> {
    match kind {
        MachineKind::Uml => mounts::serial("/dev/ttyS1"),
        MachineKind::Qemu => port("wakes"),
    }
}

/// The file with the regions.
pub fn memory(kind: MachineKind) -> io::Result<File> {
    let path = match kind {
        MachineKind::Uml => PathBuf::from("/dev/mmapper"),
        MachineKind::Qemu => bar()?,
    };
    File::options().read(true).write(true).open(path)
}

/// The network interface.
pub fn interface(kind: MachineKind) -> &'static str {
    match kind {
        MachineKind::Uml => "vec0",
        MachineKind::Qemu => "eth0",
    }
}

fn entries(directory: &str) -> impl Iterator<Item = PathBuf> {
    Path::new(directory).read_dir().into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()))
}

fn says(path: &Path, text: &str) -> bool {
    std::fs::read_to_string(path).is_ok_and(|content| content.trim() == text)
}

/// The virtio-console port of a name, once the host has opened it too. Before that, a read would report that the host
/// is gone.
fn port(name: &str) -> io::Result<OwnedFd> {
    let ports = || entries("/sys/class/virtio-ports").find(|port| says(&port.join("name"), name));
    let until = Instant::now() + LINE;
    let wait = || {
        std::thread::sleep(Duration::from_millis(2));
        if Instant::now() < until { Ok(()) } else { Err(io::Error::from(io::ErrorKind::TimedOut)) }
    };
    let found = loop {
        match ports() {
            Some(found) => break Path::new("/dev").join(found.file_name().unwrap_or_default()),
            None => wait()?,
        }
    };
    let line = rustix::fs::open(&found, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    loop {
        let mut waiting = [PollFd::new(&line, PollFlags::OUT)];
        poll(&mut waiting, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        if !waiting[0].revents().contains(PollFlags::HUP) {
            return Ok(line);
        }
        wait()?;
    }
}

/// The device's memory as a file. Not `resource2_wc`: combined stores arrive in another order, and the rings need
/// theirs.
fn bar() -> io::Result<PathBuf> {
    let is = |device: &PathBuf| says(&device.join("vendor"), IVSHMEM.0) && says(&device.join("device"), IVSHMEM.1);
    let device = entries("/sys/bus/pci/devices").find(is);
    let device = device.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "there is no ivshmem device"))?;
    // Enables the device's loads and stores.
    std::fs::write(device.join("enable"), "1")?;
    Ok(device.join("resource2"))
}
