//! Files that an application sends without reading them. It shows the service an open file once, and then names parts
//! of it ([`towpath_ring::sideband`]).

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, OFlags};

/// The files that a stack takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// None.
    None,
    /// Files of this machine's own file systems. A program or another machine that serves a file system could keep the
    /// stack's thread waiting, and with it the thread's other clients.
    Local,
    /// All regular files, because the stack serves one user only.
    Any,
}

/// A file that a client has shown.
pub struct SharedFile {
    /// The number of its process: the file is forgotten with it.
    pub process: u32,
    /// The file of this process in whose place it comes, by number; 0 = none.
    pub replaces: u32,
    /// The open file.
    pub file: OwnedFd,
}

/// File systems of this machine by `statfs.f_type`: ext4 and its ancestors, XFS, Btrfs, F2FS, tmpfs, ramfs, SquashFS,
/// EROFS, ISO 9660, FAT, hostfs. Overlayfs is not among them, because it may lie over anything.
const LOCAL: [u64; 11] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0xf2f5_2010,
    0x0102_1994,
    0x8584_58f6,
    0x7371_7368,
    0xe0f5_e1e2,
    0x9660,
    0x4d44,
    0x00c0_ffee,
];

impl Files {
    /// May this open file be taken: is it regular, open for reading, and on a file system that is allowed?
    pub fn take(self, file: impl AsFd) -> bool {
        let file = file.as_fd();
        let readable = rustix::fs::fcntl_getfl(file)
            .is_ok_and(|flags| flags & OFlags::RWMODE != OFlags::WRONLY && !flags.contains(OFlags::PATH));
        let regular = || rustix::fs::fstat(file).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file());
        readable
            && match self {
                Self::None => false,
                Self::Local => {
                    rustix::fs::fstatfs(file).is_ok_and(|at| LOCAL.contains(&(at.f_type as u64))) && regular()
                }
                Self::Any => regular(),
            }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::fs::{MemfdFlags, Mode, memfd_create};

    #[test]
    fn only_regular_files_that_can_be_read_are_taken() {
        let file = memfd_create("file", MemfdFlags::CLOEXEC).unwrap();
        assert!(Files::Local.take(&file));
        assert!(!Files::None.take(&file));
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let open = |flags| rustix::fs::open(path.as_str(), flags | OFlags::CLOEXEC, Mode::empty()).unwrap();
        assert!(Files::Local.take(open(OFlags::RDONLY)));
        assert!(!Files::Local.take(open(OFlags::WRONLY)));
        assert!(!Files::Local.take(open(OFlags::PATH)));
        let (pipe, _end) = rustix::pipe::pipe().unwrap();
        assert!(!Files::Any.take(pipe));
        // A read of one of the kernel's own files may wait for anything.
        assert!(!Files::Local.take(std::fs::File::open("/proc/self/maps").unwrap()));
    }
}
