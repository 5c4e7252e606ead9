//! The journal of old values. A file's value is on the disk before the file's first change. So after a process was
//! killed, another one can put everything back.

use crate::cgroup;
use crate::knob::{ApplyError, Knob};
use crate::own::own_text;
use crate::setting::Setting;
use crate::task;
use crate::tree::Tree;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Version of the format. Earlier ones can be read too: they had fewer kinds of settings.
const VERSION: u32 = 3;
/// Most bytes that are read: years of changes.
const MOST_BYTES: u64 = 1 << 30;

/// A line of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum JournalLine {
    /// The first line.
    Head { version: u32, boot_id: String },
    /// The value that is about to be written. The first line of a file also has the value before any change.
    Write {
        path: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        before: Option<String>,
        value: String,
    },
}

/// Why a journal cannot be opened, or a change cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file cannot be read or written.
    #[error("the journal {path}: {error}")]
    File {
        /// Its path.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It has changes that were not put back.
    #[error("the journal {0} has what another has changed: `towpath cores restore` puts it back")]
    Stale(PathBuf),
    /// Another version of this program has written it.
    #[error("the journal {0} is of another version of towpath: use that one's `towpath cores restore`")]
    Version(PathBuf),
    /// Another user could have written it. Restoring it could write any value anywhere.
    #[error("the journal {0} is not root's or this user's alone: look at it, and remove it")]
    Foreign(PathBuf),
    /// A knob failed, and everything that had been set was put back.
    #[error("{0}; everything is as it was")]
    Undone(#[from] ApplyError),
    /// A knob failed, and not everything could be put back.
    #[error("{error}; and {left} of what had been set could not be put back: `towpath cores restore` tries again")]
    Left {
        /// The first error.
        error: ApplyError,
        /// How many are left.
        left: usize,
    },
}

/// A file or setting, and its values.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    path: String,
    before: String,
    /// The values that were written, or about to be. The last one should be there now.
    values: Vec<String>,
    /// True if it was given back before the end. Then it is no longer watched.
    released: bool,
}

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    entries: Vec<Entry>,
}

