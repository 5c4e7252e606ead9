//! How the one who decides stands, in a file that `status` and `explain` read. Whoever reads it trusts it no further than it can be checked.

use super::explain::Explanation;
use super::show::{Entry, now_ms, plain};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use towpath_anp::{MOST_STATE_BYTES, STATE_VERSION, Tree, began, own_text, state_place};
use towpath_cores::counted;

/// Most decisions that it has.
const MOST_DECISIONS: usize = 24;
/// One that has not written for so long does not work any more, ms.
pub const STALLED_MS: u64 = 10_000;

/// A decision, and for how long it was the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// For so many ticks.
    pub ticks: u64,
    /// The last of them.
    #[serde(flatten)]
    pub entry: Entry,
}

/// How it stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// Version of this form.
    pub version: u32,
    /// Of this boot.
    pub boot_id: String,
    /// Who decides.
    pub pid: u32,
    /// When that process began, ticks after the boot: another process may have this number by now.
    pub began: u64,
    /// `observe`, `advise` or `enforce`.
    pub mode: String,
    /// When this was written, ms since 1970.
    pub time_ms: u64,
    /// The network card.
    pub interface: String,
    /// How packets are brought to the reserved CPUs.
    pub way: String,
    /// The control group that is kept off them.
    pub cgroup: Option<String>,
    /// As many CPUs as are reserved.
    pub cores: u32,
    /// Which.
    pub reserved: String,
    /// Where applications are.
    pub applications: String,
    /// Never reserved: it does the rest.
    pub housekeeping: String,
    /// Never reserved: threads of services are pinned to them.
    pub taken: String,
    /// Settings that somebody else has changed.
    pub drifted: Vec<String>,
    /// The last decisions, the newest last.
    pub decisions: Vec<Told>,
    /// What is waited for.
    pub explanation: Explanation,
}

impl Standing {
    /// Of a decider that begins now.
    pub fn begin(mode: &str, tree: &Tree, boot_id: &str) -> Self {
        let pid = std::process::id();
        let began = began(tree, pid).unwrap_or(0);
        Self { version: STATE_VERSION, boot_id: boot_id.into(), pid, began, mode: mode.into(), ..Self::default() }
    }

    /// One more decision.
    pub fn tell(&mut self, entry: Entry) {
        self.time_ms = entry.time_ms;
        match self.decisions.last_mut() {
            Some(last) if last.entry.reason == entry.reason && entry.from == entry.cores => {
                last.ticks += 1;
                last.entry = entry;
            }
            _ => self.decisions.push(Told { ticks: 1, entry }),
        }
        let excess = self.decisions.len().saturating_sub(MOST_DECISIONS);
        self.decisions.drain(..excess);
    }

    /// Writes it whole or not at all: readers see the old one or this one.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let text = serde_json::to_string(self)? + "\n";
        replace(path, text.as_bytes())
    }

    /// Of whoever decides and lives: from the usual place, or from this one. `None`: nobody does.
    pub fn find(path: Option<&Path>) -> Result<Option<Self>, String> {
        let tree = Tree::default();
        let boot_id = tree.text("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let usual = state_place();
        Self::read(path.unwrap_or(&usual), &tree, &boot_id)
    }
    /// In this file, if its writer lives.
    pub fn read(path: &Path, tree: &Tree, boot_id: &str) -> Result<Option<Self>, String> {
        let failed = |why: String| format!("{}: {why}", path.display());
        let text = match own_text(path, MOST_STATE_BYTES) {
            Ok(Some(text)) => text,
            Ok(None) => return Err(failed("it is not root's or this user's alone, or not of such a size".into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error.to_string())),
        };
        let standing: Self = serde_json::from_str(&text).map_err(|error| failed(error.to_string()))?;
        if standing.version != STATE_VERSION {
            return Err(failed("it is of another version of towpath".into()));
        }
        let alive = standing.boot_id == boot_id && began(tree, standing.pid) == Some(standing.began);
        Ok(alive.then_some(standing))
    }

    /// Does it still work?
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

/// May it be replaced? Not a device or a link: `/dev/stdout` is somebody else's.
pub fn is_ours(path: &Path) -> bool {
    fs::symlink_metadata(path).map_or(true, |about| about.is_file())
}

/// Writes a file in one step. Its old text is there until the new one is whole.
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
    // One that was killed in the middle has left it; whatever it is, it is not written through.
    let _ = fs::remove_file(&new);
    let mut file = File::options().write(true).create_new(true).mode(0o644).open(&new)?;
    let written = file.write_all(text).and_then(|()| fs::rename(&new, path));
    written.inspect_err(|_| drop(fs::remove_file(&new)))
}
