//! What a machine's process keeps. It runs a kernel that others' programs speak with, and reads the regions.

use crate::machine::{MachineKind, Wire};
use rustix::thread::CapabilitySet;
use std::io;
use std::path::{Path, PathBuf};
use towpath_sandbox::calls::{self, Calls, is};
use towpath_sandbox::files::{self, Files};
use towpath_sandbox::privileges;

/// See the module. It is made before the fork, because a new process may not take memory.
pub struct Confinement {
    keep: CapabilitySet,
    files: Option<Files>,
    calls: Option<Calls>,
}

impl Confinement {
    /// Of a machine that runs `program`. It writes only below `own`.
    pub fn of(kind: MachineKind, wire: &Wire, program: &Path, own: &[PathBuf]) -> Self {
        let devices = ["/dev/null", "/dev/zero", "/dev/net/tun", "/dev/kvm"].map(PathBuf::from);
        let write = own.iter().cloned().chain(devices).collect();
        // Its root file system is this host's. A script needs its interpreter, and others of the host's programs.
        let run = match interpreter(program) {
            Some(interpreter) => vec![program.into(), interpreter],
            None => vec!["/".into()],
        };
        let files = Files { read: vec!["/".into()], write, run, binds: false, connects: false };
        Self {
            keep: capabilities(wire),
            files: files::version().is_ok().then_some(files),
            calls: cfg!(any(target_arch = "x86_64", target_arch = "aarch64")).then(|| forbidden(kind)),
        }
    }

    /// What is in force, in words.
    pub fn line(&self) -> String {
        let landlock = if self.files.is_some() { "landlock" } else { "NO landlock" };
        let seccomp = if self.calls.is_some() { "seccomp" } else { "NO seccomp" };
        format!("capabilities {}, {landlock}, {seccomp}", privileges::names(self.keep))
    }

    /// Gives up everything else, in the process that becomes the machine.
    pub fn apply(&self) -> io::Result<()> {
        privileges::keep_only(self.keep)?;
        self.files.as_ref().map(files::keep_only).transpose()?;
        self.calls.as_ref().map(calls::give_up).transpose()?;
        Ok(())
    }
}

/// What a machine with this wire needs. A device that exists belongs to this user, or is refused.
pub fn capabilities(wire: &Wire) -> CapabilitySet {
    let makes_device = matches!(wire, Wire::Tap(name) if !exists(name));
    if makes_device { CapabilitySet::NET_ADMIN } else { CapabilitySet::empty() }
}

/// Has this network namespace a device of this name?
fn exists(device: &str) -> bool {
    let Ok(name) = std::ffi::CString::new(device) else { return false };
    // SAFETY: the name ends with a zero, and the call only reads it.
    unsafe { libc::if_nametoindex(name.as_ptr()) != 0 }
}

/// The program that loads a program's libraries, and the program itself if it needs none. `None`: it is no ELF file.
fn interpreter(program: &Path) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    let file = std::fs::read(program).ok()?;
    let segments = super::elf::segments(&file)?;
    let Some(named) = segments.iter().find(|segment| segment.kind == super::elf::INTERPRETER) else {
        return Some(program.into());
    };
    let name = file.get(named.offset..)?.get(..named.size)?.strip_suffix(b"\0")?;
    Some(std::ffi::OsString::from_vec(name.to_vec()).into())
}

/// System calls that no machine needs. Which others it makes depends on its version.
fn forbidden(kind: MachineKind) -> Calls {
    let mut calls = Calls::default();
    calls.forbid(&FORBIDDEN);
    // User-mode Linux runs its guest's programs by it.
    if kind != MachineKind::Uml {
        calls.forbid(&[libc::SYS_ptrace]);
    }
    // The lines are inherited, and a TAP device is a file.
    calls.allow_if(libc::SYS_socket, &[&[is(0, libc::AF_UNIX as u32)]]);
    calls
}

const FORBIDDEN: [libc::c_long; 48] = [
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    libc::SYS_migrate_pages,
];
