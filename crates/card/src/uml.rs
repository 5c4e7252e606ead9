//! Starts user-mode Linux: a Linux kernel that is an ordinary process.
//!
//! It needs no image and no privileges: its root file system is this host's, read-only, and its first program the binary of ours that
//! is asked for. The serial lines are descriptors that it inherits, under fixed numbers.

use crate::console::Console;
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The program, of Debian's package of this name.
pub const PROGRAM: &str = "linux.uml";
/// What to install.
pub const PACKAGE: &str = "user-mode-linux";
/// Most bytes of shared memory that it can have: it counts them in 31 bits.
pub const MEMORY_BYTES: u64 = i32::MAX as u64;
/// The library that is preloaded into it.
pub const SHIM: &str = "libtowpath_uml.so";

/// Descriptors of UML, by number.
mod inherited {
    /// The messages, both ways: `/dev/ttyS0`.
    pub const MESSAGES: i32 = 20;
    /// Doorbells of applications: the input of `/dev/ttyS1`.
    pub const DOORBELLS: i32 = 21;
    /// Says that there are wakes in the queue: the output of `/dev/ttyS1`.
    pub const WAKES: i32 = 22;
    /// The file with the regions: `/dev/mmapper`.
    pub const MEMORY: i32 = 23;
    /// Frames of its network card, one datagram each.
    pub const WIRE: i32 = 24;
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
pub struct UmlConfig {
    /// The program; `None` = [`PROGRAM`] by `PATH`.
    pub program: Option<PathBuf>,
    /// The binary of ours that is its first program.
    pub init: PathBuf,
    /// Its memory, MiB.
    pub memory_mib: u32,
    /// Its network card.
    pub wire: Wire,
    /// Address and prefix length of that card: `10.0.0.2/24`.
    pub address: Option<String>,
    /// Its router.
    pub gateway: Option<String>,
}

/// A running UML.
#[derive(Debug)]
pub struct Machine {
    child: Child,
    /// Readable when it has ended.
    pub process: OwnedFd,
    /// Our end of the messages.
    pub messages: OwnedFd,
    /// What applications ring: a pipe of which this is a handle for both ends, so that nobody gets SIGPIPE when the card dies.
    pub doorbells: OwnedFd,
    /// Readable when there are wakes.
    pub wakes: OwnedFd,
}

/// Where the program is, or what to install.
pub fn find(program: Option<&Path>) -> io::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = match program {
        Some(program) => Some(program.to_path_buf()).filter(|program| program.is_file()),
        None => std::env::split_paths(&path).map(|dir| dir.join(PROGRAM)).find(|program| program.is_file()),
    };
    let missing = || {
        let name = program.unwrap_or(Path::new(PROGRAM)).display();
        io::Error::new(io::ErrorKind::NotFound, format!("{name} is not there: apt-get install {PACKAGE}"))
    };
    found.ok_or_else(missing)
}

/// The library to preload: beside our binary, or in `../lib/towpath`.
fn shim(init: &Path) -> Option<PathBuf> {
    let dir = init.parent()?;
    [dir.join(SHIM), dir.join("../lib/towpath").join(SHIM)].into_iter().find(|path| path.is_file())
}

/// Starts it. `scratch` is a directory of its own.
pub fn start(config: &UmlConfig, memory: &OwnedFd, scratch: &Path, console: &Console) -> io::Result<Machine> {
    let program = find(config.program.as_deref())?;
    let kind = SocketType::STREAM;
    let (messages, its_messages) = rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    let (its_doorbells, _) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let doorbells = both_ends(&its_doorbells)?;
    let (wakes, its_wakes) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let (output, its_output) = io::pipe()?;
    let mut command = Command::new(program);
    command.args(arguments(config, scratch));
    command.stdin(Stdio::null()).stdout(its_output.try_clone()?).stderr(its_output);
    command.current_dir("/").env_clear().env("HOME", scratch).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    if let Some(shim) = shim(&config.init) {
        command.env("LD_PRELOAD", shim);
    }
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
    Ok(Machine { child, process, messages, doorbells, wakes })
}

/// Its command line.
fn arguments(config: &UmlConfig, scratch: &Path) -> Vec<OsString> {
    use inherited::{DOORBELLS, MEMORY, MESSAGES, WAKES, WIRE};
    let mut line: Vec<OsString> = vec![format!("mem={}M", config.memory_mib).into()];
    line.extend(
        ["rootfstype=hostfs", "rootflags=/", "ro", "con=null", "con0=null,fd:1", "ssl=null"].map(OsString::from),
    );
    line.push(format!("ssl0=fd:{MESSAGES}").into());
    line.push(format!("ssl1=fd:{DOORBELLS},fd:{WAKES}").into());
    line.push(format!("iomem=mmapper,/proc/self/fd/{MEMORY}").into());
    let wire = match &config.wire {
        Wire::None => None,
        Wire::Tap(name) => Some(format!("vec0:transport=tap,ifname={name},depth=128,gro=1")),
        Wire::Socket(_) => Some(format!("vec0:transport=fd,fd={WIRE},vec=0")),
    };
    line.extend(wire.map(OsString::from));
    for (name, path) in [("uml_dir=", scratch), ("init=", config.init.as_path())] {
        let mut word = OsString::from(name);
        word.push(path);
        line.push(word);
    }
    line.extend(["umid=card", "quiet", "loglevel=4", "--", crate::guest::ARGUMENT].map(OsString::from));
    line.push(config.address.as_deref().unwrap_or("-").into());
    line.push(config.gateway.as_deref().unwrap_or("-").into());
    line
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
