//! Finds the service to talk to.

use std::path::{Path, PathBuf};
use towpath_service::api::{self, AskError, Command};
use towpath_service::config::stack_kind::stack_name;
use towpath_service::paths::{self, PathError};

/// The choice of a service, for commands that ask one.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Which {
    /// A service of this stack instead. `kernel` is your kernel stack in this network namespace, and `kernel=NAME` the
    /// one of that name. Any other NAME is a stack of the service's configuration
    #[arg(long, value_name = "STACK", conflicts_with = "socket")]
    pub stack: Option<StackName>,
    /// The service's registration socket [default: $TOWPATH_SOCKET, else the machine's service if it admits you, else
    /// your own]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// A stack, as users name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StackName {
    /// Towpath's own.
    Fast,
    /// The kernel's, of this network namespace or of a name.
    Kernel(Option<String>),
    /// A stack that the service's configuration names.
    Configured(String),
}

impl StackName {
    /// The name, if it has one.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Kernel(name) => name.as_deref(),
            Self::Fast | Self::Configured(_) => None,
        }
    }
}

impl std::str::FromStr for StackName {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "fast" => Ok(Self::Fast),
            None if text == "kernel" => Ok(Self::Kernel(None)),
            Some(("kernel", name)) => Ok(Self::Kernel(Some(stack_name(name)?))),
            None => Ok(Self::Configured(stack_name(text)?)),
            _ => {
                Err(format!("there is no stack {text:?}; write fast, kernel, kernel=NAME or a configured stack's name"))
            }
        }
    }
}

/// Why no service answers.
#[derive(Debug, thiserror::Error)]
pub enum NoService {
    /// The default directory is not safe.
    #[error(transparent)]
    Path(#[from] PathError),
    /// It does not answer.
    #[error(transparent)]
    Ask(#[from] AskError),
}

impl Which {
    /// The socket named by flag or environment, absolute.
    pub fn named(&self) -> Option<PathBuf> {
        if self.other_stack().is_some() { None } else { self.home() }
    }

    fn home(&self) -> Option<PathBuf> {
        let variable = || std::env::var_os(paths::SOCKET_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let path = self.socket.clone().or_else(variable)?;
        Some(std::path::absolute(&path).unwrap_or(path))
    }

    /// The wanted stack, if it is not the service's own.
    pub fn other_stack(&self) -> Option<&StackName> {
        self.stack.as_ref().filter(|stack| **stack != StackName::Fast)
    }

    /// Is one stack named, and not all are meant?
    pub fn names_one(&self) -> bool {
        self.named().is_some() || self.other_stack().is_some()
    }

    /// The registration socket to ask.
    pub fn find(&self) -> Result<PathBuf, NoService> {
        if let Some(socket) = self.named() {
            return Ok(socket);
        }
        match self.other_stack() {
            Some(StackName::Configured(name)) => return Ok(self.configured(name, false)?.socket),
            Some(stack) => return Ok(paths::kernel_stack_socket(stack.name())?),
            None => {}
        }
        self.find_home()
    }

    /// Asks the service for a stack of its configuration. `start`: also starts it, and does not wait for it.
    pub fn configured(&self, name: &str, start: bool) -> Result<api::OtherStackStatus, NoService> {
        let home = match self.home() {
            Some(socket) => socket,
            None => self.find_home()?,
        };
        Ok(api::ask(&home, Command::Stack { name: name.into(), start })?)
    }

    fn find_home(&self) -> Result<PathBuf, NoService> {
        if admitted(Path::new(paths::SYSTEM_SOCKET)).is_ok() {
            return Ok(paths::SYSTEM_SOCKET.into());
        }
        Ok(paths::per_user_socket()?)
    }
}

/// Checks that a service answers there and admits us.
pub fn admitted(socket: &Path) -> Result<api::Hello, AskError> {
    api::ask(socket, Command::Hello { hold: false })
}

/// The same, and the service stays until this process has ended, also if it executes another program.
pub fn hold(socket: &Path) -> Result<api::Hello, AskError> {
    api::ask(socket, Command::Hello { hold: true })
}
