//! Finds the service to talk to.

use std::path::{Path, PathBuf};
use towpath_service::api::{self, AskError, Command};
use towpath_service::paths::{self, PathError};

/// Which service: for commands that ask one.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Which {
    /// A service of this stack instead: `kernel`, your kernel stack in this network namespace, or `kernel=NAME`, the one of that name
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
}

impl StackName {
    /// The name, if it has one.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Kernel(name) => name.as_deref(),
            Self::Fast => None,
        }
    }
}

/// Can a stack be called so? It becomes part of a file's name.
pub fn stack_name(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if !text.is_empty() && text.len() <= 32 && text.chars().all(good) {
        return Ok(text.into());
    }
    Err(format!("{text:?} is no name for a stack: up to 32 of a-z A-Z 0-9 - _ ."))
}

impl std::str::FromStr for StackName {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "fast" => Ok(Self::Fast),
            None if text == "kernel" => Ok(Self::Kernel(None)),
            Some(("kernel", name)) => Ok(Self::Kernel(Some(stack_name(name)?))),
            _ => Err(format!("there is no stack {text:?}; write fast, kernel or kernel=NAME")),
        }
    }
}

/// Why there is none.
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
        if self.kernel_stack().is_some() {
            return None;
        }
        let variable = || std::env::var_os(paths::SOCKET_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let path = self.socket.clone().or_else(variable)?;
        Some(std::path::absolute(&path).unwrap_or(path))
    }

    /// The kernel stack that is asked for.
    pub fn kernel_stack(&self) -> Option<&StackName> {
        self.stack.as_ref().filter(|stack| **stack != StackName::Fast)
    }

    /// The registration socket to ask.
    pub fn find(&self) -> Result<PathBuf, NoService> {
        if let Some(socket) = self.named() {
            return Ok(socket);
        }
        if let Some(stack) = self.kernel_stack() {
            return Ok(paths::kernel_stack_socket(stack.name())?);
        }
        if admitted(Path::new(paths::SYSTEM_SOCKET)).is_ok() {
            return Ok(paths::SYSTEM_SOCKET.into());
        }
        Ok(paths::per_user_socket()?)
    }
}

/// Does a service answer there, and does it admit us?
pub fn admitted(socket: &Path) -> Result<api::Hello, AskError> {
    api::ask(socket, Command::Hello { hold: false })
}

/// The same, and the service shall stay until this process, whatever program it becomes, has ended.
pub fn hold(socket: &Path) -> Result<api::Hello, AskError> {
    api::ask(socket, Command::Hello { hold: true })
}
