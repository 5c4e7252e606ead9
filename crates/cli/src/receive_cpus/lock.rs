//! The lock of `enforce` and `restore`: an exclusive flock(2) on a file beside the journal. The kernel releases it when
//! the last process that holds it ends, so it cannot be left behind.

use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use towpath_rxcpus::{Tree, began};

/// How long to wait for the worker process of a killed `enforce`.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes that are read of the holder's description.
const MOST_BYTES: u64 = 64;

/// The lock. The process that changes settings holds it, and so does its worker.
#[derive(Debug)]
pub struct Lock(File);

/// The path of the lock, beside the journal.
pub fn usual_place() -> PathBuf {
    towpath_rxcpus::journal_place().with_extension("lock")
}

impl Lock {
    /// Takes the lock for `enforce` or `restore`. The error names the holder and the remedy.
    pub fn take(path: &Path, what: &str) -> Result<Self, String> {
        Self::take_within(path, what, LOCK_TIMEOUT)
    }
    fn take_within(path: &Path, what: &str, timeout: Duration) -> Result<Self, String> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::PermissionDenied => {
                format!("this needs root: sudo towpath cores {what}")
            }
            _ => format!("the lock {}: {error}", path.display()),
        };
        let mut file = open(path).map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        if !about.is_file() || about.uid() != rustix::process::geteuid().as_raw() {
            return Err(format!("the lock {} is not this user's: look at it, and remove it", path.display()));
        }
        let end = Instant::now() + timeout;
        while let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != Errno::WOULDBLOCK {
                return Err(failed(error.into()));
            }
            let holder = Holder::read(path);
            if holder.is_some() || Instant::now() >= end {
                return Err(refusal(path, holder));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // The description is for those who are refused. The lock works without it.
        let _ = file.set_len(0).and_then(|()| file.write_all(format!("{} {what}\n", std::process::id()).as_bytes()));
        Ok(Self(file))
    }

    /// Processes that are started from now on hold the lock as well, until they end.
    pub fn share(&self) -> io::Result<()> {
        Ok(fcntl_setfd(&self.0, FdFlags::empty())?)
    }
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    // Opening a pipe would wait for its other end.
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

/// The holder, by its description in the file.
struct Holder {
    pid: u32,
    restores: bool,
}

impl Holder {
    /// `None`: its writer has ended. By now its worker has been told to end, and puts everything back.
    fn read(path: &Path) -> Option<Self> {
        let mut text = String::new();
        File::open(path).ok()?.take(MOST_BYTES).read_to_string(&mut text).ok()?;
        let (pid, what) = text.trim_end().split_once(' ')?;
        let pid = pid.parse().ok()?;
        began(&Tree::default(), pid).map(|_| Self { pid, restores: what == "restore" })
    }
}

fn refusal(path: &Path, holder: Option<Holder>) -> String {
    match holder {
        Some(Holder { pid, restores: true }) => format!("pid {pid} is putting back what another has left: wait for it"),
        Some(Holder { pid, .. }) => {
            format!("pid {pid} enforces already: end it (SIGTERM), and it puts everything back")
        }
        None => format!("another enforces already, and ought to have ended by now: see `fuser {}`", path.display()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn whoever_has_the_lock_keeps_others_out_until_it_lets_go() {
        let folder = std::env::temp_dir().join(format!("towpath-cores-lock-{}", std::process::id()));
        let path = folder.join("new/cores.lock");
        let lock = Lock::take(&path, "enforce").unwrap();
        let refused = Lock::take(&path, "restore").unwrap_err();
        assert!(refused.starts_with(&format!("pid {} enforces already", std::process::id())), "{refused}");
        // The holder has died, and its worker has not.
        fs::write(&path, "4194305 enforce\n").unwrap();
        let refused = Lock::take_within(&path, "restore", Duration::from_millis(50)).unwrap_err();
        assert!(refused.contains("enforces already") && refused.contains("fuser"), "{refused}");
        let ended = std::thread::spawn(move || drop(lock));
        drop(Lock::take(&path, "restore").unwrap());
        ended.join().unwrap();
        let lock = Lock::take(&path, "restore").unwrap();
        let refused = Lock::take(&path, "enforce").unwrap_err();
        assert!(refused.contains("wait for it"), "{refused}");
        drop(lock);
        // A link or a pipe is refused.
        let (link, pipe) = (folder.join("link.lock"), folder.join("pipe.lock"));
        std::os::unix::fs::symlink(folder.join("victim"), &link).unwrap();
        assert!(Lock::take(&link, "enforce").is_err() && !folder.join("victim").exists());
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        assert!(Lock::take(&pipe, "enforce").unwrap_err().contains("remove it"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
