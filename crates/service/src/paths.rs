//! The paths of the service's sockets, and the checks that their directory is safe.

use rustix::fs::{CWD, FileType, Mode, OFlags, StatVfsMountFlags};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Environment variable that names the registration socket.
pub const SOCKET_VARIABLE: &str = "TOWPATH_SOCKET";
/// The socket of a service that root runs for the whole machine.
pub const SYSTEM_SOCKET: &str = "/run/towpath/towpath.sock";
/// The registration socket's name in its directory.
const SOCKET_NAME: &str = "towpath.sock";

/// Why a directory cannot hold the sockets.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// It cannot be created or examined.
    #[error("{}", explain(path, source))]
    Io {
        /// Its path.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// Another user could put a socket in it.
    #[error("{}: {problem}; remove it, or name another socket with --socket or {SOCKET_VARIABLE}", path.display())]
    Unsafe {
        /// Its path.
        path: PathBuf,
        /// The reason.
        problem: String,
    },
}

/// Why a socket, or a file beside it, cannot be made or used, with the remedy.
pub fn explain(path: &Path, error: &io::Error) -> String {
    use io::ErrorKind::{
        InvalidFilename, NotADirectory, NotFound, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull,
    };
    let directory = parent(path).display();
    let other = format!("name another socket with --socket or {SOCKET_VARIABLE}");
    let why = match error.kind() {
        NotFound if !parent(path).exists() => {
            format!("the directory {directory} does not exist; make it (`mkdir -p {directory}`), or {other}")
        }
        StorageFull | QuotaExceeded => {
            format!("no space or inode is left on the file system of {directory}; free some, or {other}")
        }
        ReadOnlyFilesystem => format!("the file system of {directory} is mounted read-only; {other}"),
        PermissionDenied => {
            format!("uid {} may not write in {directory}; {other}", rustix::process::geteuid().as_raw())
        }
        NotADirectory => format!("{directory} is no directory; {other}"),
        InvalidFilename => format!("the path of a socket has at most 107 bytes; {other}"),
        _ => error.to_string(),
    };
    format!("{}: {why}", path.display())
}

/// The calling user's registration socket: `TOWPATH_SOCKET`, or the per-user default.
pub fn user_socket() -> Result<PathBuf, PathError> {
    match std::env::var_os(SOCKET_VARIABLE) {
        Some(path) if !path.is_empty() => Ok(path.into()),
        _ => per_user_socket(),
    }
}

/// `$XDG_RUNTIME_DIR/towpath/towpath.sock`, or `/tmp/towpath-UID/towpath.sock` where there is no such directory.
/// Creates the directory if it is missing, and refuses one that is not private.
pub fn per_user_socket() -> Result<PathBuf, PathError> {
    let uid = rustix::process::geteuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let directory = match runtime {
        // `su` and `sudo` may pass on another user's runtime directory, which is not ours.
        Some(dir) if is_private(&dir, uid).is_ok() && writable(&dir) => dir.join("towpath"),
        _ => PathBuf::from(format!("/tmp/towpath-{uid}")),
    };
    make_private(&directory)?;
    Ok(directory.join(SOCKET_NAME))
}

/// The registration socket of the user's kernel stack of this name. Without a name: of the stack of this network
/// namespace.
pub fn kernel_stack_socket(name: Option<&str>) -> Result<PathBuf, PathError> {
    let directory = per_user_socket()?.with_file_name("");
    let name = match name {
        Some(name) => name.to_owned(),
        // The inode number identifies the namespace. The `@` keeps it apart from names that users give.
        None => {
            let path = PathBuf::from("/proc/self/ns/net");
            let found = std::fs::metadata(&path).map_err(|source| PathError::Io { path, source })?;
            format!("@{}", found.ino())
        }
    };
    Ok(directory.join(format!("kernel-{name}.sock")))
}

/// The default registration socket of another stack that a service's configuration names.
pub fn stack_socket(home: &Path, name: &str) -> PathBuf {
    parent(home).join(format!("kernel-{name}.sock"))
}

