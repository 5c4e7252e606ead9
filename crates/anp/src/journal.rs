//! What was there before. Every value is written down, and on the disk, before the first change of its file; so whoever comes after a
//! process that was killed can put everything back.

use crate::knob::{ApplyError, Knob};
use crate::tree::Tree;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Version of the journal's form.
const VERSION: u32 = 1;

/// A line of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    /// The first.
    Head { version: u32, boot_id: String },
    /// The file's value before anything was changed (only at its first time), and what is about to be written.
    Write {
        path: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        before: Option<String>,
        value: String,
    },
}

/// Why there is no journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file.
    #[error("the journal {path}: {error}")]
    File {
        /// Where.
        path: PathBuf,
        /// What.
        error: io::Error,
    },
    /// Somebody has not given back what he took.
    #[error("the journal {0} has what another has changed: `towpath cores restore` puts it back")]
    Stale(PathBuf),
    /// It is of another version of this program.
    #[error("the journal {0} is of another version of towpath: use that one's `towpath cores restore`")]
    Version(PathBuf),
    /// Somebody else could have written it, and with it anything anywhere.
    #[error("the journal {0} is not this user's alone: look at it, and remove it")]
    Foreign(PathBuf),
    /// A knob, and then everything that had been set was put back.
    #[error("{0}; everything is as it was")]
    Undone(#[from] ApplyError),
    /// A knob, and then not everything could be put back.
    #[error("{error}; and {left} of what had been set could not be put back: `towpath cores restore` tries again")]
    Left {
        /// The first.
        error: ApplyError,
        /// How many.
        left: usize,
    },
}

/// One file's story.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    path: String,
    before: String,
    /// What we have written, or were about to: the last is what should be there.
    values: Vec<String>,
}

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    entries: Vec<Entry>,
}

/// What became of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "result", rename_all = "kebab-case")]
pub enum Restored {
    /// It has its old value again.
    Back {
        /// The file.
        path: String,
        /// The value.
        value: String,
    },
    /// Somebody else has given it another value since, which stays.
    Others {
        /// The file.
        path: String,
        /// The value.
        value: String,
    },
    /// It is not there any more: the card, or the control group, has gone.
    Gone {
        /// The file.
        path: String,
    },
    /// It could not be written.
    Failed {
        /// The file.
        path: String,
        /// Why.
        error: String,
    },
}

impl Journal {
    /// A new one. A journal of an earlier boot is of no use any more: the kernel has forgotten all of it as well.
    pub fn create(path: &Path, boot_id: &str) -> Result<Self, JournalError> {
        let failed = |error| JournalError::File { path: path.to_owned(), error };
        if let Some((head, entries)) = read(path)? {
            if head == boot_id && !entries.is_empty() {
                return Err(JournalError::Stale(path.to_owned()));
            }
            fs::remove_file(path).map_err(failed)?;
        }
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let mut options = OpenOptions::new();
        let file =
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600).append(true).create_new(true).open(path);
        let mut journal = Self { file: file.map_err(failed)?, path: path.to_owned(), entries: Vec::new() };
        journal.add(&Line::Head { version: VERSION, boot_id: boot_id.to_owned() })?;
        // The folder has its name on the disk as well.
        if let Some(folder) = path.parent() {
            File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
        }
        Ok(journal)
    }

    fn add(&mut self, line: &Line) -> Result<(), JournalError> {
        let failed = |error| JournalError::File { path: self.path.clone(), error };
        let mut text = serde_json::to_string(line).map_err(|error| failed(error.into()))?;
        text.push('\n');
        self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data()).map_err(failed)
    }

    /// Sets all of these, in this order, or none: at the first that fails, those before it are put back.
    pub fn apply(&mut self, tree: &Tree, knobs: &[Knob]) -> Result<(), JournalError> {
        let mut undo: Vec<Knob> = Vec::new();
        for knob in knobs {
            let read = tree.read(&knob.path).map_err(|error| ApplyError::Read { path: knob.path.clone(), error });
            let result = match read {
                Ok(now) if Knob::same(&knob.path, &now, &knob.value) => continue,
                Ok(now) => {
                    self.note(knob, &now)?;
                    undo.push(Knob::new(knob.path.clone(), now, ""));
                    knob.apply(tree)
                }
                Err(error) => Err(error),
            };
            if let Err(error) = result {
                let left = undo.iter().rev().filter(|knob| self.put(tree, knob).is_err()).count();
                return Err(if left == 0 { error.into() } else { JournalError::Left { error, left } });
            }
        }
        Ok(())
    }
    fn note(&mut self, knob: &Knob, now: &str) -> Result<(), JournalError> {
        let known = self.entries.iter().position(|entry| entry.path == knob.path);
        let before = known.is_none().then(|| now.to_owned());
        self.add(&Line::Write { path: knob.path.clone(), before, value: knob.value.clone() })?;
        match known {
            Some(place) => self.entries[place].values.push(knob.value.clone()),
            None => {
                let values = vec![knob.value.clone()];
                self.entries.push(Entry { path: knob.path.clone(), before: now.to_owned(), values });
            }
        }
        Ok(())
    }
    /// Sets one without asking what it was: that is known.
    fn put(&mut self, tree: &Tree, knob: &Knob) -> Result<(), JournalError> {
        let now = tree.read(&knob.path).unwrap_or_default();
        self.note(knob, &now)?;
        Ok(knob.apply(tree)?)
    }

    /// Values of ours that others have changed since: path, ours, theirs.
    pub fn drifted(&self, tree: &Tree) -> Vec<(String, String, String)> {
        let changed = |entry: &Entry| {
            let (now, ours) = (tree.read(&entry.path).ok()?, entry.values.last()?);
            (!Knob::same(&entry.path, &now, ours)).then(|| (entry.path.clone(), ours.clone(), now))
        };
        self.entries.iter().filter_map(changed).collect()
    }

    /// Puts everything back that the journal at this place knows of, the last first; what others have changed since stays. The journal is
    /// gone afterwards, unless something has failed. `None`: there is no journal.
    pub fn restore(path: &Path, tree: &Tree, boot_id: &str) -> Result<Option<Vec<Restored>>, JournalError> {
        let failed = |error| JournalError::File { path: path.to_owned(), error };
        let Some((head, entries)) = read(path)? else { return Ok(None) };
        let mut restored = Vec::new();
        if head == boot_id {
            restored.extend(entries.iter().rev().map(|entry| entry.restore(tree)));
        }
        if !restored.iter().any(|result| matches!(result, Restored::Failed { .. })) {
            fs::remove_file(path).map_err(failed)?;
        }
        Ok(Some(restored))
    }
}

