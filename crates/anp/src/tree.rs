//! `/sys` and `/proc`, or a folder that stands for them.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How a value gets into a file.
pub type Writer = dyn Fn(&Path, &str) -> io::Result<()> + Send + Sync;

/// Where paths begin, and how values are written.
#[derive(Clone)]
pub struct Tree {
    root: PathBuf,
    writer: Arc<Writer>,
}

impl Default for Tree {
    /// This machine's.
    fn default() -> Self {
        Self::at(Path::new("/"))
    }
}

impl Tree {
    /// In this folder.
    pub fn at(root: &Path) -> Self {
        Self::with_writer(root, Arc::new(into_file))
    }
    /// In this folder, written in this way.
    pub fn with_writer(root: &Path, writer: Arc<Writer>) -> Self {
        Self { root: root.to_owned(), writer }
    }
    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The text of a file, without the line's end.
    pub fn read(&self, path: &str) -> io::Result<String> {
        fs::read_to_string(self.path(path)).map(|text| text.trim_end().to_owned())
    }
    /// The text of a file, if there is one that can be read.
    pub fn text(&self, path: &str) -> Option<String> {
        self.read(path).ok()
    }
    /// A number in a file.
    pub fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.trim().parse().ok()
    }
    /// Names in a folder, sorted; none if there is no such folder.
    pub fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }
    /// The last part of what a link points to.
    pub fn link(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        target.file_name()?.to_str().map(str::to_owned)
    }
    /// Is there such a file or folder?
    pub fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }
    /// Writes a value.
    pub fn write(&self, path: &str, value: &str) -> io::Result<()> {
        (self.writer)(&self.path(path), value)
    }
}

/// To a file that exists, in one call, as such files want it.
pub fn into_file(path: &Path, value: &str) -> io::Result<()> {
    fs::OpenOptions::new().write(true).truncate(true).open(path)?.write_all(format!("{value}\n").as_bytes())
}
