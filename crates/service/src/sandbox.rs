//! What the process that serves keeps, by its stack. `docs/internals/sandbox.md` has this as a table.

use crate::config::{Config, SandboxSetting, StackKind};
use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use towpath_sandbox::calls::{self, Calls, has_all, has_none, is, is_null, masked};
use towpath_sandbox::files::{self, Files};
use towpath_sandbox::{privileges, refused};

/// What is in force, for the operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxStatus {
    /// Measures that are in force.
    pub in_force: Vec<String>,
    /// Measures that are not, and why.
    pub missing: Vec<String>,
    /// System calls that were refused. Each is an error of Towpath, or an attack.
    pub refused: u64,
    /// The number of the last one.
    pub last_refused: Option<u64>,
}

impl SandboxStatus {
    /// One line.
    pub fn line(&self) -> String {
        let mut line = if self.in_force.is_empty() { "OFF".to_owned() } else { self.in_force.join(", ") };
        if !self.missing.is_empty() {
            line += &format!("; missing: {}", self.missing.join("; "));
        }
        if let Some(last) = self.last_refused {
            line += &format!("; {} system calls REFUSED, the last one number {last}", self.refused);
        }
        line
    }
}

/// Does a service with this configuration have a broker?
pub fn has_broker(config: &Config) -> bool {
    config.sandbox == SandboxSetting::On && !is_standby(config)
}

/// A standby moves an address between two kernels.
fn is_standby(config: &Config) -> bool {
    config.stack.is_guest() && config.standby.is_some()
}

/// Confines this process step by step.
#[derive(Debug)]
pub struct Sandbox {
    stack: StackKind,
    interface: bool,
    /// It asks whether other services answer.
    other_stacks: bool,
    /// It has an RDMA adapter.
    rdma: bool,
    /// Why there is none.
    off: Option<&'static str>,
    /// What it may read.
    read: Vec<PathBuf>,
    status: Mutex<SandboxStatus>,
}

/// What a worker reads of the system. Of `/sys` these alone: debugfs and tracefs, which tell root of all processes, are
/// below it.
const READ: [&str; 7] =
    ["/proc", "/sys/class", "/sys/devices", "/sys/fs/cgroup", "/sys/kernel/irq", "/dev/urandom", "/dev/null"];

impl Sandbox {
    /// For a service with this configuration.
    pub fn new(config: &Config) -> Self {
        let off = if config.sandbox == SandboxSetting::Off {
            Some("the configuration says sandbox = \"off\"")
        } else if is_standby(config) {
            Some("a standby moves an address, by `ip`")
        } else {
            None
        };
        let mut read: Vec<PathBuf> = READ.map(PathBuf::from).into();
        // Names of users and groups, for rules that are added.
        read.extend(["passwd", "group", "nsswitch.conf"].map(|name| Path::new("/etc").join(name)));
        read.extend(config.file.clone());
        let (stack, interface, status) = (config.stack, !config.interface.is_empty(), Mutex::default());
        let rdma = stack == StackKind::Remote;
        Self { stack, interface, other_stacks: !config.stacks.is_empty(), rdma, off, read, status }
    }

    /// For a process that serves one host with this kernel's sockets (`towpathd --listen`).
    pub fn of_server(config: &Config, rdma: bool) -> Self {
        let sandbox = config.sandbox;
        Self { rdma, ..Self::new(&Config { stack: StackKind::Kernel, sandbox, ..Config::default() }) }
    }

