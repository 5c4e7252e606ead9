//! The status of the process that decides, in a file that `status` and `explain` read. Readers check it before they
//! trust it.

use super::explanation::Explanation;
use super::show::{Entry, now_ms, plain};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use towpath_rxcpus::{MOST_STATE_BYTES, STATE_VERSION, Tree, began, own_text, state_place};
use towpath_scaling::counted;

/// Most decisions in the file.
const MOST_DECISIONS: usize = 24;
/// A process that has not written for this long has stalled, ms.
pub const STALLED_MS: u64 = 10_000;

/// A decision, and how long it has been the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecentDecision {
    /// Ticks for which it has been the same.
    pub ticks: u64,
    /// The last of these ticks.
    #[serde(flatten)]
    pub entry: Entry,
}

/// The status of the process that decides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeciderStatus {
    /// Version of the format.
    pub version: u32,
    /// The boot in which it was written.
    pub boot_id: String,
    /// The process that decides.
    pub pid: u32,
    /// When that process began, in ticks after the boot. Another process may have its number by now.
    pub began: u64,
    /// `observe`, `advise` or `enforce`.
    pub mode: String,
    /// When this was written, ms since 1970.
    pub time_ms: u64,
    /// The network device.
    pub interface: String,
    /// How packets are brought to the reserved CPUs.
    pub way: String,
    /// The control group that is kept off them.
    pub cgroup: Option<String>,
    /// The number of reserved CPUs.
    pub cores: u32,
    /// The reserved CPUs.
    pub reserved: String,
    /// The CPUs of applications.
    pub applications: String,
    /// The CPU of the housekeeping. It is never reserved.
    pub housekeeping: String,
    /// CPUs that threads of services are pinned to. They are never reserved.
    pub taken: String,
    /// Settings that another program has changed.
    pub drifted: Vec<String>,
    /// The last decisions, the newest last.
    pub decisions: Vec<RecentDecision>,
    /// The conditions of the next change.
    pub explanation: Explanation,
}

impl DeciderStatus {
    /// The status of this process, which begins to decide.
    pub fn begin(mode: &str, tree: &Tree, boot_id: &str) -> Self {
        let pid = std::process::id();
        let began = began(tree, pid).unwrap_or(0);
        Self { version: STATE_VERSION, boot_id: boot_id.into(), pid, began, mode: mode.into(), ..Self::default() }
    }

    /// Adds a decision.
    pub fn tell(&mut self, entry: Entry) {
        self.time_ms = entry.time_ms;
        match self.decisions.last_mut() {
            Some(last) if last.entry.reason == entry.reason && entry.from == entry.cores => {
                last.ticks += 1;
                last.entry = entry;
            }
            _ => self.decisions.push(RecentDecision { ticks: 1, entry }),
        }
        let excess = self.decisions.len().saturating_sub(MOST_DECISIONS);
        self.decisions.drain(..excess);
    }

    /// Writes it in one step: readers see the old status or this one.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let text = serde_json::to_string(self)? + "\n";
        replace(path, text.as_bytes())
    }

    /// Reads the status from this path, or from the default one. `None`: no process decides.
    pub fn find(path: Option<&Path>) -> Result<Option<Self>, String> {
        let tree = Tree::default();
        let boot_id = tree.text("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let usual = state_place();
        Self::read(path.unwrap_or(&usual), &tree, &boot_id)
    }
    /// Reads the status from this file, if its writer is alive.
    pub fn read(path: &Path, tree: &Tree, boot_id: &str) -> Result<Option<Self>, String> {
        let failed = |why: String| format!("{}: {why}", path.display());
        let text = match own_text(path, MOST_STATE_BYTES) {
            Ok(Some(text)) => text,
            Ok(None) => return Err(failed("it is not root's or this user's alone, or not of such a size".into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error.to_string())),
        };
        let status: Self = serde_json::from_str(&text).map_err(|error| failed(error.to_string()))?;
        if status.version != STATE_VERSION {
            return Err(failed("it is of another version of towpath".into()));
        }
        let alive = status.boot_id == boot_id && began(tree, status.pid) == Some(status.began);
        Ok(alive.then_some(status))
    }

    /// True if its writer has stopped deciding.
    pub fn is_stalled(&self) -> bool {
        now_ms().saturating_sub(self.time_ms) > STALLED_MS
    }
    /// The last decision.
    pub fn last(&self) -> Option<&Entry> {
        self.decisions.last().map(|told| &told.entry)
    }
    /// In one line.
    pub fn headline(&self) -> String {
        let Self { mode, pid, interface, .. } = self;
        let cores = counted(self.cores, "CPU");
        let which = if self.reserved.is_empty() { String::new() } else { format!(" ({})", self.reserved) };
        let why = self.last().map_or("nothing has been decided yet", |entry| entry.why.as_str());
        plain(&format!("{mode}, pid {pid}: {cores}{which} for {interface}, {}: {why}", self.way))
    }
}

/// True if the file may be replaced. A device or a link may not: `/dev/stdout` is another program's.
pub fn is_ours(path: &Path) -> bool {
    fs::symlink_metadata(path).map_or(true, |about| about.is_file())
}

/// Writes a file in one step. The old text stays until the new one is whole.
pub fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    if !is_ours(path) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    name.push(format!(".{}", std::process::id()));
    let new = path.with_file_name(name);
    // A killed process may have left this file. It is removed and never written through.
    let _ = fs::remove_file(&new);
    let mut file = File::options().write(true).create_new(true).mode(0o644).open(&new)?;
    let written = file.write_all(text).and_then(|()| fs::rename(&new, path));
    written.inspect_err(|_| drop(fs::remove_file(&new)))
}
