//! How a service gets its stack. `towpathd` implements [`StackFactory`]; this crate knows no stack by name.

use crate::api::InterfaceStatus;
use crate::config::{Config, ConfigError};
use std::error::Error;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use towpath_broker::Privileges;
use towpath_ring::Geometry;
use towpath_runtime::{AdmissionPolicy, Stack};

/// Builds the stack that a configuration names.
pub trait StackFactory {
    /// The number of the stack's flow groups.
    fn flow_groups(&self, config: &Config) -> usize;
    /// What the broker does for the worker.
    fn privileges(&self, config: &Config) -> Box<dyn Privileges>;
    /// Starts the stack with regions of these sizes. `guard` makes a guard; a stack of several threads needs several.
    /// `before_threads` is called once all privileged work is done, before the first thread is started.
    fn start(
        &self,
        config: &Config,
        geometry: Geometry,
        guard: &dyn Fn() -> Box<dyn AdmissionPolicy>,
        before_threads: &dyn Fn(),
    ) -> Result<StartedStack, StackError>;
}

/// The name of the port by which a stack's clients reach each other.
pub const MEMORY_PORT: &str = "memory";

/// A stack that runs.
pub struct StartedStack {
    /// The stack.
    pub stack: Box<dyn Stack>,
    /// Notices changes of addresses, routes and neighbours, if the stack must know them.
    pub network: Option<Box<dyn NetworkWatcher>>,
    /// The served interfaces, if there are any. They are dropped after the stack has stopped, because the stack uses their
    /// ports.
    pub interfaces: Option<Box<dyn Send>>,
    /// The state of each of them.
    pub health: Vec<Arc<dyn ServedInterface>>,
    /// Whose a flow group's ports are: an interface's, by its place in `health`, or the memory's ([`MEMORY_PORT`]).
    pub ports: Vec<Option<usize>>,
}

/// An interface that a stack serves.
pub trait ServedInterface: Send + Sync + fmt::Debug {
    /// Its name now; of an interface that has gone, the configured one.
    fn name(&self) -> String;
    /// Its state now.
    fn status(&self) -> InterfaceStatus;
    /// The pattern whose place it is.
    fn pattern(&self) -> Option<&str> {
        None
    }
    /// The pattern that has chosen none for this place. `None`: an interface has it, or it is one interface's own.
    fn waits_for(&self) -> Option<&str> {
        None
    }
}

/// The state of all interfaces. A pattern that has chosen none at all has one entry.
pub fn states(all: &[Arc<dyn ServedInterface>]) -> Vec<InterfaceStatus> {
    let has_chosen = |pattern: &str| all.iter().any(|one| one.waits_for().is_none() && one.pattern() == Some(pattern));
    let mut waiting = Vec::new();
    let mut shown = Vec::new();
    for one in all {
        match one.waits_for() {
            Some(pattern) if waiting.contains(&pattern) || has_chosen(pattern) => continue,
            Some(pattern) => waiting.push(pattern),
            None => {}
        }
        shown.push(one.status());
    }
    shown
}

impl StartedStack {
    /// A stack that needs no network watcher and no interface.
    pub fn alone(stack: impl Stack + 'static) -> Self {
        Self { stack: Box::new(stack), network: None, interfaces: None, health: Vec::new(), ports: vec![None] }
    }
}

/// Notices changes of addresses, routes and neighbours.
pub trait NetworkWatcher: Send {
    /// Waits until `stop` is readable. Calls `changed` after each change.
    fn run(&mut self, stop: BorrowedFd<'_>, changed: &dyn Fn()) -> io::Result<()>;
}

/// Why a stack did not start. The text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The stack's own error.
    #[error(transparent)]
    Stack(Box<dyn Error + Send + Sync>),
    /// Another service has what the stack needs.
    #[error(transparent)]
    Taken(Box<dyn Error + Send + Sync>),
    /// A step failed.
    #[error("{doing}: {source}")]
    Io {
        /// The step.
        doing: &'static str,
        /// The error.
        source: io::Error,
    },
}

impl StackError {
    /// Wraps a stack's own error.
    pub fn of(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Stack(Box::new(error))
    }
    /// Wraps the error of a stack whose resources another service has.
    pub fn taken(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Taken(Box::new(error))
    }
    /// Wraps the error of a step.
    pub fn doing(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, source }
    }
}
