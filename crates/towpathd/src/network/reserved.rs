//! Keeps the kernel from giving our ephemeral ports to its own sockets.

use crate::network::caretaker::Caretaker;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// The ports that the kernel of this network namespace does not choose by itself.
const FILE: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

/// A reserved range of ports. Dropping it ends the reservation. A program may still bind one of the ports by number.
pub struct ReservedPorts(Option<(Reservation, Option<Caretaker>)>);

/// An entry of the kernel's list, and a lock on the list that all who need the entry share.
pub struct Reservation {
    file: PathBuf,
    entry: String,
    lock: File,
}

impl ReservedPorts {
    /// Adds a range to `net.ipv4.ip_local_reserved_ports`.
    pub fn reserve(range: &RangeInclusive<u16>) -> io::Result<Self> {
        Ok(Self(Some((Reservation::make(Path::new(FILE), range)?, None))))
    }

    /// [`ReservedPorts::reserve`] for a process of one thread. The reservation ends with it, also if it is killed.
    pub fn reserve_and_keep(range: &RangeInclusive<u16>) -> io::Result<Self> {
        Self::reserve_and_keep_in(Path::new(FILE), range)
    }

    fn reserve_and_keep_in(file: &Path, range: &RangeInclusive<u16>) -> io::Result<Self> {
        let reservation = Reservation::make(file, range)?;
        let caretaker = Caretaker::start(&reservation.lock, || reservation.end()).inspect_err(
            |error| tracing::warn!(%error, "nobody gives the reserved ports back if this process is killed"),
        );
        Ok(Self(Some((reservation, caretaker.ok()))))
    }

    /// In a forked child: the reservation is its parent's.
    pub fn forget(mut self) {
        if let Some((_, Some(caretaker))) = self.0.take() {
            caretaker.forget();
        }
    }
}

impl Reservation {
    fn make(file: &Path, range: &RangeInclusive<u16>) -> io::Result<Self> {
        let (entry, lock) = (format!("{}-{}", range.start(), range.end()), File::open(file)?);
        let made = Self { file: file.into(), entry, lock };
        // Waits for one that is just taking the entry out.
        flock(&made.lock, FlockOperation::LockShared)?;
        let mut entries = read(file)?;
        // Our range may be there already: another service's, or left by one that was killed with its caretaker.
        if !entries.contains(&made.entry) {
            entries.push(made.entry.clone());
            std::fs::write(file, entries.join(","))?;
        }
        Ok(made)
    }

    /// Takes the entry out, unless another service needs it.
    fn end(&self) {
        if flock(&self.lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return;
        }
        let Ok(mut entries) = read(&self.file) else { return };
        entries.retain(|entry| *entry != self.entry);
        // An empty write would leave the list as it is; a line feed empties it.
        let _ = std::fs::write(&self.file, entries.join(",") + "\n");
    }
}

fn read(file: &Path) -> io::Result<Vec<String>> {
    let text = std::fs::read_to_string(file)?;
    Ok(text.trim().split(',').filter(|entry| !entry.is_empty()).map(str::to_owned).collect())
}

impl Drop for ReservedPorts {
    fn drop(&mut self) {
        if let Some((reservation, caretaker)) = self.0.take() {
            drop(caretaker);
            reservation.end();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::{Duration, Instant};

    const RANGE: RangeInclusive<u16> = 49152..=60999;

    fn list(name: &str, text: &str) -> PathBuf {
        let file = std::env::temp_dir().join(format!("towpath-reserved-{name}-{}", std::process::id()));
        std::fs::write(&file, text).unwrap();
        file
    }

    fn has(file: &Path) -> bool {
        read(file).unwrap().contains(&"49152-60999".to_owned())
    }

    #[test]
    fn adds_and_restores() {
        for before in ["\n", "8080,9000-9010\n", "8080,49152-60999\n"] {
            let file = list("restored", before);
            let held = ReservedPorts::reserve_and_keep_in(&file, &RANGE).unwrap();
            let during = std::fs::read_to_string(&file).unwrap();
            assert_eq!(during.matches("49152-60999").count(), 1);
            assert_eq!(during.contains("8080"), before.contains("8080"));
            drop(held);
            let after = std::fs::read_to_string(&file).unwrap();
            assert_eq!(after.trim(), before.trim().replace(",49152-60999", ""));
            std::fs::remove_file(&file).unwrap();
        }
    }

    #[test]
    fn the_last_of_two_services_ends_it() {
        let file = list("two", "\n");
        let one = ReservedPorts::reserve_and_keep_in(&file, &RANGE).unwrap();
        let other = ReservedPorts::reserve_and_keep_in(&file, &RANGE).unwrap();
        drop(one);
        assert!(has(&file), "the other needs it");
        drop(other);
        assert!(!has(&file));
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn it_ends_with_a_process_that_is_killed_and_not_with_its_children() {
        let file = list("killed", "8080\n");
        // SAFETY: the child makes system calls and allocates, which this libc allows after a fork.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let held = ReservedPorts::reserve_and_keep_in(&file, &RANGE).unwrap();
            // SAFETY: as above.
            if unsafe { libc::fork() } == 0 {
                held.forget();
                std::thread::sleep(Duration::from_secs(10));
                // SAFETY: nothing of the test is run.
                unsafe { libc::_exit(0) };
            }
            std::thread::sleep(Duration::from_secs(120));
            // SAFETY: nothing of the test is run.
            unsafe { libc::_exit(0) };
        }
        let eventually = |what: &str, is: &dyn Fn() -> bool| {
            let begun = Instant::now();
            while !is() {
                assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        eventually("reserved", &|| has(&file));
        std::thread::sleep(Duration::from_millis(100));
        // SAFETY: integers only; the process is this test's own.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        eventually("given back", &|| std::fs::read_to_string(&file).unwrap().trim() == "8080");
        std::fs::remove_file(&file).unwrap();
    }
}