    /// Before the first thread: capabilities and files.
    pub fn before_threads(&self) {
        if self.off.is_some() {
            return;
        }
        let mut keep = match self.stack {
            // Clients' sockets are this process's own: their ports, their options, and captures.
            StackKind::Kernel => CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW | CapabilitySet::NET_BIND_SERVICE,
            _ => CapabilitySet::empty(),
        };
        if has_filter(self.stack, self.interface) && privileges::maps_need_capability() {
            keep |= CapabilitySet::BPF;
        }
        // Names are looked up once, so that their libraries are there.
        let _ = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(0));
        let _ = nix::unistd::Group::from_gid(nix::unistd::Gid::from_raw(0));
        let left = privileges::keep_only(keep);
        self.note("capabilities", left.map(privileges::names).map_err(io::Error::from));
        let files =
            Files { read: self.read.clone(), binds: true, connects: has_connections(self.stack), ..Files::default() };
        self.note("landlock", files::keep_only(&files).map(|version| version.to_string()));
    }

    /// System calls, of all threads.
    pub fn take_calls(&self) {
        if let Some(why) = self.off {
            self.lock().missing.push(why.into());
            return;
        }
        let allowed = allowed(self.stack, self.interface, self.other_stacks, self.rdma);
        self.note("seccomp", calls::keep_only(&allowed).map(|()| "on".into()));
    }

    /// Before the first client: system calls. The log says what is in force.
    pub fn before_clients(&self) {
        self.take_calls();
        if let Some(why) = self.off {
            return tracing::warn!("no sandbox: {why}");
        }
        let status = self.lock();
        let line = status.line();
        if status.missing.is_empty() {
            tracing::info!("sandbox: {line}");
        } else {
            tracing::warn!("sandbox: {line}");
        }
    }

    /// What is in force.
    pub fn status(&self) -> SandboxStatus {
        let (refused, last_refused) = refused::count();
        SandboxStatus { refused, last_refused, ..self.lock().clone() }
    }

    fn note(&self, measure: &str, result: io::Result<String>) {
        let mut status = self.lock();
        match result {
            Ok(how) => status.in_force.push(format!("{measure} {how}")),
            Err(why) => status.missing.push(format!("{measure} ({why})")),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, SandboxStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The system calls of a stack.
fn allowed(stack: StackKind, interface: bool, other_stacks: bool, rdma: bool) -> Calls {
    let mut calls = Calls::default();
    calls.allow(&MEMORY);
    calls.allow(&THREADS);
    calls.allow(&DESCRIPTORS);
    calls.allow(&SOCKETS);
    calls.allow(&OLD);
    // No memory that can be written becomes code, and no file.
    let executable = libc::PROT_EXEC as u32;
    calls.allow_if(libc::SYS_mmap, &[&[has_none(2, executable)]]);
    calls.allow_if(libc::SYS_mprotect, &[&[has_none(2, executable)]]);
    // Threads, and no processes. The C library knows another way than clone3, whose flags a filter cannot see.
    calls.allow_if(libc::SYS_clone, &[&[has_all(0, libc::CLONE_THREAD as u32)]]);
    calls.absent(libc::SYS_clone3);
    let own = rustix::process::getpid().as_raw_nonzero().get().cast_unsigned();
    calls.allow_if(libc::SYS_tgkill, &[&[is(0, own)]]);
    /// What the kernel has told this program at its start.
    const GET_AUXV: libc::c_int = 0x4155_5856;
    let names = [libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA, GET_AUXV].map(|option| [is(0, option as u32)]);
    calls.allow_if(libc::SYS_prctl, &names.each_ref().map(|one| &one[..]));
    // The limits are read and not set.
    calls.allow_if(libc::SYS_prlimit64, &[&is_null(2)]);
    // No owner of a descriptor is named: it would get any signal that this process chooses.
    let commands = FCNTL_COMMANDS.map(|command| [is(1, command as u32)]);
    calls.allow_if(libc::SYS_fcntl, &commands.each_ref().map(|one| &one[..]));
    // Services of this host listen on UNIX sockets, and believe who has the right user.
    if !other_stacks {
        calls.fails_if(libc::SYS_socket, is(0, libc::AF_UNIX as u32), libc::EACCES);
    }
    let mut families = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6].map(|family| vec![is(0, family as u32)]);
    if !has_connections(stack) {
        // It holds ports of TCP, and sends no datagrams.
        families[1..].iter_mut().for_each(|family| family.push(masked(1, 0xf, libc::SOCK_STREAM as u32)));
    }
    let netlink = [libc::NETLINK_ROUTE, libc::NETLINK_SOCK_DIAG];
    let netlink = netlink.map(|protocol| vec![is(0, libc::AF_NETLINK as u32), is(2, protocol as u32)]);
    let mut sockets: Vec<_> = families.into_iter().chain(netlink).collect();
    if stack == StackKind::Kernel {
        // Captures.
        sockets.push(vec![is(0, libc::AF_PACKET as u32)]);
    }
    let sends = [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)];
    if !has_connections(stack) {
        // It has no connections of the kernel. A client may give it a socket, which would connect as this user.
        let no_connect = libc::MSG_FASTOPEN as u32;
        sends.iter().for_each(|(call, flags)| calls.allow_if(*call, &[&[has_none(*flags, no_connect)]]));
    } else {
        calls.allow(&sends.map(|(call, _)| call));
        calls.allow(&[libc::SYS_listen]);
        // Of rings that were made before, and that are restricted to sending and receiving.
        calls.allow(&[libc::SYS_io_uring_enter]);
    }
    if has_connections(stack) || other_stacks {
        calls.allow(&[libc::SYS_connect]);
    }
    let sockets: Vec<_> = sockets.iter().map(Vec::as_slice).collect();
    calls.allow_if(libc::SYS_socket, &sockets);
    // One whose ends are connected for good.
    let ends = [libc::SOCK_STREAM, libc::SOCK_SEQPACKET];
    let ends = ends.map(|kind| [is(0, libc::AF_UNIX as u32), masked(1, 0xf, kind as u32)]);
    calls.allow_if(libc::SYS_socketpair, &ends.each_ref().map(|one| &one[..]));
    let mut requests = IOCTLS.map(|request| [is(1, request as u32)]).to_vec();
    if rdma {
        requests.push([masked(1, 0xff00, RDMA_IOCTLS << 8)]);
    }
    calls.allow_if(libc::SYS_ioctl, &requests.iter().map(|one| &one[..]).collect::<Vec<_>>());
    if has_filter(stack, interface) {
        let commands = BPF_COMMANDS.map(|command| [is(0, command)]);
        calls.allow_if(libc::SYS_bpf, &commands.each_ref().map(|one| &one[..]));
    }
    calls
}

