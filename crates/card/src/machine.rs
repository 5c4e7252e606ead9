//! The machine that a card's kernel runs on: a process of this host, the lines to it, and its end.

use crate::console::Console;
use crate::{qemu, uml};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// Descriptors of the machine's process, by number.
pub(crate) mod inherited {
    /// The messages, both ways.
    pub const MESSAGES: i32 = 20;
    /// Doorbells of applications: what the card reads of its second line.
    pub const DOORBELLS: i32 = 21;
    /// Says that there are wakes in the queue: what the card writes to its second line.
    pub const WAKES: i32 = 22;
    /// The file with the regions.
    pub const MEMORY: i32 = 23;
    /// Frames of its network card, one datagram each.
    pub const WIRE: i32 = 24;
}

/// What a card's kernel runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// User-mode Linux ([`uml`]).
    Uml,
    /// A guest of QEMU ([`qemu`]).
    Qemu,
}

impl Kind {
    /// Its name: `uml`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uml => "uml",
            Self::Qemu => "qemu",
        }
    }
    /// By its name.
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
    /// Does it have that memory as a BAR?
    pub fn has_bar(self) -> bool {
        self == Self::Qemu
    }
}

/// Where the frames of its network card go.
#[derive(Debug, Default)]
pub enum Wire {
    /// It has none, only its loopback device.
    #[default]
    None,
    /// A TAP device of this name in the network namespace of the caller. Making one takes CAP_NET_ADMIN, using one that is the user's
    /// does not.
    Tap(String),
    /// A datagram socket (one frame each), whose other end is the wire.
    Socket(OwnedFd),
}

/// How it is set up.
#[derive(Debug)]
pub struct MachineConfig {
    /// What it is.
    pub kind: Kind,
    /// The program that it is; `None` = the kind's own by `PATH`.
    pub program: Option<PathBuf>,
    /// The binary of ours that is its first program.
    pub init: PathBuf,
    /// The kernel that it starts, if it does not have its own: `vmlinuz-RELEASE`; `None` = one of this host's.
    pub kernel: Option<PathBuf>,
    /// Most threads of its stack.
    pub cores: usize,
    /// Its memory, MiB.
    pub memory_mib: u32,
    /// Its network card.
    pub wire: Wire,
    /// Address and prefix length of that card: `10.0.0.2/24`.
    pub address: Option<String>,
    /// Its router.
    pub gateway: Option<String>,
}

/// A running machine.
#[derive(Debug)]
pub struct Machine {
    child: Child,
    /// Readable when it has ended.
    pub process: OwnedFd,
    /// Our end of the messages.
    pub messages: OwnedFd,
}

/// What outlives a machine: pipes of which each is a handle for both ends, so that nobody gets SIGPIPE when the card dies.
#[derive(Debug)]
pub struct Lines {
    /// What applications ring.
    pub doorbells: OwnedFd,
    /// Readable when there are wakes.
    pub wakes: OwnedFd,
}

impl Lines {
    /// Fresh ones.
    pub fn new() -> io::Result<Self> {
        let pipe = || {
            let (end, _) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
            both_ends(&end)
        };
        let doorbells = pipe()?;
        // See `bell`: room for one.
        rustix::pipe::fcntl_setpipe_size(&doorbells, 1)?;
        Ok(Self { doorbells, wakes: pipe()? })
    }
}

/// Where a program is, or what to install: a file, or a name for `PATH`.
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

/// Starts it. `scratch` is a directory of its own.
pub fn start(
    config: &MachineConfig,
    memory: &OwnedFd,
    lines: &Lines,
    (scratch, console): (&Path, &Console),
) -> io::Result<Machine> {
    let mut command = match config.kind {
        Kind::Uml => uml::command(config, scratch)?,
        Kind::Qemu => qemu::command(config, rustix::fs::fstat(memory)?.st_size as u64, scratch)?,
    };
    let kind = SocketType::STREAM;
    let (messages, its_messages) = rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    let (its_doorbells, its_wakes) = (both_ends(&lines.doorbells)?, both_ends(&lines.wakes)?);
    let (output, its_output) = io::pipe()?;
    command.stdin(Stdio::null()).stdout(its_output.try_clone()?).stderr(its_output);
    command.current_dir("/");
    // A terminal's signals are for the service, which ends it.
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
    // SAFETY: between fork and exec it makes system calls only.
    unsafe { command.pre_exec(move || give(&mut given)) };
    // The processes of its processes come to us when it dies, so that they can be waited for.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let child = command.spawn()?;
    drop(command);
    console.follow(output)?;
    let process = rustix::process::Pid::from_raw(child.id() as i32).ok_or(io::ErrorKind::NotFound)?;
    let process = rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty())?;
    Ok(Machine { child, process, messages })
}

/// In the child: gives the descriptors their numbers.
fn give(given: &mut [(i32, i32)]) -> io::Result<()> {
    let checked = |result: i32| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) };
    for (fd, _) in given.iter_mut() {
        // Out of the way of all the numbers, which may be anybody's now.
        // SAFETY: descriptors are numbers.
        *fd = checked(unsafe { libc::fcntl(*fd, libc::F_DUPFD_CLOEXEC, 64) })?;
    }
    for (fd, number) in given {
        // SAFETY: as above; what has the number in this process is closed by the exec anyway.
        checked(unsafe { libc::dup2(*fd, *number) })?;
    }
    Ok(())
}

/// A handle for both ends of a pipe, an open file of its own.
pub fn both_ends(pipe: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::CLOEXEC;
    let path = format!("/proc/thread-self/fd/{}", pipe.as_raw_fd());
    Ok(rustix::fs::open(path, flags, rustix::fs::Mode::empty())?)
}

/// The handle by which an application rings. UML never opens again a line that was full (4 KiB), so a bell that is rung thousands of times
/// while UML does not run would be its last: each time is a packet, for which there is room if the one before has been heard.
pub fn bell(doorbells: &OwnedFd) -> io::Result<OwnedFd> {
    let bell = both_ends(doorbells)?;
    rustix::fs::fcntl_setfl(&bell, rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::DIRECT)?;
    Ok(bell)
}

impl Machine {
    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
    /// Has it ended?
    pub fn has_ended(&self) -> bool {
        let mut waiting = [rustix::event::PollFd::new(&self.process, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(rustix::event::poll(&mut waiting, Some(&now)), Ok(1..))
    }
    /// Ends it at once and waits for that.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        if let Some(group) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            // Its helpers; the leader is not waited for yet, so the group is still its.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.child.wait();
        // What was its own child is ours now (`start`), and in the same group.
        let group = rustix::process::Pid::from_raw(self.child.id() as i32);
        while let Some(Ok(Some(_))) =
            group.map(|group| rustix::process::waitpgid(group, rustix::process::WaitOptions::empty()))
        {}
    }
    /// A descriptor of its process.
    pub fn process(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.process)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
    }
}
