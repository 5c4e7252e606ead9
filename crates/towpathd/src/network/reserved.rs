//! Keeps the kernel from giving our ephemeral ports to its own sockets.

use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// The ports that the kernel of this network namespace does not choose by itself.
const FILE: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

/// A reserved range of ports. Dropping it ends the reservation. A program may still bind one of the ports by number.
pub struct ReservedPorts {
    file: PathBuf,
    entry: String,
}

impl ReservedPorts {
    /// Adds a range to `net.ipv4.ip_local_reserved_ports`.
    pub fn reserve(range: &RangeInclusive<u16>) -> io::Result<Self> {
        Self::reserve_in(Path::new(FILE), range)
    }

    fn reserve_in(file: &Path, range: &RangeInclusive<u16>) -> io::Result<Self> {
        let entry = format!("{}-{}", range.start(), range.end());
        let mut entries = read(file)?;
        // Our range may be there already, left by a service that was killed.
        if !entries.contains(&entry) {
            entries.push(entry.clone());
            std::fs::write(file, entries.join(","))?;
        }
        Ok(Self { file: file.into(), entry })
    }
}

fn read(file: &Path) -> io::Result<Vec<String>> {
    let text = std::fs::read_to_string(file)?;
    Ok(text.trim().split(',').filter(|entry| !entry.is_empty()).map(str::to_owned).collect())
}

impl Drop for ReservedPorts {
    fn drop(&mut self) {
        let Ok(mut entries) = read(&self.file) else { return };
        entries.retain(|entry| *entry != self.entry);
        // An empty write would leave the list as it is; a line feed empties it.
        let _ = std::fs::write(&self.file, entries.join(",") + "\n");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn adds_and_restores() {
        let file = std::env::temp_dir().join(format!("towpath-reserved-{}", std::process::id()));
        for before in ["\n", "8080,9000-9010\n", "8080,49152-60999\n"] {
            std::fs::write(&file, before).unwrap();
            let held = ReservedPorts::reserve_in(&file, &(49152..=60999)).unwrap();
            let during = std::fs::read_to_string(&file).unwrap();
            assert_eq!(during.matches("49152-60999").count(), 1);
            assert_eq!(during.contains("8080"), before.contains("8080"));
            drop(held);
            let after = std::fs::read_to_string(&file).unwrap();
            assert_eq!(after.trim(), before.trim().replace(",49152-60999", ""));
        }
        std::fs::remove_file(&file).unwrap();
    }
}
