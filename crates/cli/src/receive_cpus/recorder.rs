//! Writes observations to a file, so that `towpath cores replay` can ask the policy again.

use super::tick::Tick;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use towpath_scaling::{Trace, counted};

/// Most bytes that are written: days of ticks.
const MOST_BYTES: u64 = 64 << 20;

/// A trace that is being written.
pub struct Recorder {
    file: File,
    /// True if it only observes: then no CPU is ever reserved.
    observes: bool,
    bytes: u64,
}

impl Recorder {
    /// Opens this file and truncates it.
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

    /// Writes this tick, and the header before the first one.
    pub fn tell(&mut self, tick: &Tick) -> io::Result<()> {
        let mut text = String::new();
        if self.bytes == 0 {
            let interface = &tick.pool.interface;
            let driver = interface.driver.as_deref().unwrap_or("no driver");
            let machine = format!("{}, {} ({driver})", counted(tick.pool.machine.cpus.len(), "CPU"), interface.name);
            text = Trace::header(tick.config, towpath_rxcpus::SHORTEST.as_millis() as u64, tick.from, &machine);
        }
        let cores = if self.observes { 0 } else { tick.from };
        text += &Trace::line(cores, &tick.sensed.observation);
        if self.bytes + text.len() as u64 > MOST_BYTES {
            self.bytes = MOST_BYTES;
            return Err(io::Error::other("it is large enough, and goes on no more"));
        }
        let written = self.file.write_all(text.as_bytes());
        match written {
            Ok(()) => self.bytes += text.len() as u64,
            // A full disk may have taken a part of the line. Remove it, or `replay` would fail there.
            Err(_) => {
                let _ = self.file.set_len(self.bytes).and_then(|()| self.file.seek(SeekFrom::Start(self.bytes)));
            }
        }
        written
    }
}
