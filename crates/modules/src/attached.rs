//! Modules that are attached to a hook, and what became of their frames.

use crate::budget::{Tenant, Tenants};
use crate::module::Module;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where modules stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Frames that were received, before the stack has them.
    Ingress,
    /// Frames that the stack sends.
    Egress,
}

/// Names of the counts, in their order.
pub const COUNTS: [&str; 8] = ["runs", "pass", "drop", "tx", "redirect", "aborted", "faults", "traced"];

/// What became of a module's frames, by flow group. Each row has one writer at a time.
#[derive(Debug)]
pub struct Counts(Box<[Row]>);

/// A row has its cache lines for itself.
#[repr(align(64))]
#[derive(Debug, Default)]
struct Row([AtomicU64; COUNTS.len()]);

impl Row {
    #[inline]
    fn add(&self, at: usize, by: u64) {
        self.0[at].store(self.0[at].load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }
}

impl Counts {
    /// Zeros, for this many flow groups.
    pub fn new(groups: usize) -> Arc<Self> {
        Arc::new(Self((0..groups).map(|_| Row::default()).collect()))
    }
    /// The sums, in the order of [`COUNTS`].
    pub fn sums(&self) -> [u64; COUNTS.len()] {
        std::array::from_fn(|at| self.0.iter().map(|row| row.0[at].load(Ordering::Relaxed)).sum())
    }
    /// Adds to one of a flow group.
    pub fn add(&self, group: usize, at: usize, by: u64) {
        if let Some(row) = self.0.get(group) {
            row.add(at, by);
        }
    }
    /// Adds runs that let their frames pass.
    #[inline]
    pub fn passed(&self, group: usize, by: u64) {
        if let Some(row) = self.0.get(group) {
            row.add(0, by);
            row.add(1, by);
        }
    }
}

/// A module on a hook.
#[derive(Clone, Debug)]
pub struct Attached {
    /// The module.
    pub module: Arc<Module>,
    /// What became of its frames.
    pub counts: Arc<Counts>,
    /// Who is charged for its time.
    pub tenant: Arc<Tenant>,
    /// The bit of its selector: it has only frames of those that the selector chooses. `None`: it has all frames.
    pub selector: Option<u32>,
    /// It also has the frames that are made of direct connections, and this counts those that could not be made. Of its maps and
    /// its counts they have the last row. `None`: it has none.
    pub direct: Option<Arc<AtomicU64>>,
}

/// All modules of both hooks, in the order in which they run.
#[derive(Clone, Debug, Default)]
pub struct Chains {
    /// Frames that were received.
    pub ingress: Vec<Attached>,
    /// Frames that are sent.
    pub egress: Vec<Attached>,
}

impl Chains {
    /// Is there no module?
    pub fn is_empty(&self) -> bool {
        self.ingress.is_empty() && self.egress.is_empty()
    }
    /// The modules that also have the frames of direct connections.
    pub fn direct(&self) -> impl Iterator<Item = &Attached> {
        self.ingress.iter().chain(&self.egress).filter(|one| one.direct.is_some())
    }
    /// The tenants that have limits.
    pub fn limited(&self) -> Tenants {
        Tenants::of(self.ingress.iter().chain(&self.egress).map(|one| &one.tenant))
    }
    /// Does a module look at what is known of a frame?
    pub fn read_meta(&self) -> bool {
        self.ingress.iter().chain(&self.egress).any(|one| one.module.reads_meta())
    }
    /// Has a module a selector?
    pub fn select(&self) -> bool {
        self.ingress.iter().chain(&self.egress).any(|one| one.selector.is_some())
    }
}