/// The default socket of a service: the machine's if root serves an interface, otherwise the user's. Creates the
/// directory.
pub fn service_socket(interface: bool) -> Result<PathBuf, PathError> {
    if std::env::var_os(SOCKET_VARIABLE).is_some_and(|path| !path.is_empty()) {
        return user_socket();
    }
    if !(interface && rustix::process::geteuid().is_root()) {
        return per_user_socket();
    }
    let socket = PathBuf::from(SYSTEM_SOCKET);
    let directory = parent(&socket);
    let io = |source| PathError::Io { path: directory.into(), source };
    match std::fs::DirBuilder::new().mode(0o755).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(io(error)),
        _ => {}
    }
    check_directory(directory, 0, 0o022)?;
    Ok(socket)
}

/// The socket of the control interface beside a registration socket.
pub fn control_socket(registration: &Path) -> PathBuf {
    beside(registration, "control")
}

/// The lock file beside a registration socket: one service per socket.
pub fn lock_file(registration: &Path) -> PathBuf {
    beside(registration, "lock")
}

/// The registration socket of the service that is this process: it holds the lock beside it.
pub fn socket_of_process(pid: u32) -> Option<PathBuf> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
    descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok()).find_map(|lock| socket_of_lock(&lock))
}

/// The socket that a lock file belongs to, if it is one and the socket is there.
fn socket_of_lock(lock: &Path) -> Option<PathBuf> {
    let candidates = [lock.with_extension("sock"), lock.with_extension("")];
    candidates.into_iter().find(|socket| lock_file(socket) == lock && socket.exists())
}

/// The log of a service that was started in the background.
pub fn log_file(registration: &Path) -> PathBuf {
    beside(registration, "log")
}

/// `control.sock` beside a socket of the default name, `NAME.control.sock` beside any other, so that services can share
/// a directory.
fn beside(registration: &Path, what: &str) -> PathBuf {
    let extension = if what == "control" { ".sock" } else { "" };
    let name = registration.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_suffix(".sock").unwrap_or(&name);
    let file = match (name == SOCKET_NAME, what) {
        (true, "control") => "control.sock".to_owned(),
        (true, _) => format!("towpath.{what}"),
        (false, _) => format!("{stem}.{what}{extension}"),
    };
    parent(registration).join(file)
}

/// The directory of a socket.
pub fn parent(socket: &Path) -> &Path {
    match socket.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

/// Creates a directory of mode 0700, or checks that an existing one is private.
fn make_private(directory: &Path) -> Result<(), PathError> {
    match std::fs::DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(source) => return Err(PathError::Io { path: directory.into(), source }),
    }
    is_private(directory, rustix::process::geteuid().as_raw())
}

fn is_private(directory: &Path, uid: u32) -> Result<(), PathError> {
    check_directory(directory, uid, 0o077)
}

/// Checks that this is a directory (no symbolic link) of `uid` without any of the `forbidden` permission bits.
fn check_directory(directory: &Path, uid: u32, forbidden: u32) -> Result<(), PathError> {
    let refuse = |problem: String| Err(PathError::Unsafe { path: directory.into(), problem });
    let found =
        std::fs::symlink_metadata(directory).map_err(|source| PathError::Io { path: directory.into(), source })?;
    if found.file_type().is_symlink() {
        return refuse("is a symbolic link".into());
    }
    if !found.is_dir() {
        return refuse("is no directory".into());
    }
    if found.uid() != uid {
        return refuse(format!("belongs to uid {}, not to uid {uid}", found.uid()));
    }
    let mode = found.permissions().mode() & 0o777;
    if mode & forbidden != 0 {
        return refuse(format!("has mode {mode:04o}, which lets other users in"));
    }
    Ok(())
}

/// Can sockets be created there? In some containers the runtime directory is mounted read-only.
fn writable(directory: &Path) -> bool {
    let read_only = rustix::fs::statvfs(directory).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::RDONLY));
    !read_only
        && rustix::fs::accessat(CWD, directory, rustix::fs::Access::WRITE_OK, rustix::fs::AtFlags::EACCESS).is_ok()
}

/// Sets the permissions of a socket: private, or open to every user (the service then checks admission).
pub fn set_socket_mode(socket: &Path, open: bool) -> io::Result<()> {
    let mode = if open { 0o666 } else { 0o600 };
    rustix::fs::chmod(socket, Mode::from_raw_mode(mode)).map_err(Into::into)
}

