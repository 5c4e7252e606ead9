//! What was observed, written to a file, so that `towpath cores replay` can ask the policy again.

use super::outputs::Turn;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use towpath_cores::{Trace, counted};

/// No more than so much is written: days.
const MOST_BYTES: u64 = 64 << 20;

/// A trace that is being written.
pub struct Recorder {
    file: File,
    /// Nothing is reserved, whatever is decided.
    observes: bool,
    bytes: u64,
}

impl Recorder {
    /// Into this file, which is begun anew.
    pub fn open(path: &Path, observes: bool) -> Result<Self, String> {
        let options = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o644)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path);
        options
            .map(|file| Self { file, observes, bytes: 0 })
            .map_err(|error| format!("the trace {}: {error}", path.display()))
    }

    /// Writes this tick down, and before the first the header.
    pub fn tell(&mut self, turn: &Turn) -> io::Result<()> {
        let mut text = String::new();
        if self.bytes == 0 {
            let interface = &turn.pool.interface;
            let driver = interface.driver.as_deref().unwrap_or("no driver");
            let machine = format!("{}, {} ({driver})", counted(turn.pool.machine.cpus.len(), "CPU"), interface.name);
            text = Trace::header(turn.config, towpath_anp::SHORTEST.as_millis() as u64, turn.from, &machine);
        }
        let cores = if self.observes { 0 } else { turn.from };
        text += &Trace::line(cores, &turn.sensed.observation);
        if self.bytes + text.len() as u64 > MOST_BYTES {
            self.bytes = MOST_BYTES;
            return Err(io::Error::other("it is large enough, and goes on no more"));
        }
        let written = self.file.write_all(text.as_bytes());
        match written {
            Ok(()) => self.bytes += text.len() as u64,
            // A full disk has taken a part: who replays it would stumble there.
            Err(_) => {
                let _ = self.file.set_len(self.bytes).and_then(|()| self.file.seek(SeekFrom::Start(self.bytes)));
            }
        }
        written
    }
}
