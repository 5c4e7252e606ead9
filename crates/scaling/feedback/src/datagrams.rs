//! A socket to which applications send lines.

use crate::line::outcome_of;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Instant;
use towpath_scaling::Outcome;

/// Most datagrams of applications that are read in a tick.
const MOST: u32 = 1024;

/// A socket to which applications send lines.
pub(crate) struct Datagrams {
    socket: UnixDatagram,
    path: PathBuf,
    last: Option<(Outcome, Instant)>,
}

impl Datagrams {
    /// Makes the socket.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("the feedback socket {}: {error}", path.display());
        // A killed process leaves its socket behind. A connection to that is refused, and one to a file is too: only a
        // socket is removed.
        let refused = |error: std::io::Error| error.kind() == ErrorKind::ConnectionRefused;
        let nobody = UnixDatagram::unbound().and_then(|socket| socket.connect(path)).is_err_and(refused);
        if nobody && std::fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_socket()) {
            std::fs::remove_file(path).map_err(failed)?;
        }
        let socket = UnixDatagram::bind(path).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        Ok(Self { socket, path: path.to_owned(), last: None })
    }

    /// The last outcome that was sent, and when.
    pub(crate) fn last(&mut self) -> Option<(Outcome, Instant)> {
        let mut line = [0; 512];
        // Datagrams beyond the limit wait for the next tick.
        for _ in 0..MOST {
            let Ok(len) = self.socket.recv(&mut line) else { break };
            let said = std::str::from_utf8(&line[..len]).ok().and_then(outcome_of);
            self.last = said.map(|said| (said, Instant::now())).or(self.last);
        }
        self.last
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_socket_that_was_left_is_made_anew_and_no_file_is_taken_for_one() {
        let folder = std::env::temp_dir().join(format!("towpath-datagrams-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (left, file, link) = (folder.join("left"), folder.join("file"), folder.join("link"));
        drop(UnixDatagram::bind(&left).unwrap());
        let open = Datagrams::open(&left).unwrap();
        assert!(Datagrams::open(&left).is_err(), "somebody listens there");
        drop(open);
        assert!(!left.exists());
        std::fs::write(&file, "text").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for path in [&file, &link] {
            assert!(Datagrams::open(path).is_err());
            assert_eq!(std::fs::read_to_string(path).unwrap(), "text");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
