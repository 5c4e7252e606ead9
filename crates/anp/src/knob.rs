//! One thing to set.

use crate::cpulist::CpuSet;
use crate::tree::Tree;
use serde::Serialize;

/// A file of the kernel's, and what is to stand in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Knob {
    /// The file.
    pub path: String,
    /// The value.
    pub value: String,
    /// Why, for people.
    pub why: String,
}

/// Why a knob could not be set.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// It cannot be read, so nobody could put it back.
    #[error("{path} cannot be read: {error}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// The kernel does not want the value.
    #[error("{path} does not take {value:?}: {error}{}", hint(.error))]
    Write {
        /// The file.
        path: String,
        /// The value.
        value: String,
        /// Why.
        error: std::io::Error,
    },
    /// The kernel took the value, and something else stands there.
    #[error("{path} was given {value:?} and says {found:?}")]
    NotTaken {
        /// The file.
        path: String,
        /// The value.
        value: String,
        /// What stands there.
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

impl Knob {
    /// With a reason.
    pub fn new(path: String, value: String, why: impl Into<String>) -> Self {
        Self { path, value, why: why.into() }
    }
    /// The command that does the same.
    pub fn command(&self) -> String {
        format!("echo {} > {}", self.value, self.path)
    }
    /// Do the two say the same? The kernel writes sets of CPUs with more zeros, or as lists, than it was given.
    pub fn same(path: &str, a: &str, b: &str) -> bool {
        let set = |text: &str| {
            let list = path.ends_with("_list") || path.ends_with("cpuset.cpus");
            if list { CpuSet::of_list(text) } else { CpuSet::of_mask(text) }
        };
        a.trim() == b.trim() || matches!((set(a), set(b)), (Some(a), Some(b)) if a == b)
    }
    /// Sets it, and looks whether it is so.
    pub fn apply(&self, tree: &Tree) -> Result<(), ApplyError> {
        let Self { path, value, .. } = self;
        let (path_of, value_of) = (|| path.clone(), || value.clone());
        tree.write(path, value).map_err(|error| ApplyError::Write { path: path_of(), value: value_of(), error })?;
        let found = tree.read(path).map_err(|error| ApplyError::Read { path: path_of(), error })?;
        if Self::same(path, &found, value) {
            Ok(())
        } else {
            Err(ApplyError::NotTaken { path: path_of(), value: value_of(), found })
        }
    }
}
