//! `/sys` and `/proc`, or a folder that stands for them.
//!
//! What can be set and is no file is in `kernel/` of such a folder: a file with the setting's name.

use crate::host;
use crate::netdev::Napi;
use crate::setting::Setting;
use crate::table::Table;
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
    /// Does it stand for another machine?
    folder: bool,
}

/// Buckets of the cards of a folder that have the table that cards begin with.
const FOLDER_BUCKETS: usize = 128;

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
        Self { root: root.to_owned(), writer, folder: root != Path::new("/") }
    }
    fn path(&self, path: &str) -> PathBuf {
        if path.starts_with('/') {
            self.root.join(path.trim_start_matches('/'))
        } else {
            self.root.join("kernel").join(path)
        }
    }
    /// What is no file, on this machine.
    fn other(&self, name: &str) -> Option<Setting> {
        Setting::parse(name).filter(|setting| !self.folder && !matches!(setting, Setting::File(_)))
    }

    /// The text of a file or a setting, without the line's end.
    pub fn read(&self, name: &str) -> io::Result<String> {
        if let (true, Some(folder)) = (self.folder, group(name)) {
            let present = self.path(&folder).is_dir();
            return Ok(if present { Setting::PRESENT } else { Setting::ABSENT }.to_owned());
        }
        let text = self.other(name).map_or_else(|| fs::read_to_string(self.path(name)), |setting| host::read(&setting));
        text.map(|text| text.trim_end().to_owned())
    }
    /// A card's indirection table, if it has one.
    pub fn table(&self, interface: &str) -> Option<Table> {
        if !self.folder {
            return crate::ethtool::table(interface).ok();
        }
        let names = self.names(&format!("/sys/class/net/{interface}/queues"));
        let queues = names.iter().filter(|name| name.starts_with("rx-")).count() as u32;
        let buckets = Table::parse(&self.text(&format!("rss:{interface}"))?)?;
        let default = Table::default_of(FOLDER_BUCKETS, queues);
        Some(if buckets.is_empty() { default } else { Table { buckets, queues } })
    }
    /// The NAPI instances of an interface; none if the kernel does not tell of them.
    pub fn napis(&self, interface: &str) -> Vec<Napi> {
        if !self.folder {
            return host::napis(interface).unwrap_or_default();
        }
        let of = |name: &String| match Setting::parse(name) {
            Some(Setting::NapiThreaded(of, id)) if of == interface => Some(id),
            _ => None,
        };
        let ids = self.names("/kernel").iter().filter_map(of).collect::<Vec<_>>();
        let napi = |(queue, id)| Napi { id, queue: Some(queue as u32), threaded: Some(false), ..Napi::default() };
        ids.into_iter().enumerate().map(napi).collect()
    }
    /// The text of a file or a setting, if there is one that can be read.
    pub fn text(&self, name: &str) -> Option<String> {
        self.read(name).ok()
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
    /// The number by which a file system knows a file or folder: another one has another, also with the same name.
    pub fn inode(&self, path: &str) -> Option<u64> {
        fs::metadata(self.path(path)).ok().map(|about| std::os::unix::fs::MetadataExt::ino(&about))
    }
    /// Is it a file?
    pub fn is_file(&self, path: &str) -> bool {
        self.path(path).is_file()
    }
    /// Writes a value.
    pub fn write(&self, name: &str, value: &str) -> io::Result<()> {
        if let (true, Some(folder)) = (self.folder, group(name)) {
            return (self.writer)(&self.path(&folder), value);
        }
        match self.other(name) {
            Some(setting) => host::write(&setting, value),
            None => (self.writer)(&self.path(name), value),
        }
    }
}

/// The folder of the control group that is meant, if one is.
fn group(name: &str) -> Option<String> {
    match Setting::parse(name) {
        Some(Setting::Group(folder)) => Some(folder),
        _ => None,
    }
}

/// To a file that exists, in one call, as such files want it.
pub fn into_file(path: &Path, value: &str) -> io::Result<()> {
    fs::OpenOptions::new().write(true).truncate(true).open(path)?.write_all(format!("{value}\n").as_bytes())
}
