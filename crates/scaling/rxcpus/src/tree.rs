//! `/sys` and `/proc`, or a folder that stands for them.
//!
//! A setting that is no file is a file in `kernel/` of such a folder, with the setting's name.

use crate::host;
use crate::netdev::Napi;
use crate::setting::Setting;
use crate::table::Table;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Writes a value into a file.
pub type Writer = dyn Fn(&Path, &str) -> io::Result<()> + Send + Sync;

/// Where paths begin, and how values are written.
#[derive(Clone)]
pub struct Tree {
    root: PathBuf,
    writer: Arc<Writer>,
    /// True if it stands for another machine.
    folder: bool,
}

/// Buckets of a folder's devices that have the default table.
const FOLDER_BUCKETS: usize = 128;

impl Default for Tree {
    /// The tree of this machine.
    fn default() -> Self {
        Self::at(Path::new("/"))
    }
}

impl Tree {
    /// The tree in this folder.
    pub fn at(root: &Path) -> Self {
        Self::with_writer(root, Arc::new(host::write_file))
    }
    /// The same with another way to write values.
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
    /// The setting of this name, if it is one of this machine and no file.
    fn other(&self, name: &str) -> Option<Setting> {
        Setting::parse(name).filter(|setting| !self.folder && !matches!(setting, Setting::File(_)))
    }

    /// The text of a file or a setting, without its last newline.
    pub fn read(&self, name: &str) -> io::Result<String> {
        if let (true, Some(folder)) = (self.folder, group(name)) {
            let present = self.path(&folder).is_dir();
            return Ok(if present { Setting::PRESENT } else { Setting::ABSENT }.to_owned());
        }
        let text = self.other(name).map_or_else(|| fs::read_to_string(self.path(name)), |setting| host::read(&setting));
        text.map(|text| text.trim_end().to_owned())
    }
    /// A device's indirection table, if it has one.
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
    /// The NAPI instances of an interface. Empty if the kernel does not list them.
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
    /// The text of a file or a setting, if it can be read.
    pub fn text(&self, name: &str) -> Option<String> {
        self.read(name).ok()
    }
    /// A number in a file.
    pub fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.text(path)?.trim().parse().ok()
    }
    /// The names in a folder, sorted. Empty if there is no such folder.
    pub fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }
    /// The last component of a link's target.
    pub fn link(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        target.file_name()?.to_str().map(str::to_owned)
    }
    /// True if there is such a file or folder.
    pub fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }
    /// The inode of a file or folder. A new one with the same name has another.
    pub fn inode(&self, path: &str) -> Option<u64> {
        fs::metadata(self.path(path)).ok().map(|about| std::os::unix::fs::MetadataExt::ino(&about))
    }
    /// True if it is a file.
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

/// The folder of the control group that the setting names, if it names one.
fn group(name: &str) -> Option<String> {
    match Setting::parse(name) {
        Some(Setting::Group(folder)) => Some(folder),
        _ => None,
    }
}
