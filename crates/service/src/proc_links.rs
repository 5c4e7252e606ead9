//! Links in `/proc` of other processes. To read them needs the rights to trace those processes.
//!
//! Only the links are read by the broker. A process can make the reader of its command line wait for ever, and so can the
//! file system of a path that it names.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The program that loads others (`towpath run --hook inject`).
const LOADER: &str = "towpath-loader";

/// Most threads of a process that are looked at: each may be in a namespace of its own.
const THREADS: usize = 64;

/// The path of a process's executable.
pub fn executable_of(process: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/exe")).ok()
}

/// The program that a process runs, by its executable: the program that the loader has become, if it is that.
pub fn program_of(process: i32, executable: PathBuf) -> PathBuf {
    let loaded = executable.ends_with(LOADER).then(|| loaded(&format!("/proc/{process}/cmdline"))).flatten();
    loaded.unwrap_or(executable)
}

/// The program that the loader has become: its first argument. The kernel knows no more. That is enough, because
/// anybody can give a program any name.
fn loaded(command_line: &str) -> Option<PathBuf> {
    let words = std::fs::read(command_line).ok()?;
    let path = words.split(|byte| *byte == 0).nth(1).filter(|path| path.starts_with(b"/"))?;
    let path = Path::new(OsStr::from_bytes(path));
    // A sandbox may not look into a private folder.
    Some(std::fs::canonicalize(path).unwrap_or_else(|_| path.into()))
}

/// Is a process in the network namespace of this thread, or one of its first threads? `None`: that cannot be seen.
pub fn shares_network(process: i32) -> Option<bool> {
    let network = |path: &Path| std::fs::read_link(path.join("ns/net")).ok();
    let own = network(Path::new("/proc/thread-self"))?;
    // The directory is that of the first thread, which may have ended.
    let first = network(&PathBuf::from(format!("/proc/{process}")));
    if first.as_ref() == Some(&own) {
        return Some(true);
    }
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let of_threads: Vec<_> = threads.take(THREADS).flatten().filter_map(|thread| network(&thread.path())).collect();
    let seen = first.is_some() || !of_threads.is_empty();
    seen.then(|| of_threads.contains(&own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_shares_its_own_network_and_one_that_is_not_there_cannot_be_seen() {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        assert_eq!(shares_network(own), Some(true));
        assert_eq!(std::thread::spawn(move || shares_network(own)).join().ok(), Some(Some(true)));
        assert_eq!(shares_network(i32::MAX), None);
    }
}
