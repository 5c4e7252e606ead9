//! A guest of QEMU: a Linux kernel on an emulated machine, with the regions in a PCI device (ivshmem).
//!
//! It stands in for a network card with its own processors. The second base address register (BAR) of the device is the
//! file with the regions. So the two kernels share nothing but loads and stores on a bus. No disk image is needed. The
//! kernel is one of this host's, or a named one, with an initial RAM disk that [`super::initramfs`] makes. The root
//! file system is this host's, by 9P, read-only.

use super::initramfs;
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
/// Debian's package.
pub const PACKAGE: &str = "qemu-system-x86";
/// Most bytes of shared memory. A BAR of this size fits whatever the processor.
pub const MEMORY_BYTES: u64 = 2 << 30;
/// Where kernels are searched: `boot` below these, with their modules in `lib/modules`.
const ROOTS: [&str; 2] = ["/", "/usr/lib/towpath/kernel"];
/// The processor that TCG emulates if the host cannot virtualise: x86-64-v2, without instructions that are slow to
/// emulate (`rep movsb`, AVX).
const PROCESSOR: &str = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt";

/// A kernel to boot.
struct Image {
    file: PathBuf,
    /// The directory with its modules and `modules.dep`.
    modules: PathBuf,
}

/// The command that starts the guest.
pub(crate) fn command(config: &MachineConfig, memory_bytes: u64, scratch: &Path) -> io::Result<Command> {
    let program = find(config.program.as_deref(), PROGRAM, PACKAGE)?;
    let image = match &config.kernel {
        Some(file) => named(file)?,
        None => newest()?,
    };
    let disk = scratch.join("initramfs");
    std::fs::write(&disk, initramfs::make(&config.init, &image.modules)?)?;
    // QEMU opens a pipe by two names.
    symlink(format!("/proc/self/fd/{DOORBELLS}"), scratch.join("wakes.in"))?;
    symlink(format!("/proc/self/fd/{WAKES}"), scratch.join("wakes.out"))?;
    let mut command = Command::new(program);
    command.env_clear().env("HOME", scratch).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio"]);
    // Code that breaks out of the guest can start no program and gain no privileges.
    command.args(["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"]);
    command.args(["-M", "q35", "-m", &config.memory_mib.to_string()]);
    let unpacked = scratch.join("kernel");
    let kernel = if virtualises() {
        command.args(["-accel", "kvm", "-accel", "tcg", "-cpu", "max"]);
        image.file
    } else {
        command.args(["-accel", "tcg", "-cpu", PROCESSOR]);
        if super::image::unpack(&image.file, &unpacked)? { unpacked } else { image.file }
    };
    command.args(devices(config, memory_bytes, scratch)?);
    command.arg("-kernel").arg(kernel).arg("-initrd").arg(disk);
    let (address, gateway) = (config.address.as_deref().unwrap_or("-"), config.gateway.as_deref().unwrap_or("-"));
    let given = format!("{} {} {address} {gateway} {}", super::INIT_ARGUMENT, config.kind.name(), config.cores);
    // On a busy host an emulated processor gets its timer interrupts late, and a kernel that checks them panics.
    let kernel = "console=ttyS0 quiet loglevel=4 panic=-1 no_timer_check rdinit=/init";
    command.arg("-append").arg(format!("{kernel} -- {given}"));
    Ok(command)
}

/// Its devices: the memory, the two lines, the files, the network interface.
fn devices(config: &MachineConfig, memory_bytes: u64, scratch: &Path) -> io::Result<Vec<OsString>> {
    let file = format!("id=rings,share=on,size={memory_bytes},mem-path=/proc/self/fd/{MEMORY}");
    let mut wakes = OsString::from("pipe,id=wakes,path=");
    wakes.push(scratch.join("wakes"));
    let mut words: Vec<OsString> = Vec::new();
    let mut add = |flag: &str, value: OsString| words.extend([flag.into(), value]);
    add("-object", format!("memory-backend-file,{file}").into());
    add("-device", "ivshmem-plain,memdev=rings".into());
    add("-device", "virtio-serial-pci".into());
    add("-chardev", format!("socket,id=messages,fd={MESSAGES}").into());
    add("-device", "virtserialport,chardev=messages,name=messages".into());
    add("-chardev", wakes);
    add("-device", "virtserialport,chardev=wakes,name=wakes".into());
    add("-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap".into());
    add("-device", "virtio-9p-pci,fsdev=root,mount_tag=root".into());
    let wire = match &config.wire {
        Wire::None => None,
        Wire::Tap(name) => Some(format!("tap,id=wire,ifname={name},script=no,downscript=no")),
        Wire::Socket(_) => Some(format!("dgram,id=wire,local.type=fd,local.str={WIRE}")),
    };
    if let Some(wire) = wire {
        add("-netdev", wire.into());
        // No boot ROM is needed.
        add("-device", format!("virtio-net-pci,netdev=wire,romfile=,mac={}", station()?).into());
    }
    Ok(words)
}

/// A MAC address of its own: QEMU would give every guest the same. It stays the same over restarts, because neighbours
/// know the guest by it.
fn station() -> io::Result<String> {
    static OWN: OnceLock<[u8; 3]> = OnceLock::new();
    let mut drawn = [0u8; 3];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut drawn)?;
    let own = OWN.get_or_init(|| drawn);
    Ok(format!("52:54:00:{:02x}:{:02x}:{:02x}", own[0], own[1], own[2]))
}

/// True if the host's processor can virtualise. (`/dev/kvm` alone may exist without that.)
fn virtualises() -> bool {
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let able = processor.split_whitespace().any(|word| word == "vmx" || word == "svm");
    able && std::fs::File::options().read(true).write(true).open("/dev/kvm").is_ok()
}

/// A named kernel: `boot/vmlinuz-RELEASE`, with `lib/modules/RELEASE` beside `boot`, or this host's modules.
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

/// The kernel that runs here, if its file exists; else the last one by name.
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
