//! A knob: a setting and the value that it gets.

use crate::cgroup;
use crate::setting::Setting;
use crate::tree::Tree;
use serde::Serialize;

/// A [`Setting`], and the value to write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Knob {
    /// The setting's name. For a file it is the path.
    pub path: String,
    /// The value.
    pub value: String,
    /// Why, for people.
    pub why: String,
}

/// Why a knob could not be set.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// It cannot be read, so it could not be put back.
    #[error("{path} cannot be read: {error}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// The kernel refuses the value.
    #[error("{path} does not take {value:?}: {error}{}", hint(.error))]
    Write {
        /// The file.
        path: String,
        /// The value.
        value: String,
        /// Why.
        error: std::io::Error,
    },
    /// The kernel accepted the value, and another one is there.
    #[error("{path} was given {value:?} and says {found:?}")]
    NotTaken {
        /// The file.
        path: String,
        /// The value.
        value: String,
        /// The value that is there.
        found: String,
    },
}

fn hint(error: &std::io::Error) -> &'static str {
    match error.raw_os_error() {
        // EIO, ENOSPC, EACCES/EPERM.
        Some(5) => " (an interrupt that the kernel manages by itself)",
        Some(28) => " (no interrupt vector is free on those CPUs, or no CPU is left)",
        Some(1 | 13) => " (this needs root)",
        _ => "",
    }
}

impl ApplyError {
    /// The interrupt, if the error is that it cannot be moved. EIO: the kernel manages it. ENOSPC: no vector is free.
    pub fn refusing_irq(&self) -> Option<u32> {
        match self {
            Self::Write { path, error, .. } if matches!(error.raw_os_error(), Some(5 | 28)) => irq_of(path),
            _ => None,
        }
    }
}

/// The interrupt that the file belongs to.
pub fn irq_of(path: &str) -> Option<u32> {
    path.strip_prefix("/proc/irq/")?.strip_suffix("/smp_affinity_list")?.parse().ok()
}

impl Knob {
    /// A knob with its reason.
    pub fn new(path: String, value: String, why: impl Into<String>) -> Self {
        Self { path, value, why: why.into() }
    }
    /// The command that does the same.
    pub fn command(&self) -> String {
        Setting::parse(&self.path).map_or_else(String::new, |setting| setting.command(&self.value))
    }
    /// True if both values mean the same for this setting.
    pub fn same(path: &str, a: &str, b: &str) -> bool {
        Setting::parse(path).map_or(a.trim() == b.trim(), |setting| setting.same(a, b))
    }
    /// True if the setting has this value already.
    pub fn holds(&self, tree: &Tree) -> bool {
        tree.text(&self.path).is_some_and(|now| Self::same(&self.path, &now, &self.value))
    }
    /// Puts an old value back, and returns the value that was written.
    ///
    /// Many kernels cannot make a control group with processes in it follow its parent again (version 2, ENOSPC). Then
    /// it gets all CPUs of its parent.
    pub fn give_back(&self, tree: &Tree) -> Result<String, ApplyError> {
        // A refused value has changed nothing, and a control group that was not made cannot be removed.
        if self.holds(tree) {
            return Ok(self.value.clone());
        }
        let refused = match self.apply(tree) {
            Ok(()) => return Ok(self.value.clone()),
            Err(error) => error,
        };
        let parent = self.path.strip_suffix("/cpuset.cpus").and_then(|group| group.rsplit_once('/'));
        let all = parent.filter(|_| self.value.is_empty()).and_then(|(parent, _)| {
            // The root group of version 2 has this file only since Linux 6.1.
            let file = format!("{parent}/cpuset.cpus.effective");
            tree.text(&file).or_else(|| tree.text("/sys/devices/system/cpu/online"))
        });
        let Some(all) = all else { return Err(refused) };
        Self::new(self.path.clone(), all.clone(), "").apply(tree).map(|()| all)
    }
    /// Writes the value, and checks that it took effect.
    pub fn apply(&self, tree: &Tree) -> Result<(), ApplyError> {
        let Self { path, value, .. } = self;
        let (path_of, value_of) = (|| path.clone(), || value.clone());
        let write = |value: &str| {
            let failed = |error| ApplyError::Write { path: path_of(), value: value.to_owned(), error };
            tree.write(path, value).map_err(failed)
        };
        if let Some(before) = tree.text(path).and_then(|now| cgroup::write_first(path, &now, value)) {
            write(before)?;
        }
        write(value)?;
        let found = tree.read(path).map_err(|error| ApplyError::Read { path: path_of(), error })?;
        if Self::same(path, &found, value) {
            Ok(())
        } else {
            Err(ApplyError::NotTaken { path: path_of(), value: value_of(), found })
        }
    }
}