impl Entry {
    fn restore(&self, tree: &Tree) -> Restored {
        let path = self.path.clone();
        let Ok(now) = tree.read(&path) else { return Restored::Gone { path } };
        // Written down and not done yet: then it still is what it was.
        if Knob::same(&path, &now, &self.before) {
            return Restored::Back { path, value: self.before.clone() };
        }
        if !self.values.iter().any(|value| Knob::same(&path, &now, value)) {
            return Restored::Others { path, value: now };
        }
        match Knob::new(path.clone(), self.before.clone(), "").apply(tree) {
            Ok(()) => Restored::Back { path, value: self.before.clone() },
            Err(error) => Restored::Failed { path, error: error.to_string() },
        }
    }
}

/// What is in a file that is this user's and that nobody else can write; `None` = it is not so. Whoever puts back is root, and writes what
/// stands there.
fn own_text(path: &Path) -> io::Result<Option<String>> {
    use std::os::unix::fs::MetadataExt;
    if fs::symlink_metadata(path)?.is_symlink() {
        return Ok(None);
    }
    let mut file = File::open(path)?;
    let about = file.metadata()?;
    let own = about.is_file() && about.uid() == rustix::process::geteuid().as_raw() && about.mode() & 0o022 == 0;
    let mut text = String::new();
    if own {
        file.read_to_string(&mut text)?;
    }
    Ok(own.then_some(text))
}

/// The boot and the entries of a journal. `None`: there is none. A last line that was cut off is one whose change was not made.
fn read(path: &Path) -> Result<Option<(String, Vec<Entry>)>, JournalError> {
    let text = match own_text(path) {
        Ok(text) => text.ok_or_else(|| JournalError::Foreign(path.to_owned()))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(JournalError::File { path: path.to_owned(), error }),
    };
    let mut lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(serde_json::from_str::<Line>);
    let boot = match lines.next() {
        None => return Ok(Some((String::new(), Vec::new()))),
        Some(Ok(Line::Head { version: VERSION, boot_id })) => boot_id,
        Some(_) => return Err(JournalError::Version(path.to_owned())),
    };
    let mut entries: Vec<Entry> = Vec::new();
    for line in lines {
        let Ok(Line::Write { path: of, before, value }) = line else {
            return Err(JournalError::Version(path.to_owned()));
        };
        let settings = of.starts_with("/proc/") || of.starts_with("/sys/");
        if !settings || of.split('/').any(|part| part == "..") {
            return Err(JournalError::Foreign(path.to_owned()));
        }
        match (entries.iter_mut().find(|entry| entry.path == of), before) {
            (Some(entry), _) => entry.values.push(value),
            (None, Some(before)) => entries.push(Entry { path: of, before, values: vec![value] }),
            (None, None) => return Err(JournalError::Version(path.to_owned())),
        }
    }
    Ok(Some((boot, entries)))
}
