//! Identifies a file of the host to the other kernel: by its path, and by values that change with the file.

use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use std::io;

/// A path, and the file that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileId {
    /// The path as the host's kernel reports it. It may lead nowhere: the file may have been removed, or be in another
    /// mount namespace.
    pub path: String,
    /// Inode number, which the guest sees unchanged.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Modification time, seconds.
    pub modified_s: i64,
    /// Modification time, nanoseconds.
    pub modified_ns: i64,
}

impl FileId {
    /// Identifies an open file.
    pub fn of(file: &OwnedFd) -> io::Result<Self> {
        let path = std::fs::read_link(format!("/proc/thread-self/fd/{}", file.as_raw_fd()))?;
        let path = path.into_os_string().into_string().map_err(|_| io::ErrorKind::InvalidInput)?;
        let stat = rustix::fs::fstat(file)?;
        let (modified_s, modified_ns) = (stat.st_mtime, stat.st_mtime_nsec as i64);
        Ok(Self { path, inode: stat.st_ino, size: stat.st_size as u64, modified_s, modified_ns })
    }

    /// Opens the file below the host's root, if it is still the same one. The open never blocks, whatever is at the
    /// path.
    pub fn open(&self, root: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        // A path reported by a kernel contains no symbolic link.
        let ways = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        let file = rustix::fs::openat2(root, self.path.as_str(), flags, Mode::empty(), ways)?;
        if self.is(&rustix::fs::fstat(&file)?) { Ok(file) } else { Err(io::Error::from_raw_os_error(libc::ESTALE)) }
    }

    fn is(&self, stat: &Stat) -> bool {
        // Some file systems that show a guest the host's files (hostfs) have whole seconds only.
        let parts = [self.modified_ns, 0];
        FileType::from_raw_mode(stat.st_mode).is_file()
            && (stat.st_ino, stat.st_size as u64) == (self.inode, self.size)
            && stat.st_mtime == self.modified_s
            && parts.contains(&(stat.st_mtime_nsec as i64))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs::File;

    #[test]
    fn only_the_file_that_was_meant_is_opened() {
        let path = std::env::temp_dir().join(format!("towpath-named-{}", std::process::id()));
        let root = File::open("/").unwrap();
        let root = std::os::fd::AsFd::as_fd(&root);
        std::fs::write(&path, "one").unwrap();
        let named = FileId::of(&File::open(&path).unwrap().into()).unwrap();
        assert!(named.open(root).is_ok());
        let other = path.with_extension("other");
        std::fs::write(&other, "two").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert_eq!(named.open(root).unwrap_err().raw_os_error(), Some(libc::ESTALE), "another inode");
        let named = FileId::of(&File::open(&path).unwrap().into()).unwrap();
        std::fs::write(&path, "longer").unwrap();
        assert_eq!(named.open(root).unwrap_err().raw_os_error(), Some(libc::ESTALE), "another size");
        let named = FileId::of(&File::open(&path).unwrap().into()).unwrap();
        std::fs::rename(&path, &other).unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        assert!(named.open(root).is_err(), "nothing is followed");
        for path in [path, other] {
            std::fs::remove_file(path).unwrap();
        }
    }
}
