//! The machine that a guest's kernel runs on: a process of this host, the lines to it, and its end.

mod confinement;
mod console;
mod elf;
mod image;
mod initramfs;
pub mod qemu;
pub mod starter;
pub mod uml;

use confinement::Confinement;
pub use console::Console;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;
use starter::Folders;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// The first argument by which one of our binaries knows that it is the first program of a guest.
pub const INIT_ARGUMENT: &str = "towpath-guest";

/// Descriptor numbers in the machine's process.
pub(crate) mod inherited {
    /// The messages, in both directions.
    pub const MESSAGES: i32 = 20;
    /// Notifications of applications. The guest reads them from its second line.
    pub const DOORBELLS: i32 = 21;
    /// Says that the wake queue has entries. The guest writes it to its second line.
    pub const WAKES: i32 = 22;
    /// The file with the regions.
    pub const MEMORY: i32 = 23;
    /// Frames of its network interface, one datagram each.
    pub const WIRE: i32 = 24;
}

/// The kind of machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineKind {
    /// User-mode Linux ([`uml`]).
    Uml,
    /// A guest of QEMU ([`qemu`]).
    Qemu,
}

impl MachineKind {
    /// Its name, `uml` for example.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uml => "uml",
            Self::Qemu => "qemu",
        }
    }
    /// The kind of this name.
    pub fn of(name: &str) -> Option<Self> {
        [Self::Uml, Self::Qemu].into_iter().find(|kind| kind.name() == name)
    }
    /// Most bytes of shared memory that it can have.
    pub fn memory_bytes(self) -> u64 {
        match self {
            Self::Uml => uml::MEMORY_BYTES,
            Self::Qemu => qemu::MEMORY_BYTES,
        }
    }
    /// True if it has that memory as a BAR.
    pub fn has_bar(self) -> bool {
        self == Self::Qemu
    }
}

/// Where the frames of the guest's network interface go.
#[derive(Debug, Default)]
pub enum Wire {
    /// No interface, only the loopback device.
    #[default]
    None,
    /// A TAP device of this name in the caller's network namespace. Creating one takes CAP_NET_ADMIN, using one's own
    /// does not.
    Tap(String),
    /// A datagram socket, one frame each. Its other end is the wire.
    Socket(OwnedFd),
}

/// Configuration of a machine.
#[derive(Debug)]
pub struct MachineConfig {
    /// Its kind.
    pub kind: MachineKind,
    /// The program to start; `None` for the kind's own, found by `PATH`.
    pub program: Option<PathBuf>,
    /// Our binary that is its first program.
    pub init: PathBuf,
    /// The kernel to boot, if the machine does not contain one: `vmlinuz-RELEASE`; `None` for one of this host's.
    pub kernel: Option<PathBuf>,
    /// Most workers of its stack.
    pub cores: usize,
    /// Its memory, MiB.
    pub memory_mib: u32,
    /// Its network interface.
    pub wire: Wire,
    /// Address and prefix length of that interface: `10.0.0.2/24`.
    pub address: Option<String>,
    /// Its default gateway.
    pub gateway: Option<String>,
    /// Does its process give up what it does not need?
    pub confined: bool,
}

/// A running machine, as the starter has it.
#[derive(Debug)]
pub struct Machine {
    child: Child,
    /// Readable when it has ended.
    pub process: OwnedFd,
    _folders: Folders,
}

/// Pipes that outlive a machine. Each handle is for both ends, so that a dead guest causes no SIGPIPE.
#[derive(Debug)]
pub struct GuestLines {
    /// Notifications of applications.
    pub doorbells: OwnedFd,
    /// Readable when the wake queue has entries.
    pub wakes: OwnedFd,
}

impl GuestLines {
    /// Creates both pipes.
    pub fn new() -> io::Result<Self> {
        let pipe = || {
            let (end, _) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
            both_ends(&end)
        };
        let doorbells = pipe()?;
        // Room for one notification; see `doorbell`.
        rustix::pipe::fcntl_setpipe_size(&doorbells, 1)?;
        Ok(Self { doorbells, wakes: pipe()? })
    }
}

/// The path of a program: the given file, or `name` found by `PATH`. The error says which package to install.
pub(crate) fn find(program: Option<&Path>, name: &str, package: &str) -> io::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = match program {
        Some(program) => Some(program.to_path_buf()).filter(|program| program.is_file()),
        None => std::env::split_paths(&path).map(|dir| dir.join(name)).find(|program| program.is_file()),
    };
    let missing = || {
        let name = program.unwrap_or(Path::new(name)).display();
        io::Error::new(io::ErrorKind::NotFound, format!("{name} is not there: apt-get install {package}"))
    };
    found.ok_or_else(missing)
}

