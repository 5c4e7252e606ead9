//! Where a capture is written. A reader that does not read does not keep the command from ending.

use crate::private_file;
use nix::sys::signalfd::SignalFd;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::FileType;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::Path;

/// A pipe that is ready to be written takes so many bytes without waiting (`PIPE_BUF`).
const PIECE: usize = 4096;

/// The file, or standard output.
pub struct Output<'a> {
    file: OwnedFd,
    /// It takes all at once, and nobody has to read.
    is_regular: bool,
    signals: &'a SignalFd,
}

impl<'a> Output<'a> {
    /// Opens the file, a new one that only this user may read: it has what programs say. `-` is standard output.
    pub fn open(path: &Path, signals: &'a SignalFd) -> Result<Self, String> {
        if path.as_os_str() != "-" {
            let file = private_file::open(path).map_err(|why| format!("{}: {why}", path.display()))?;
            return Ok(Self::over(file.into(), signals));
        }
        if io::stdout().is_terminal() {
            return Err(
                "standard output is a terminal: name a file (-w FILE), or a reader (| wireshark -k -i -)".into()
            );
        }
        let file = io::stdout().as_fd().try_clone_to_owned().map_err(|why| why.to_string())?;
        Ok(Self::over(file, signals))
    }

    fn over(file: OwnedFd, signals: &'a SignalFd) -> Self {
        let is_regular =
            rustix::fs::fstat(&file).is_ok_and(|file| FileType::from_raw_mode(file.st_mode) == FileType::RegularFile);
        Self { file, is_regular, signals }
    }
}

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_regular {
            return Ok(rustix::io::write(&self.file, bytes)?);
        }
        let mut ready = [
            PollFd::from_borrowed_fd(self.file.as_fd(), PollFlags::OUT),
            PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
        ];
        poll(&mut ready, None)?;
        // Only a signal: nobody reads, and nobody waits for that.
        if ready[0].revents().is_empty() {
            return Err(ErrorKind::BrokenPipe.into());
        }
        Ok(rustix::io::write(&self.file, &bytes[..bytes.len().min(PIECE)])?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
