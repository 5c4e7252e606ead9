//! The process between a service and systemd's journal. It takes what the service's processes write to standard error.
//!
//! The process that serves may send nothing to sockets of others, and the journal's takes fields from whoever can send to it
//! (`tracing-journald` does it so). So this one does, and it passes on only what a line may have. It has every line as soon as it is written: a
//! process that dies a moment later loses none.

use super::record::Record;
use crate::descriptor_table;
use nix::sys::signal::{SigSet, Signal};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use rustix::thread::CapabilitySet;
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;

/// Where the journal takes lines with fields (systemd.io/JOURNAL_NATIVE_PROTOCOL).
const JOURNAL: &str = "/run/systemd/journal/socket";
/// Its name among processes.
const NAME: &std::ffi::CStr = c"towpathd-log";
/// Bytes of the longest message that is read whole.
const MOST: usize = 256 << 10;

/// From now on this process, and those that it forks, write to a relay on standard error. It needs a journal, and ends with
/// the last of them. The process must have one thread.
pub fn start() -> io::Result<()> {
    let journal = UnixDatagram::unbound()?;
    // It is there and takes lines. This one is none.
    journal.send_to(&[], JOURNAL)?;
    let flags = SocketFlags::CLOEXEC;
    let (read, write) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    // SAFETY: this process has one thread, so the child may do what it could.
    match unsafe { libc::fork() } {
        0 => {
            drop(write);
            serve(&read, &journal);
            std::process::exit(0);
        }
        ..0 => Err(io::Error::last_os_error()),
        _ => {
            // SAFETY: standard error is nobody's to close, and this leaves it open.
            let done = unsafe { libc::dup2(write.as_raw_fd(), libc::STDERR_FILENO) };
            if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
        }
    }
}

/// Passes everything on until nobody can write any more.
fn serve(from: &OwnedFd, journal: &UnixDatagram) {
    let _ = rustix::thread::set_name(NAME);
    // The service manager tells all processes to end, and the last lines are still to come.
    let mut ends = SigSet::empty();
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().for_each(|signal| ends.add(signal));
    let _ = ends.thread_block();
    // Whoever waits for the end of a pipe must not wait for this process.
    let _ = descriptor_table::separate(&[from.as_fd(), journal.as_fd()]);
    let _ = towpath_sandbox::privileges::keep_only(CapabilitySet::empty());
    let mut text = Vec::new();
    let mut message = vec![0; MOST];
    loop {
        let length = match rustix::net::recv(from, &mut message[..], RecvFlags::empty()) {
            Ok((_, length)) if length > 0 => length.min(MOST),
            Err(rustix::io::Errno::INTR) => continue,
            _ => break,
        };
        match Record::of_message(&message[..length]) {
            Some(record) => send(journal, &record),
            // A line may come in parts.
            None => {
                text.extend_from_slice(&message[..length]);
                while let Some(end) =
                    text.iter().position(|byte| *byte == b'\n').or((text.len() > MOST).then_some(MOST))
                {
                    let line: Vec<u8> = text.drain(..=end).collect();
                    send_text(journal, &line);
                }
            }
        }
    }
    send_text(journal, &text);
}

fn send_text(journal: &UnixDatagram, line: &[u8]) {
    let line = String::from_utf8_lossy(line);
    if !line.trim().is_empty() {
        send(journal, &Record::of_text(line.trim_end()));
    }
}

/// A journal that is started again takes lines from its stream, which systemd has kept.
fn send(journal: &UnixDatagram, record: &Record) {
    if journal.send_to(&record.of_journal(), JOURNAL).is_err() {
        let _ = io::stderr().write_all(record.line().as_bytes());
    }
}