/// [`set_socket_mode`] for both sockets of a service that listens.
pub fn set_socket_modes(socket: &Path, open: bool) -> io::Result<()> {
    let mode = if open { 0o666 } else { 0o600 };
    [socket.to_path_buf(), control_socket(socket)].iter().try_for_each(|path| set_mode_of_socket(path, mode))
}

/// Gives a socket these permissions. Its place may have become another file's, or lead to one.
pub fn set_mode_of_socket(path: &Path, mode: u32) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::open(path, flags, Mode::empty())?;
    if FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) != FileType::Socket {
        return Err(io::ErrorKind::NotFound.into());
    }
    let itself = format!("/proc/self/fd/{}", found.as_raw_fd());
    rustix::fs::chmod(&*itself, Mode::from_raw_mode(mode)).map_err(Into::into)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::symlink;

    struct Scratch(PathBuf);
    impl Scratch {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("towpath-paths-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            Self(dir)
        }
    }
    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn problem(directory: &Path) -> String {
        let error = make_private(directory).unwrap_err().to_string();
        error.strip_prefix(&format!("{}: ", directory.display())).unwrap().to_owned()
    }

    #[test]
    fn makes_a_private_directory_and_takes_it_again() {
        let scratch = Scratch::new("make");
        let dir = scratch.0.join("towpath");
        make_private(&dir).unwrap();
        assert_eq!(std::fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
        make_private(&dir).unwrap();
    }

    #[test]
    fn refuses_what_others_could_have_laid_out() {
        let scratch = Scratch::new("refuse");
        let real = scratch.0.join("real");
        make_private(&real).unwrap();
        let link = scratch.0.join("link");
        symlink(&real, &link).unwrap();
        let remedy = "; remove it, or name another socket with --socket or TOWPATH_SOCKET";
        assert_eq!(problem(&link), format!("is a symbolic link{remedy}"));
        let file = scratch.0.join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(problem(&file), format!("is no directory{remedy}"));
        let open = scratch.0.join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o770)).unwrap();
        assert_eq!(problem(&open), format!("has mode 0770, which lets other users in{remedy}"));
        assert!(is_private(&real, rustix::process::geteuid().as_raw() + 1).is_err(), "another owner");
    }

    #[test]
    fn a_socket_that_cannot_be_made_names_the_cause_and_the_remedy() {
        let say = |path: &str, kind: io::ErrorKind| explain(Path::new(path), &kind.into());
        let other = "or name another socket with --socket or TOWPATH_SOCKET";
        let missing =
            "/nonexistent/a.sock: the directory /nonexistent does not exist; make it (`mkdir -p /nonexistent`)";
        assert_eq!(say("/nonexistent/a.sock", io::ErrorKind::NotFound), format!("{missing}, {other}"));
        let full = "/tmp/a.sock: no space or inode is left on the file system of /tmp; free some";
        assert_eq!(say("/tmp/a.sock", io::ErrorKind::StorageFull), format!("{full}, {other}"));
        for kind in [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem, io::ErrorKind::NotADirectory] {
            assert!(say("/tmp/a.sock", kind).ends_with(other.strip_prefix("or").unwrap()), "{kind}");
        }
    }

    #[test]
    fn a_lock_leads_to_its_socket() {
        let scratch = Scratch::new("lock");
        for name in ["towpath.sock", "mine.sock", "bare"] {
            let socket = scratch.0.join(name);
            let lock = lock_file(&socket);
            assert_eq!(socket_of_lock(&lock), None, "it is not there");
            std::fs::write(&socket, "").unwrap();
            assert_eq!(socket_of_lock(&lock), Some(socket));
        }
        let lock = lock_file(&scratch.0.join("mine.sock"));
        let _held = std::fs::File::create(&lock).unwrap();
        assert_eq!(socket_of_process(std::process::id()), Some(scratch.0.join("mine.sock")));
    }

    #[test]
    fn names_beside_the_socket() {
        let usual = Path::new("/run/towpath/towpath.sock");
        assert_eq!(control_socket(usual), Path::new("/run/towpath/control.sock"));
        assert_eq!(lock_file(usual), Path::new("/run/towpath/towpath.lock"));
        assert_eq!(log_file(usual), Path::new("/run/towpath/towpath.log"));
        let other = Path::new("mine.sock");
        assert_eq!(control_socket(other), Path::new("./mine.control.sock"));
        assert_eq!(lock_file(other), Path::new("./mine.lock"));
    }
}
