//! The decision log: a JSON line whenever the decision changes. The file's size is limited.

use super::complaint::Complaint;
use super::show::Entry;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// At this size the file is moved to `FILE.1`, and another begins.
const MOST_BYTES: u64 = 16 << 20;
/// An unchanged decision is logged again after this many ticks. So a silent log means that the process has stopped.
const AGAIN_TICKS: u64 = 60;

/// An open log.
pub struct Log {
    path: PathBuf,
    every: bool,
    most: u64,
    /// The last decision that was written, and the ticks since.
    last: Option<(Entry, u64)>,
    complaint: Complaint,
}

impl Log {
    /// Appends to this file: `every` decision, or those that differ from the last.
    pub fn open(path: &Path, every: bool) -> Result<Self, String> {
        let log = Self { path: path.to_owned(), every, most: MOST_BYTES, last: None, complaint: Complaint::default() };
        log.file().map(|_| log).map_err(|error| format!("the log {}: {error}", path.display()))
    }

    /// Opens the file by its name each time, so that logrotate needs no signal.
    fn file(&self) -> io::Result<File> {
        let options = || {
            File::options()
                .append(true)
                .create(true)
                .mode(0o644)
                .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
                .to_owned()
        };
        let file = options().read(true).open(&self.path)?;
        let about = file.metadata()?;
        if about.is_file() && about.size() >= self.most {
            let mut old = self.path.as_os_str().to_owned();
            old.push(".1");
            fs::rename(&self.path, old)?;
            return options().read(true).open(&self.path);
        }
        Ok(file)
    }

    /// Writes a decision, if it is news.
    pub fn tell(&mut self, entry: &Entry) {
        let news = match &mut self.last {
            Some((last, ticks)) if last.reason == entry.reason && entry.from == entry.cores => {
                *ticks += 1;
                *ticks % AGAIN_TICKS == 0
            }
            last => {
                *last = Some((entry.clone(), 0));
                true
            }
        };
        if !news && !self.every {
            return;
        }
        let written = self.file().and_then(|file| append(file, &entry.json()));
        // A full disk must not end the process, nor be reported every second.
        if let Some(words) = self.complaint.after(&format_args!("the log {}", self.path.display()), written) {
            crate::complain(&words);
        }
    }
}

/// Writes one line. If a killed process left a part of a line, that becomes a line of its own.
fn append(mut file: File, line: &str) -> io::Result<()> {
    let mut last = [b'\n'];
    if file.metadata()?.is_file() && file.seek(SeekFrom::End(-1)).is_ok() {
        let _ = file.read(&mut last);
    }
    let line = if last == [b'\n'] { line.to_owned() } else { format!("\n{line}") };
    file.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    struct Folder(PathBuf);
    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("towpath-cores-log-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }
    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
    fn entry(tick: u64, reason: &str) -> Entry {
        Entry { tick, reason: reason.into(), ..Entry::default() }
    }
    fn ticks(path: &Path) -> Vec<u64> {
        let text = fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str::<Entry>(line).map_or(0, |entry| entry.tick)).collect()
    }

    #[test]
    fn news_are_written_and_the_same_again_once_a_minute() {
        let folder = Folder::new("news");
        let path = folder.0.join("log");
        let mut log = Log::open(&path, false).unwrap();
        (1..=100).for_each(|tick| log.tell(&entry(tick, "steady")));
        log.tell(&entry(101, "busy"));
        log.tell(&Entry { from: 1, cores: 2, ..entry(102, "busy") });
        assert_eq!(ticks(&path), [1, 61, 101, 102]);
        let mut log = Log::open(&path, true).unwrap();
        (103..=105).for_each(|tick| log.tell(&entry(tick, "steady")));
        assert_eq!(ticks(&path), [1, 61, 101, 102, 103, 104, 105], "appended, each");
    }

    #[test]
    fn a_log_is_bounded_may_be_moved_away_and_survives_a_line_that_was_cut_off() {
        let folder = Folder::new("bounded");
        let (path, old) = (folder.0.join("log"), folder.0.join("log.1"));
        fs::write(&path, "{\"tick\":9,\"rea").unwrap();
        let mut log = Log::open(&path, true).unwrap();
        log.most = 1000;
        for tick in 1..=50 {
            log.tell(&entry(tick, "steady"));
            assert!(fs::metadata(&path).unwrap().len() < 1500);
        }
        let (before, now) = (ticks(&old), ticks(&path));
        assert_eq!((now.last(), before.last().unwrap() + 1), (Some(&50), now[0]), "nothing is lost between the two");
        fs::rename(&path, folder.0.join("elsewhere")).unwrap();
        log.tell(&entry(51, "steady"));
        assert_eq!(ticks(&path), [51]);
        // The cut-off part is a line of its own.
        fs::write(&path, "{\"tick\":9,\"rea").unwrap();
        log.tell(&entry(52, "steady"));
        assert_eq!(ticks(&path), [0, 52]);
    }

    #[test]
    fn a_log_is_not_written_through_a_link() {
        let folder = Folder::new("link");
        let path = folder.0.join("log");
        std::os::unix::fs::symlink(folder.0.join("victim"), &path).unwrap();
        assert!(Log::open(&path, false).is_err());
        assert!(!folder.0.join("victim").exists());
    }
}
