//! Network namespaces by their names.

use rustix::fd::{AsFd, BorrowedFd};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The namespace in which this process was started, if it has entered another one.
static START: OnceLock<File> = OnceLock::new();

/// The file of a namespace: a path, or a name of `ip netns`.
pub fn path(netns: &str) -> PathBuf {
    if netns.starts_with('/') { netns.into() } else { Path::new("/run/netns").join(netns) }
}

/// Enters a namespace, for this thread and those that it starts. The broker does so while it serves, and a pipe in the file's
/// place would keep it waiting.
pub fn enter(path: &Path) -> io::Result<()> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    enter_file(file.as_fd())
}

/// [`enter`] for the whole process, which remembers where it was started.
pub fn enter_for_good(path: &Path) -> io::Result<()> {
    let before = File::open("/proc/thread-self/ns/net")?;
    enter(path)?;
    let _ = START.set(before);
    Ok(())
}

/// Enters the namespace that a configuration names. `None`: the one in which this process was started.
pub fn enter_named(netns: Option<&str>) -> io::Result<()> {
    match (netns, START.get()) {
        (Some(netns), _) => enter(&path(netns)),
        (None, Some(start)) => enter_file(start.as_fd()),
        (None, None) => Ok(()),
    }
}

fn enter_file(namespace: BorrowedFd<'_>) -> io::Result<()> {
    move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network)).map_err(io::Error::from)
}
