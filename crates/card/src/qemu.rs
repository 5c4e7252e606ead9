//! A guest of QEMU: a Linux kernel on a machine of its own, with the regions in a PCI device (ivshmem).
//!
//! It stands in for a network card with processors on it: the device's second base address register (BAR) is the file with the
//! regions, so everything between the two kernels is loads and stores on a bus. It needs no image: it starts a kernel of this host's, or
//! one that is named, with an initial RAM disk that [`crate::initramfs`] makes; its root file system is this host's by 9P, read-only.

use crate::initramfs;
use crate::machine::inherited::{DOORBELLS, MEMORY, MESSAGES, WAKES, WIRE};
use crate::machine::{MachineConfig, Wire, find};
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The program.
pub const PROGRAM: &str = "qemu-system-x86_64";
/// What to install.
pub const PACKAGE: &str = "qemu-system-x86";
/// Most bytes of shared memory that it can have: a BAR of this size has its place whatever the processor.
pub const MEMORY_BYTES: u64 = 2 << 30;
/// Where kernels are looked for: in `boot` there, with their modules in `lib/modules`.
const ROOTS: [&str; 2] = ["/", "/usr/lib/towpath/kernel"];
/// What TCG imitates, if the host's processor cannot run a kernel beside its own: what x86-64-v2 has, without instructions that are
/// quick on a processor and slow in an imitation (`rep movsb`, AVX).
const PROCESSOR: &str = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt";

/// A kernel to start.
struct Image {
    file: PathBuf,
    /// Its modules and their `modules.dep`.
    modules: PathBuf,
}

/// What starts it.
pub(crate) fn command(config: &MachineConfig, memory_bytes: u64, scratch: &Path) -> io::Result<Command> {
    let program = find(config.program.as_deref(), PROGRAM, PACKAGE)?;
    let image = match &config.kernel {
        Some(file) => named(file)?,
        None => newest()?,
    };
    let disk = scratch.join("initramfs");
    std::fs::write(&disk, initramfs::make(&config.init, &image.modules)?)?;
    // QEMU opens a pipe by two names.
    symlink(format!("/proc/self/fd/{DOORBELLS}"), scratch.join("bells.in"))?;
    symlink(format!("/proc/self/fd/{WAKES}"), scratch.join("bells.out"))?;
    let mut command = Command::new(program);
    command.env_clear().env("HOME", scratch).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio"]);
    // Whoever breaks out of the guest starts nothing and gains no privileges.
    command.args(["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"]);
    command.args(["-M", "q35", "-m", &config.memory_mib.to_string()]);
    let unpacked = scratch.join("kernel");
    let kernel = if virtualises() {
        command.args(["-accel", "kvm", "-accel", "tcg", "-cpu", "max"]);
        image.file
    } else {
        command.args(["-accel", "tcg", "-cpu", PROCESSOR]);
        if crate::image::unpack(&image.file, &unpacked)? { unpacked } else { image.file }
    };
    command.args(devices(config, memory_bytes, scratch)?);
    command.arg("-kernel").arg(kernel).arg("-initrd").arg(disk);
    let (address, gateway) = (config.address.as_deref().unwrap_or("-"), config.gateway.as_deref().unwrap_or("-"));
    let given = format!("{} {} {address} {gateway} {}", crate::guest::ARGUMENT, config.kind.name(), config.cores);
    // On a busy host an imitated processor has its timer's interrupts late, and a kernel that checks them panics.
    let kernel = "console=ttyS0 quiet loglevel=4 panic=-1 no_timer_check rdinit=/init";
    command.arg("-append").arg(format!("{kernel} -- {given}"));
    Ok(command)
}

/// Its devices: the memory, the two lines, the files, the wire.
fn devices(config: &MachineConfig, memory_bytes: u64, scratch: &Path) -> io::Result<Vec<OsString>> {
    let file = format!("id=rings,share=on,size={memory_bytes},mem-path=/proc/self/fd/{MEMORY}");
    let mut bells = OsString::from("pipe,id=bells,path=");
    bells.push(scratch.join("bells"));
    let mut words: Vec<OsString> = Vec::new();
    let mut add = |flag: &str, value: OsString| words.extend([flag.into(), value]);
    add("-object", format!("memory-backend-file,{file}").into());
    add("-device", "ivshmem-plain,memdev=rings".into());
    add("-device", "virtio-serial-pci".into());
    add("-chardev", format!("socket,id=messages,fd={MESSAGES}").into());
    add("-device", "virtserialport,chardev=messages,name=messages".into());
    add("-chardev", bells);
    add("-device", "virtserialport,chardev=bells,name=bells".into());
    add("-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap".into());
    add("-device", "virtio-9p-pci,fsdev=root,mount_tag=root".into());
    let wire = match &config.wire {
        Wire::None => None,
        Wire::Tap(name) => Some(format!("tap,id=wire,ifname={name},script=no,downscript=no")),
        Wire::Socket(_) => Some(format!("dgram,id=wire,local.type=fd,local.str={WIRE}")),
    };
    if let Some(wire) = wire {
        add("-netdev", wire.into());
        // Nothing boots from it.
        add("-device", format!("virtio-net-pci,netdev=wire,romfile=,mac={}", station()?).into());
    }
    Ok(words)
}

/// An address of its own on the wire (QEMU would give every guest the same), the same each time that it is started again: its
/// neighbours know it by that.
fn station() -> io::Result<String> {
    static OWN: OnceLock<[u8; 3]> = OnceLock::new();
    let mut drawn = [0u8; 3];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut drawn)?;
    let own = OWN.get_or_init(|| drawn);
    Ok(format!("52:54:00:{:02x}:{:02x}:{:02x}", own[0], own[1], own[2]))
}

/// Can the host's processor run other kernels? (`/dev/kvm` alone may be there without.)
fn virtualises() -> bool {
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let able = processor.split_whitespace().any(|word| word == "vmx" || word == "svm");
    able && std::fs::File::options().read(true).write(true).open("/dev/kvm").is_ok()
}

/// A kernel that somebody names: `boot/vmlinuz-RELEASE`, with `lib/modules/RELEASE` beside `boot`, or this host's.
fn named(file: &Path) -> io::Result<Image> {
    let missing = |what: String| io::Error::new(io::ErrorKind::NotFound, what);
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let release = name.split_once('-').map(|(_, release)| release);
    let release = release.ok_or_else(|| missing(format!("{} is not called vmlinuz-RELEASE", file.display())))?;
    std::fs::File::open(file).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))?;
    let beside = file.parent().and_then(Path::parent);
    let roots = beside.into_iter().chain(ROOTS.map(Path::new));
    let modules =
        roots.map(|root| root.join("lib/modules").join(release)).find(|dir| dir.join("modules.dep").is_file());
    let modules = modules.ok_or_else(|| missing(format!("there is no lib/modules/{release}/modules.dep")))?;
    Ok(Image { file: file.into(), modules })
}

/// The kernel that runs here, if its file is to be had; else the last that is, by name.
fn newest() -> io::Result<Image> {
    let running = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let running = format!("vmlinuz-{}", running.trim());
    let mut all: Vec<PathBuf> = ROOTS
        .iter()
        .filter_map(|root| Path::new(root).join("boot").read_dir().ok())
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-")))
        .collect();
    all.sort_by_key(|path| (path.ends_with(&running), path.clone()));
    let found = all.iter().rev().find_map(|path| named(path).ok());
    let text = "no Linux kernel with its modules in /boot: apt-get install linux-image-amd64, or `scripts/setup guest`, which only \
                unpacks one";
    found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, text))
}
