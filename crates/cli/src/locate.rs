//! Finds the service to talk to.

use std::path::{Path, PathBuf};
use towpath_service::api::{self, AskError, Command};
use towpath_service::paths::{self, PathError};

/// Which service: for commands that ask one.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Which {
    /// The service's registration socket [default: $TOWPATH_SOCKET, else the machine's service if it admits you, else
    /// your own]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
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
        let variable = || std::env::var_os(paths::SOCKET_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let path = self.socket.clone().or_else(variable)?;
        Some(std::path::absolute(&path).unwrap_or(path))
    }

    /// The registration socket to ask.
    pub fn find(&self) -> Result<PathBuf, NoService> {
        if let Some(socket) = self.named() {
            return Ok(socket);
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
