//! Sockets that a service manager has made, listens on and passes on at the start (sd_listen_fds(3)).
//!
//! They stay the manager's: the service neither removes nor shuts them down. So who connects while no service runs waits in
//! their queues for the next one.

use crate::config::{Config, ConfigError};
use crate::paths;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::FileType;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, getsockname, sockopt};
use std::ffi::OsStr;
use std::io;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The first descriptor that is passed.
const FIRST: i32 = 3;
/// As many as a service needs.
const WANTED: i32 = 2;
/// What is to be passed.
const REMEDY: &str = "pass the registration socket (ListenSequentialPacket=) and the control socket beside it (ListenStream=), as \
                      towpathd.socket does";

/// The two sockets.
pub struct Passed {
    registration: OwnedFd,
    control: OwnedFd,
    path: PathBuf,
    /// Paths and permissions, as they were passed.
    modes: [(PathBuf, u32); 2],
}

static PASSED: OnceLock<Passed> = OnceLock::new();

/// The sockets that this process was started with, if it was.
pub fn passed() -> Option<&'static Passed> {
    PASSED.get()
}

impl Passed {
    /// Descriptors of both, the one for registration first.
    pub fn both(&self) -> io::Result<(OwnedFd, OwnedFd)> {
        Ok((self.registration.try_clone()?, self.control.try_clone()?))
    }
    /// Where clients register.
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Gives them the permissions that they had: the manager's say who may start the next service.
    pub fn give_back(&self) {
        for (path, mode) in &self.modes {
            let _ = paths::set_mode_of_socket(path, *mode);
        }
    }
}

/// A configuration that was read, with the path of the sockets that were passed, if it names no other.
pub fn named(config: Config) -> Config {
    let Some(passed) = passed() else { return config };
    match &config.socket {
        Some(socket) if std::path::absolute(socket).ok().as_deref() != Some(&passed.path) => config,
        _ => Config { socket: Some(passed.path.clone()), ..config },
    }
}

/// Takes the sockets that were passed to this process, if any. The configuration has their path from then on. The process
/// has one thread, and this is called once.
pub fn take(config: Config) -> Result<Config, ConfigError> {
    let number = number(std::env::var_os("LISTEN_PID").as_deref(), std::env::var_os("LISTEN_FDS").as_deref());
    let wrong =
        |why: String| ConfigError::Value(format!("the sockets that the service manager passes: {why}; {REMEDY}"));
    let Some(number) = number.map_err(wrong)? else { return Ok(config) };
    // SAFETY: their number says that they are passed to this process. Nothing else has opened or owns them: it begins.
    let sockets = (0..number).map(|at| unsafe { OwnedFd::from_raw_fd(FIRST + at) }).collect();
    let passed = sorted(sockets).map_err(wrong)?;
    if let Some(socket) = &config.socket
        && std::path::absolute(socket).ok().as_deref() != Some(&passed.path)
    {
        let (theirs, ours) = (passed.path.display(), socket.display());
        return Err(wrong(format!(
            "they are for {theirs}, and this service is to listen on {ours}; make them one path"
        )));
    }
    let socket = Some(passed.path.clone());
    let _ = PASSED.set(passed);
    Ok(Config { socket, ..config })
}

/// How many descriptors are meant for this process. `None`: none, as those may be its parent's.
fn number(pid: Option<&OsStr>, count: Option<&OsStr>) -> Result<Option<i32>, String> {
    let own = std::process::id().to_string();
    let (Some(pid), Some(count)) = (pid, count) else { return Ok(None) };
    if pid != own.as_str() {
        return Ok(None);
    }
    let number = count.to_str().and_then(|count| count.parse::<i32>().ok());
    match number.ok_or_else(|| format!("LISTEN_FDS={} is no number", count.display()))? {
        0 => Ok(None),
        // No other is touched.
        WANTED => match (0..WANTED).map(|at| FIRST + at).find(|at| !is_open(*at)) {
            None => Ok(Some(WANTED)),
            Some(closed) => Err(format!("descriptor {closed} is not open")),
        },
        number => Err(format!("there are {number} and not {WANTED}")),
    }
}

fn is_open(number: i32) -> bool {
    // SAFETY: it is looked at only. A number that is not open is an error.
    rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) }).is_ok()
}

