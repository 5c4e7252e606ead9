//! What differs from machine to machine: where the root file system comes from, and under what names a card has its lines, its memory
//! and its network card.

use super::init;
use crate::machine::Kind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Modules of UML, in the order in which they need each other: IPv6, BBR, and TLS with the ciphers that it is used with.
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
/// Vendor and device of ivshmem, and the register that is the memory.
const IVSHMEM: (&str, &str) = ("0x1af4", "0x1110");
/// How long the host may take to open its end of a line.
const LINE: Duration = Duration::from_secs(10);

/// Gets at the root file system: UML has it from the start.
pub fn enter(kind: Kind) -> io::Result<()> {
    match kind {
        Kind::Uml => Ok(()),
        Kind::Qemu => init::enter_host(),
    }
}

/// Loads what the kernel does not have in itself, and a program of ours wants.
pub fn modules(kind: Kind) {
    match kind {
        Kind::Uml => MODULES.into_iter().for_each(init::uml_module),
        Kind::Qemu => {}
    }
}

/// The line of the messages.
pub fn messages(kind: Kind) -> io::Result<OwnedFd> {
    match kind {
        Kind::Uml => init::serial("/dev/ttyS0"),
        Kind::Qemu => port("messages"),
    }
}

/// The line of the bells.
pub fn bells(kind: Kind) -> io::Result<OwnedFd> {
    match kind {
        Kind::Uml => init::serial("/dev/ttyS1"),
        Kind::Qemu => port("bells"),
    }
}

/// The file with the regions.
pub fn memory(kind: Kind) -> io::Result<File> {
    let path = match kind {
        Kind::Uml => PathBuf::from("/dev/mmapper"),
        Kind::Qemu => bar()?,
    };
    File::options().read(true).write(true).open(path)
}

/// The network card.
pub fn interface(kind: Kind) -> &'static str {
    match kind {
        Kind::Uml => "vec0",
        Kind::Qemu => "eth0",
    }
}

fn entries(directory: &str) -> impl Iterator<Item = PathBuf> {
    Path::new(directory).read_dir().into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()))
}

fn says(path: &Path, text: &str) -> bool {
    std::fs::read_to_string(path).is_ok_and(|content| content.trim() == text)
}

/// The port of a name (virtio-console), when the host has it open too: before that a read says that the host has gone.
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

/// The memory of the device, as the kernel shows it. Not `resource2_wc`: stores that are combined come in another order, and the rings
/// need theirs.
fn bar() -> io::Result<PathBuf> {
    let is = |device: &PathBuf| says(&device.join("vendor"), IVSHMEM.0) && says(&device.join("device"), IVSHMEM.1);
    let device = entries("/sys/bus/pci/devices").find(is);
    let device = device.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "there is no ivshmem device"))?;
    // It answers to loads and stores from here on.
    std::fs::write(device.join("enable"), "1")?;
    Ok(device.join("resource2"))
}
