//! Links in `/proc` of other processes. To read them needs the rights to trace those processes.
//!
//! Only the links are read by the broker. A process can make the reader of its command line wait for ever, and so can the
//! file system of a path that it names.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The program that loads others (`towpath run --hook inject`).
const LOADER: &str = "towpath-loader";
/// How the names of glibc's linkers begin. One runs the loader in a container without glibc.
const LINKER: &str = "ld-linux";

/// Most threads of a process that are looked at: each may be in a namespace of its own.
const THREADS: usize = 64;

/// The path of a process's executable.
pub fn executable_of(process: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/exe")).ok()
}

/// The program that a process runs, by its executable: the program that the loader has become, if it is that.
pub fn program_of(process: i32, executable: PathBuf) -> PathBuf {
    let is_linker = executable.file_name().is_some_and(|name| name.as_bytes().starts_with(LINKER.as_bytes()));
    if !is_linker && !executable.ends_with(LOADER) {
        return executable;
    }
    let words = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let Some(path) = loaded(&words) else { return executable };
    // A sandbox may not look into a private folder.
    std::fs::canonicalize(&path).unwrap_or(path)
}

/// The program that the loader has become: the argument after its own name. The kernel knows no more. That is enough, because anybody
/// can give a program any name. glibc's linker has the loader's name behind `--library-path` and a directory.
fn loaded(command_line: &[u8]) -> Option<PathBuf> {
    let mut words = command_line.split(|byte| *byte == 0).map(|word| Path::new(OsStr::from_bytes(word)));
    words.by_ref().take(4).find(|word| word.ends_with(LOADER))?;
    words.next().filter(|path| path.is_absolute()).map(PathBuf::from)
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
    fn the_loader_has_become_the_program_behind_its_name() {
        let of = |line: &str| loaded(line.replace(' ', "\0").as_bytes());
        assert_eq!(of("/usr/lib/towpath/towpath-loader /bin/a b"), Some("/bin/a".into()));
        let linker = "/usr/lib/towpath-glibc/ld-linux-x86-64.so.2 --library-path /usr/lib/towpath-glibc";
        assert_eq!(of(&format!("{linker} /usr/lib/towpath/towpath-loader /bin/a a b")), Some("/bin/a".into()));
        for other in ["", "towpath-loader", "towpath-loader bin/a", "/bin/sh 1 2 3 towpath-loader /bin/a", linker] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn a_process_shares_its_own_network_and_one_that_is_not_there_cannot_be_seen() {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        assert_eq!(shares_network(own), Some(true));
        assert_eq!(std::thread::spawn(move || shares_network(own)).join().ok(), Some(Some(true)));
        assert_eq!(shares_network(i32::MAX), None);
    }
}