/// Tells which is which, and refuses all others.
fn sorted(sockets: Vec<OwnedFd>) -> Result<Passed, String> {
    let (mut registration, mut control) = (None, None);
    for socket in sockets {
        let (kind, path) = about(socket.as_fd())?;
        let place = match kind {
            SocketType::SEQPACKET => &mut registration,
            SocketType::STREAM => &mut control,
            _ => return Err(format!("{} is neither a stream nor a sequence of packets", path.display())),
        };
        if place.replace((socket, path)).is_some() {
            return Err("both are of one kind".into());
        }
    }
    let (Some((registration, path)), Some((control, beside))) = (registration, control) else {
        return Err("one is missing".into());
    };
    if beside != paths::control_socket(&path) {
        let (path, wanted) = (path.display(), paths::control_socket(&path));
        return Err(format!("beside {path} the control socket is {}, not {}", wanted.display(), beside.display()));
    }
    for socket in [&registration, &control] {
        rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::CLOEXEC)
            .and_then(|()| rustix::io::ioctl_fionbio(socket, true))
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let mode = |path: &PathBuf| {
        let found = std::fs::symlink_metadata(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok::<_, String>((path.clone(), found.mode() & 0o777))
    };
    let modes = [mode(&path)?, mode(&beside)?];
    Ok(Passed { registration, control, path, modes })
}

/// The kind and the path of a UNIX socket that listens.
fn about(socket: BorrowedFd<'_>) -> Result<(SocketType, PathBuf), String> {
    let number = std::os::fd::AsRawFd::as_raw_fd(&socket);
    let said = |error: rustix::io::Errno| format!("descriptor {number}: {error}");
    if FileType::from_raw_mode(rustix::fs::fstat(socket).map_err(said)?.st_mode) != FileType::Socket {
        return Err(format!("descriptor {number} is no socket"));
    }
    if sockopt::socket_domain(socket).map_err(said)? != AddressFamily::UNIX {
        return Err(format!("descriptor {number} is no UNIX socket"));
    }
    let name = getsockname(socket).ok().and_then(|name| SocketAddrUnix::try_from(name).ok());
    let path = name.as_ref().and_then(|name| name.path_bytes()).map(|path| PathBuf::from(OsStr::from_bytes(path)));
    let path =
        path.filter(|path| path.is_absolute()).ok_or_else(|| format!("descriptor {number} has no absolute path"))?;
    let kind = sockopt::socket_type(socket).map_err(said)?;
    if kind != SocketType::DGRAM && !sockopt::socket_acceptconn(socket).map_err(said)? {
        return Err(format!("{} does not listen", path.display()));
    }
    Ok((kind, path))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::net::{SocketFlags, bind, listen, socket_with};

    struct Folder(PathBuf);
    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("towpath-activation-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
        fn socket(&self, name: &str, kind: SocketType, listens: bool) -> OwnedFd {
            let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::empty(), None).unwrap();
            let path = self.0.join(name);
            let _ = std::fs::remove_file(&path);
            bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
            if listens {
                listen(&socket, 1).unwrap();
            }
            socket
        }
    }
    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn refused(sockets: Vec<OwnedFd>) -> String {
        sorted(sockets).err().unwrap()
    }

    #[test]
    fn the_two_sockets_are_told_apart_by_their_kinds_in_any_order() {
        let folder = Folder::new("two");
        for turned in [false, true] {
            let mut sockets = vec![
                folder.socket("towpath.sock", SocketType::SEQPACKET, true),
                folder.socket("control.sock", SocketType::STREAM, true),
            ];
            if turned {
                sockets.reverse();
            }
            let passed = sorted(sockets).ok().unwrap();
            assert_eq!(passed.path(), folder.0.join("towpath.sock"));
            let (registration, control) = passed.both().unwrap();
            assert_eq!(sockopt::socket_type(&registration).unwrap(), SocketType::SEQPACKET);
            assert_eq!(sockopt::socket_type(&control).unwrap(), SocketType::STREAM);
            assert_eq!(rustix::io::fcntl_getfd(&passed.control).unwrap(), rustix::io::FdFlags::CLOEXEC);
        }
    }

    #[test]
    fn other_descriptors_are_refused_with_the_reason() {
        let folder = Folder::new("wrong");
        let good = || folder.socket("towpath.sock", SocketType::SEQPACKET, true);
        let stream = |name: &str, listens| folder.socket(name, SocketType::STREAM, listens);
        assert_eq!(refused(vec![good()]), "one is missing");
        assert_eq!(refused(vec![good(), folder.socket("b.sock", SocketType::SEQPACKET, true)]), "both are of one kind");
        let said = refused(vec![good(), stream("other.sock", true)]);
        assert!(said.contains("control.sock, not ") && said.ends_with("other.sock"), "{said}");
        assert!(refused(vec![good(), stream("control.sock", false)]).ends_with("does not listen"));
        let datagrams = folder.socket("control.sock", SocketType::DGRAM, false);
        assert!(refused(vec![good(), datagrams]).ends_with("is neither a stream nor a sequence of packets"));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(refused(vec![file.into(), good()]).ends_with("is no socket"));
        let network = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(refused(vec![network.into(), good()]).ends_with("is no UNIX socket"));
        let nameless = std::os::unix::net::UnixStream::pair().unwrap().0;
        assert!(refused(vec![nameless.into(), good()]).ends_with("has no absolute path"));
    }

    #[test]
    fn only_what_is_meant_for_this_process_is_taken() {
        let own = std::process::id().to_string();
        let of = |pid: &str, count: &str| number(Some(pid.as_ref()), Some(count.as_ref()));
        assert_eq!(number(None, Some("2".as_ref())), Ok(None));
        assert_eq!(of("1", "2"), Ok(None), "its parent's");
        assert_eq!(of(&own, "0"), Ok(None));
        assert_eq!(of(&own, "3").unwrap_err(), "there are 3 and not 2");
        assert_eq!(of(&own, "-1").unwrap_err(), "there are -1 and not 2");
        assert_eq!(of(&own, "two").unwrap_err(), "LISTEN_FDS=two is no number");
    }
}
