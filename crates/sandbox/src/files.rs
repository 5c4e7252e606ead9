//! Files, TCP connections and signals, by Landlock.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What a process may do.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// It may read these files, and all that is below these directories. A path that does not exist is left out.
    pub read: Vec<PathBuf>,
    /// May it connect TCP sockets?
    pub connects: bool,
}

const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
/// The newest version that this program knows.
const KNOWN: i64 = 6;
/// Rights on files that the versions up to 6 know: the first 13, to move between directories, to shorten, and ioctl.
const RIGHTS: [u64; 7] = [0, (1 << 13) - 1, (1 << 14) - 1, (1 << 15) - 1, (1 << 15) - 1, (1 << 16) - 1, (1 << 16) - 1];
/// Connecting TCP sockets, from version 4.
const CONNECT_TCP: u64 = 1 << 1;
/// Abstract UNIX sockets and signals of processes outside, from version 6.
const SCOPES: u64 = 3;
/// `LANDLOCK_CREATE_RULESET_VERSION`.
const ASK_VERSION: u32 = 1;
/// `LANDLOCK_RULE_PATH_BENEATH`.
const PATH_BENEATH: u32 = 1;

/// `struct landlock_ruleset_attr`.
#[repr(C)]
struct Ruleset {
    files: u64,
    network: u64,
    scopes: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct Beneath {
    access: u64,
    directory: i32,
}

/// The version of the kernel's Landlock. An error says that it has none.
pub fn version() -> io::Result<i64> {
    // SAFETY: with this flag the call takes no memory.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<Ruleset>(), 0usize, ASK_VERSION) };
    if version < 0 { Err(io::Error::last_os_error()) } else { Ok(version) }
}

/// From now on this thread, and those that it starts, have only these rights. Descriptors that are open keep theirs.
/// The thread must have `no_new_privs`. Returns the version of Landlock.
pub fn keep_only(files: &Files) -> io::Result<i64> {
    let version = version()?.min(KNOWN);
    let handled = RIGHTS[version as usize];
    let network = if version >= 4 && !files.connects { CONNECT_TCP } else { 0 };
    let rules = Ruleset { files: handled, network, scopes: if version >= 6 { SCOPES } else { 0 } };
    // Older kernels know fewer fields.
    let length: usize = match version {
        ..4 => 8,
        4..6 => 16,
        _ => 24,
    };
    // SAFETY: `rules` has `length` bytes and more, and the kernel only reads it.
    let ruleset = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, &raw const rules, length, 0u32) };
    if ruleset < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is a new descriptor that nothing else owns.
    let ruleset = unsafe { OwnedFd::from_raw_fd(ruleset as i32) };
    for path in &files.read {
        allow(&ruleset, path)?;
    }
    // SAFETY: the call takes no memory.
    let done = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0u32) };
    if done == 0 { Ok(version) } else { Err(io::Error::last_os_error()) }
}

fn allow(ruleset: &OwnedFd, path: &Path) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the name ends with NUL.
    let place = unsafe { libc::open(name.as_ptr(), libc::O_PATH | libc::O_CLOEXEC) };
    if place < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) };
    }
    // SAFETY: it is a new descriptor that nothing else owns.
    let place = unsafe { OwnedFd::from_raw_fd(place) };
    let access = if path.is_dir() { READ_FILE | READ_DIR } else { READ_FILE };
    let rule = Beneath { access, directory: place.as_raw_fd() };
    // SAFETY: `rule` is a complete rule of this kind, and the kernel only reads it.
    let done =
        unsafe { libc::syscall(libc::SYS_landlock_add_rule, ruleset.as_raw_fd(), PATH_BENEATH, &raw const rule, 0u32) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn only_what_is_named_can_be_read_and_nothing_is_removed() {
        if version().is_err() {
            return;
        }
        let folder = std::env::temp_dir().join(format!("towpath-sandbox-files-{}", std::process::id()));
        for name in ["read", "other"] {
            std::fs::create_dir_all(folder.join(name)).unwrap();
            std::fs::write(folder.join(name).join("file"), "text").unwrap();
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = folder.clone();
        std::thread::spawn(move || {
            let file = |name: &str| there.join(name).join("file");
            rustix::thread::set_no_new_privs(true).unwrap();
            let read = vec![there.join("read"), there.join("none")];
            let version = keep_only(&Files { read, connects: false }).unwrap();
            assert_eq!(std::fs::read_to_string(file("read")).unwrap(), "text");
            let refused = |result: io::Result<()>| {
                assert_eq!(result.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
            };
            refused(std::fs::read(file("other")).map(drop));
            refused(std::fs::write(file("read"), "more"));
            refused(std::fs::write(there.join("new"), "more"));
            refused(std::fs::remove_file(file("read")));
            refused(std::fs::remove_file(file("other")));
            if version >= 4 {
                refused(TcpStream::connect(listener.local_addr().unwrap()).map(drop));
            }
        })
        .join()
        .unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