/// Has the stack connections of this kernel?
fn has_connections(stack: StackKind) -> bool {
    matches!(stack, StackKind::Kernel | StackKind::Remote)
}

/// Has the stack BPF maps? Those of its interface, or of the filter for its listeners.
fn has_filter(stack: StackKind, interface: bool) -> bool {
    interface || stack == StackKind::Fast
}

/// Look up, change and remove an element of a map, the next key, and what a descriptor is. No map or program is made, and
/// none is attached.
const BPF_COMMANDS: [u32; 5] = [1, 2, 3, 4, 15];

/// Copies, flags and seals of descriptors.
const FCNTL_COMMANDS: [libc::c_int; 8] = [
    libc::F_DUPFD,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_ADD_SEALS,
    libc::F_GET_SEALS,
];

/// `RDMA_IOCTL_MAGIC`: the commands of an RDMA device.
const RDMA_IOCTLS: u32 = 0x1b;

/// Of sockets, and whether a descriptor is a terminal.
const IOCTLS: [libc::c_ulong; 11] = [
    libc::TCGETS,
    libc::FIONREAD,
    libc::FIONBIO,
    libc::FIOCLEX,
    libc::TIOCOUTQ,
    libc::TIOCGWINSZ,
    // SIOCATMARK, SIOCOUTQNSD, SIOCGIFNAME, SIOCGIFINDEX, SIOCGIFMTU
    0x8905,
    0x894b,
    0x8910,
    0x8933,
    0x8921,
];

const MEMORY: [libc::c_long; 11] = [
    libc::SYS_munmap,
    libc::SYS_mincore,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_membarrier,
    libc::SYS_memfd_create,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_mincore,
    // A region is never locked.
    libc::SYS_munlock,
];

const THREADS: [libc::c_long; 43] = [
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getgroups,
    libc::SYS_capget,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_getcpu,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_getrusage,
    libc::SYS_times,
    libc::SYS_getpgid,
    libc::SYS_getsid,
    libc::SYS_pidfd_open,
    // Of a thread that no close may keep.
    libc::SYS_timer_create,
    libc::SYS_timer_settime,
    libc::SYS_timer_delete,
];

const DESCRIPTORS: [libc::c_long; 37] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_lseek,
    libc::SYS_flock,
    libc::SYS_openat,
    libc::SYS_getdents64,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getcwd,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_tee,
    libc::SYS_fadvise64,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_eventfd2,
    libc::SYS_pipe2,
];

const SOCKETS: [libc::c_long; 11] = [
    libc::SYS_bind,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
];

/// Forms of the calls above that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
const OLD: [libc::c_long; 11] = [
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_wait,
    libc::SYS_pipe,
    libc::SYS_dup2,
    libc::SYS_readlink,
    libc::SYS_access,
    libc::SYS_time,
];

/// What stands for `select` on newer architectures.
#[cfg(not(target_arch = "x86_64"))]
const OLD: [libc::c_long; 1] = [libc::SYS_pselect6];
