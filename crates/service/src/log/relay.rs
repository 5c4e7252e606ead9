//! The process between a service and systemd's journal. It takes what the service's processes write to standard error.
//!
//! The process that serves may send nothing to sockets of others, and the journal's takes fields from whoever can send to it
//! (`tracing-journald` does it so). So this one does, and it passes on only what a line may have. It has every line as soon as it is written: a
//! process that dies a moment later loses none.

use super::record::Record;
use crate::descriptor_table;
use nix::sys::signal::{SigSet, Signal};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::thread::CapabilitySet;
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;

/// Where the journal takes lines with fields (systemd.io/JOURNAL_NATIVE_PROTOCOL).
const JOURNAL: &str = "/run/systemd/journal/socket";
/// Its name among processes.
const NAME: &std::ffi::CStr = c"towpathd-log";
/// Bytes of the longest line.
const MOST: usize = 256 << 10;
/// Bytes that a pipe has at most.
const PIPE: usize = 64 << 10;

/// From now on this process, and those that it forks, write to a relay on standard error. It needs a journal, and ends with
/// the last of them. The process must have one thread.
pub fn start() -> io::Result<()> {
    let journal = UnixDatagram::unbound()?;
    // It is there and takes lines. This one is none.
    journal.send_to(&[], JOURNAL)?;
    // A pipe, because whoever has an end of a socket can shut it down for all.
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
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
    let (mut text, mut part) = (Vec::new(), vec![0; PIPE]);
    loop {
        match rustix::io::read(from, &mut part[..]) {
            Ok(length) if length > 0 => text.extend_from_slice(&part[..length]),
            Err(rustix::io::Errno::INTR) => continue,
            _ => break,
        }
        for line in lines(&mut text) {
            send_line(journal, &line);
        }
    }
    send_line(journal, &text);
}

/// Takes the lines that are whole. One without an end counts as whole when it is too long.
fn lines(text: &mut Vec<u8>) -> Vec<Vec<u8>> {
    let end = text.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1);
    let end = end.or_else(|| (text.len() > MOST).then_some(text.len())).unwrap_or(0);
    let whole: Vec<u8> = text.drain(..end).collect();
    whole.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}

/// A record is one line, because JSON has no line feeds inside. Processes that write at once do not mix lines of up to PIPE_BUF.
fn send_line(journal: &UnixDatagram, line: &[u8]) {
    let text = String::from_utf8_lossy(line);
    if let Some(record) = Record::of_line(line) {
        send(journal, &record);
    } else if !text.trim().is_empty() {
        send(journal, &Record::of_text(text.trim_end()));
    }
}

/// A journal that is started again takes lines from its stream, which systemd has kept.
fn send(journal: &UnixDatagram, record: &Record) {
    if journal.send_to(&record.of_journal(), JOURNAL).is_err() {
        let _ = io::stderr().write_all(record.line().as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_however_they_come() {
        let mut text = b"{\"a\":1}\nplain\nbeg".to_vec();
        let whole = |text: &mut Vec<u8>| -> Vec<String> {
            lines(text)
                .iter()
                .map(|line| String::from_utf8_lossy(line).into_owned())
                .filter(|line| !line.is_empty())
                .collect()
        };
        assert_eq!(whole(&mut text), ["{\"a\":1}", "plain"]);
        assert!(whole(&mut text).is_empty() && text == b"beg");
        text.extend_from_slice(b"un\n");
        assert_eq!(whole(&mut text), ["begun"]);
        let mut endless = vec![b'x'; MOST + 1];
        assert_eq!((whole(&mut endless).len(), endless.len()), (1, 0));
    }
}
