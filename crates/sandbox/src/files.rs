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
    /// It may write these too. Below directories it may make and remove all but devices.
    pub write: Vec<PathBuf>,
    /// It may run these programs, and the programs below these directories.
    pub run: Vec<PathBuf>,
    /// May it bind TCP sockets?
    pub binds: bool,
    /// May it connect TCP sockets?
    pub connects: bool,
}

const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
/// To remove directories and files, and to make directories, files, sockets, pipes and symbolic links.
const MAKE: u64 = 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 12;
const SHORTEN: u64 = 1 << 14;
/// `ioctl` of a device.
const CONTROL: u64 = 1 << 15;
/// The newest version that this program knows.
const KNOWN: i64 = 6;
/// Rights on files that the versions up to 6 know: the first 13, to move between directories, to shorten, and ioctl.
const RIGHTS: [u64; 7] = [0, (1 << 13) - 1, (1 << 14) - 1, (1 << 15) - 1, (1 << 15) - 1, (1 << 16) - 1, (1 << 16) - 1];
/// Binding TCP sockets, from version 4.
const BIND_TCP: u64 = 1;
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
    let network = if files.connects { 0 } else { CONNECT_TCP } | if files.binds { 0 } else { BIND_TCP };
    let network = if version >= 4 { network } else { 0 };
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
    for (paths, of_file, of_directory) in [
        (&files.read, READ_FILE, READ_FILE | READ_DIR),
        (&files.write, READ_FILE | WRITE_FILE | SHORTEN | CONTROL, READ_FILE | READ_DIR | WRITE_FILE | SHORTEN | MAKE),
        (&files.run, READ_FILE | EXECUTE, READ_FILE | READ_DIR | EXECUTE),
    ] {
        for path in paths {
            allow(&ruleset, path, handled & if path.is_dir() { of_directory } else { of_file })?;
        }
    }
    // SAFETY: the call takes no memory.
    let done = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0u32) };
    if done == 0 { Ok(version) } else { Err(io::Error::last_os_error()) }
}

fn allow(ruleset: &OwnedFd, path: &Path, access: u64) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the name ends with NUL.
    let place = unsafe { libc::open(name.as_ptr(), libc::O_PATH | libc::O_CLOEXEC) };
    if place < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) };
    }
    // SAFETY: it is a new descriptor that nothing else owns.
    let place = unsafe { OwnedFd::from_raw_fd(place) };
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
        for name in ["read", "other", "written"] {
            std::fs::create_dir_all(folder.join(name)).unwrap();
            std::fs::write(folder.join(name).join("file"), "text").unwrap();
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = folder.clone();
        std::thread::spawn(move || {
            let file = |name: &str| there.join(name).join("file");
            rustix::thread::set_no_new_privs(true).unwrap();
            let read = vec![there.join("read"), there.join("none")];
            let write = vec![there.join("written"), "/dev/null".into()];
            let version = keep_only(&Files { read, write, ..Files::default() }).unwrap();
            assert_eq!(std::fs::read_to_string(file("read")).unwrap(), "text");
            let refused = |result: io::Result<()>| {
                assert_eq!(result.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
            };
            refused(std::fs::read(file("other")).map(drop));
            refused(std::fs::write(file("read"), "more"));
            refused(std::fs::write(there.join("new"), "more"));
            refused(std::fs::remove_file(file("read")));
            refused(std::fs::remove_file(file("other")));
            refused(std::process::Command::new("/bin/true").status().map(drop));
            std::fs::write(file("written"), "more").unwrap();
            std::fs::remove_file(file("written")).unwrap();
            std::fs::create_dir(there.join("written/folder")).unwrap();
            std::fs::write("/dev/null", "more").unwrap();
            if version >= 4 {
                refused(TcpStream::connect(listener.local_addr().unwrap()).map(drop));
                refused(TcpListener::bind("127.0.0.1:0").map(drop));
            }
        })
        .join()
        .unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