/// The result of restoring a file.
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
    /// Another program has changed it since. That value stays.
    Others {
        /// The file.
        path: String,
        /// The value.
        value: String,
    },
    /// It does not exist any more: the device, or the control group, has gone.
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
    /// Creates a journal. One of an earlier boot is removed: the kernel has forgotten those changes.
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
        journal.add(&JournalLine::Head { version: VERSION, boot_id: boot_id.to_owned() })?;
        // The name must be on the disk, too.
        if let Some(folder) = path.parent() {
            File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
        }
        Ok(journal)
    }

    fn add(&mut self, line: &JournalLine) -> Result<(), JournalError> {
        let failed = |error| JournalError::File { path: self.path.clone(), error };
        let mut text = serde_json::to_string(line).map_err(|error| failed(error.into()))?;
        text.push('\n');
        self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data()).map_err(failed)
    }

    /// Sets all of these in order, or none: if one fails, those before it are put back.
    pub fn apply(&mut self, tree: &Tree, knobs: &[Knob]) -> Result<(), JournalError> {
        let mut undo: Vec<Knob> = Vec::new();
        for knob in knobs {
            let read = tree.read(&knob.path).map_err(|error| ApplyError::Read { path: knob.path.clone(), error });
            let result = match read.map(|now| cgroup::writable(&knob.path, now)) {
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
        self.add(&JournalLine::Write { path: knob.path.clone(), before, value: knob.value.clone() })?;
        match known {
            Some(place) => {
                self.entries[place].values.push(knob.value.clone());
                self.entries[place].released = false;
            }
            None => {
                let values = vec![knob.value.clone()];
                self.entries.push(Entry { path: knob.path.clone(), before: now.to_owned(), values, released: false });
            }
        }
        Ok(())
    }
    /// Sets a knob whose old value is known.
    fn put(&mut self, tree: &Tree, knob: &Knob) -> Result<(), JournalError> {
        let now = tree.read(&knob.path).unwrap_or_default();
        self.note(knob, &now)?;
        knob.give_back(tree)?;
        Ok(())
    }

    /// Gives back every setting that is not wanted any more. If that fails, the setting stays in the journal.
    pub fn release(&mut self, tree: &Tree, wanted: &[Knob]) {
        for place in (0..self.entries.len()).rev() {
            let entry = &self.entries[place];
            if entry.released || wanted.iter().any(|knob| knob.path == entry.path) {
                continue;
            }
            let ours = |now: String| entry.values.last().is_some_and(|ours| entry.is(&now, ours));
            let back = entry.back();
            let done = !tree.text(&entry.path).is_some_and(ours) || self.put(tree, &back).is_ok();
            self.entries[place].released = done;
        }
    }

    /// Values that other programs have changed since: path, our value, their value.
    pub fn drifted(&self, tree: &Tree) -> Vec<(String, String, String)> {
        let changed = |entry: &Entry| {
            let (now, ours) = (tree.read(&entry.path).ok()?, entry.values.last()?);
            (!Knob::same(&entry.path, &now, ours)).then(|| (entry.path.clone(), ours.clone(), now))
        };
        self.entries.iter().filter(|entry| !entry.released).filter_map(changed).collect()
    }

    /// Puts back everything in the journal at this path, the last first. Values that other programs have changed since
    /// stay. Afterwards the journal is removed, unless something has failed. `None`: there is no journal.
    pub fn restore(path: &Path, tree: &Tree, boot_id: &str) -> Result<Option<Vec<Restored>>, JournalError> {
        let failed = |error| JournalError::File { path: path.to_owned(), error };
        let Some((head, entries)) = read(path)? else { return Ok(None) };
        let mut restored = Vec::new();
        if head == boot_id {
            restored.extend(entries.iter().rev().map(|entry| entry.restore(tree)));
            free(tree, &entries);
        }
        if !restored.iter().any(|result| matches!(result, Restored::Failed { .. })) {
            fs::remove_file(path).map_err(failed)?;
        }
        Ok(Some(restored))
    }
}

/// Frees threads of confined processes that have no entry.
fn free(tree: &Tree, entries: &[Entry]) {
    let known: Vec<String> = entries.iter().map(|entry| entry.path.clone()).collect();
    for entry in entries {
        match Setting::parse(&entry.path) {
            Some(Setting::Task(main)) if main.thread == main.process => {
                task::free(tree, main, &known, &entry.values, &entry.before);
            }
            _ => {}
        }
    }
}

impl Entry {
    fn back(&self) -> Knob {
        Knob::new(self.path.clone(), self.before.clone(), "")
    }
    /// True if the present value comes from our change.
    fn is(&self, now: &str, ours: &str) -> bool {
        Knob::same(&self.path, now, ours) || cgroup::invalidated(&self.path, now, ours)
    }
    fn restore(&self, tree: &Tree) -> Restored {
        let path = self.path.clone();
        let Ok(now) = tree.read(&path) else { return Restored::Gone { path } };
        // The change may be in the journal and not done yet.
        if Knob::same(&path, &now, &self.before) {
            return Restored::Back { path, value: self.before.clone() };
        }
        if !self.values.iter().any(|value| self.is(&now, value)) {
            return Restored::Others { path, value: now };
        }
        match self.back().give_back(tree) {
            Ok(value) => Restored::Back { path, value },
            Err(error) => Restored::Failed { path, error: error.to_string() },
        }
    }
}

/// The boot id and the entries of a journal. `None`: there is none. If the last line was cut off, its change was not
/// made.
fn read(path: &Path) -> Result<Option<(String, Vec<Entry>)>, JournalError> {
    // Root will write these values, so nobody else may have written the file.
    let text = match own_text(path, MOST_BYTES) {
        Ok(text) => text.ok_or_else(|| JournalError::Foreign(path.to_owned()))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(JournalError::File { path: path.to_owned(), error }),
    };
    let mut lines =
        text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(serde_json::from_str::<JournalLine>);
    let boot = match lines.next() {
        None => return Ok(Some((String::new(), Vec::new()))),
        Some(Ok(JournalLine::Head { version: 1..=VERSION, boot_id })) => boot_id,
        Some(_) => return Err(JournalError::Version(path.to_owned())),
    };
    let mut entries: Vec<Entry> = Vec::new();
    for line in lines {
        let Ok(JournalLine::Write { path: of, before, value }) = line else {
            return Err(JournalError::Version(path.to_owned()));
        };
        if Setting::parse(&of).is_none() {
            return Err(JournalError::Foreign(path.to_owned()));
        }
        match (entries.iter_mut().find(|entry| entry.path == of), before) {
            (Some(entry), _) => entry.values.push(value),
            (None, Some(before)) => entries.push(Entry { path: of, before, values: vec![value], released: false }),
            (None, None) => return Err(JournalError::Version(path.to_owned())),
        }
    }
    Ok(Some((boot, entries)))
}
