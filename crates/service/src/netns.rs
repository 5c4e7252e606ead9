//! Network namespaces by their names.

use rustix::fd::AsFd;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::io;
use std::path::{Path, PathBuf};

/// The file of a namespace: a path, or a name of `ip netns`.
pub fn path(netns: &str) -> PathBuf {
    if netns.starts_with('/') { netns.into() } else { Path::new("/run/netns").join(netns) }
}

/// Enters a namespace, for this thread and those that it starts.
pub fn enter(path: &Path) -> io::Result<()> {
    let namespace = std::fs::File::open(path)?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).map_err(io::Error::from)
}