/// Starts a machine. Its folders are empty. Returns our end of its messages, its console, and its sandbox in words.
fn start(
    config: &MachineConfig,
    memory: &OwnedFd,
    lines: &GuestLines,
    folders: Folders,
) -> io::Result<(Machine, [OwnedFd; 2], String)> {
    let (Some(scratch), Some(memory_folder)) = (folders.0.first(), folders.0.last()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    if cfg!(not(target_arch = "x86_64")) {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "a second kernel on this host is for x86-64 alone"));
    }
    let mut command = match config.kind {
        MachineKind::Uml => uml::command(config, scratch)?,
        MachineKind::Qemu => qemu::command(config, rustix::fs::fstat(memory)?.st_size as u64, scratch)?,
    };
    command.env("TMPDIR", memory_folder);
    let program = std::fs::canonicalize(command.get_program())?;
    let confinement = config.confined.then(|| Confinement::of(config.kind, &config.wire, &program, &folders.0));
    let sandbox = confinement.as_ref().map_or("OFF".into(), Confinement::line);
    let kind = SocketType::STREAM;
    let (messages, its_messages) = rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    let (its_doorbells, its_wakes) = (both_ends(&lines.doorbells)?, both_ends(&lines.wakes)?);
    let (output, its_output) = io::pipe()?;
    command.stdin(Stdio::null()).stdout(its_output.try_clone()?).stderr(its_output);
    command.current_dir("/");
    // A terminal's signals are for the service, which ends the machine itself.
    command.process_group(0);
    let mut given = vec![
        (its_messages.as_raw_fd(), inherited::MESSAGES),
        (its_doorbells.as_raw_fd(), inherited::DOORBELLS),
        (its_wakes.as_raw_fd(), inherited::WAKES),
        (memory.as_raw_fd(), inherited::MEMORY),
    ];
    if let Wire::Socket(wire) = &config.wire {
        given.push((wire.as_raw_fd(), inherited::WIRE));
    }
    let starter = std::process::id();
    // SAFETY: this process has one thread, so the closure may do between fork and exec what it could before.
    unsafe {
        command.pre_exec(move || {
            starter::end_with(starter)?;
            give(&mut given)?;
            confinement.as_ref().map_or(Ok(()), Confinement::apply)
        })
    };
    // When the machine dies, its child processes become ours, so that they can be waited for.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let child = command.spawn()?;
    drop(command);
    let process = rustix::process::Pid::from_raw(child.id() as i32).ok_or(io::ErrorKind::NotFound)?;
    let process = rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty())?;
    Ok((Machine { child, process, _folders: folders }, [messages, output.into()], sandbox))
}

/// In the child: gives the descriptors their numbers.
fn give(given: &mut [(i32, i32)]) -> io::Result<()> {
    let checked = |result: i32| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) };
    for (fd, _) in given.iter_mut() {
        // First out of the way of all the target numbers, which may be in use.
        // SAFETY: `fcntl` takes descriptors by number and touches no memory.
        *fd = checked(unsafe { libc::fcntl(*fd, libc::F_DUPFD_CLOEXEC, 64) })?;
    }
    for (fd, number) in given {
        // SAFETY: `dup2` takes descriptors by number and touches no memory. The descriptor that it replaces would be
        // closed by the exec.
        checked(unsafe { libc::dup2(*fd, *number) })?;
    }
    Ok(())
}

/// A handle for both ends of a pipe, an open file description of its own.
pub fn both_ends(pipe: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::CLOEXEC;
    let path = format!("/proc/thread-self/fd/{}", pipe.as_raw_fd());
    Ok(rustix::fs::open(path, flags, rustix::fs::Mode::empty())?)
}

/// The handle by which an application notifies the guest. UML never reopens a line that was full (4 KiB). So the pipe
/// takes packets and has room for one: thousands of notifications cannot fill it while UML does not run.
pub fn doorbell(doorbells: &OwnedFd) -> io::Result<OwnedFd> {
    let doorbell = both_ends(doorbells)?;
    rustix::fs::fcntl_setfl(&doorbell, rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::DIRECT)?;
    Ok(doorbell)
}

impl Machine {
    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
    /// Kills the process and waits for its end.
    fn kill(&mut self) {
        let _ = self.child.kill();
        if let Some(group) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            // Its helper processes. The leader has not been waited for yet, so the group id is still valid.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.child.wait();
        // Its child processes are ours now (see `start`), and in the same group.
        let group = rustix::process::Pid::from_raw(self.child.id() as i32);
        while let Some(Ok(Some(_))) =
            group.map(|group| rustix::process::waitpgid(group, rustix::process::WaitOptions::empty()))
        {}
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
    }
}
