//! The files that a client has shown to the stack.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use towpath_runtime::clients::DescriptorShare;

/// A file. It counts to its client's user until it is closed, which is when its last part has been sent.
pub struct ShownFile {
    /// The file.
    pub fd: OwnedFd,
    /// Its part of the user's share of descriptors.
    pub _share: DescriptorShare,
}

/// Files of a client, by number, each with the process that has shown it.
#[derive(Default)]
pub struct ClientFiles {
    pub last: u32,
    pub files: HashMap<u32, (u32, Arc<ShownFile>)>,
}

impl ClientFiles {
    /// For a client that another stack has served. It may still name that stack's numbers, so none of them is given
    /// again.
    pub fn of_another_life() -> Self {
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
        Self { last: (since as u32) << 7, ..Self::default() }
    }
    /// Forgets the files of a process that has ended.
    pub fn departed(&mut self, process: u32) {
        self.files.retain(|_, (owner, _)| *owner != process);
    }
}
