//! Conversations on the control socket: how many a user may have, and lines with a deadline.
//!
//! A user who says nothing, or speaks a byte at a time, keeps a place of his own share only. A whole command, and a
//! whole answer, have one deadline each.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Most conversations of one user at a time.
const SHARE: usize = 32;
/// Most conversations of all users together. The service's own user and root are not among them.
const MOST: usize = 256;
/// Bytes read at a time.
const CHUNK: usize = 4096;

/// A user, and whether he is an operator. Root of a container has the number of one and is none.
type User = (u32, bool);

/// The conversations of each user.
#[derive(Debug, Default)]
pub struct Places(Mutex<HashMap<User, usize>>);

/// One conversation, until it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    user: User,
}

impl Places {
    fn taken(&self) -> MutexGuard<'_, HashMap<User, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a user. `None` if his share is used up, or the others have all places. An operator has his
    /// share whatever the others have.
    pub fn take(self: &Arc<Self>, uid: u32, operator: bool) -> Option<Place> {
        let mut taken = self.taken();
        let user = (uid, operator);
        let others: usize = taken.iter().filter(|((_, operator), _)| !operator).map(|(_, count)| count).sum();
        let own = taken.get(&user).copied().unwrap_or(0);
        if own >= SHARE || (!operator && others >= MOST) {
            return None;
        }
        taken.insert(user, own + 1);
        drop(taken);
        Some(Place { places: self.clone(), user })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        match taken.get_mut(&self.user) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                taken.remove(&self.user);
            }
        }
    }
}

/// Commands read from a socket and answers written to it.
#[derive(Debug)]
pub struct Lines {
    socket: OwnedFd,
    read: Vec<u8>,
}

impl Lines {
    /// Reads and writes this stream socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, read: Vec::new() }
    }

    /// The next line, with its line feed. At the end of the stream, or after `most` bytes, a line has none. `None` at
    /// the end.
    pub fn next(&mut self, most: usize, deadline: Instant) -> io::Result<Option<String>> {
        loop {
            let end = self.read.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
            if let Some(end) = end.filter(|end| *end <= most).or((self.read.len() >= most).then_some(most)) {
                return text(self.read.drain(..end).collect()).map(Some);
            }
            wait(&self.socket, PollFlags::IN, deadline)?;
            let mut bytes = [0; CHUNK];
            match rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) if self.read.is_empty() => return Ok(None),
                Ok((0, _)) => return text(std::mem::take(&mut self.read)).map(Some),
                Ok((count, _)) => self.read.extend_from_slice(&bytes[..count]),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The socket, for what is no line.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Writes all of it.
    pub fn write(&mut self, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            wait(&self.socket, PollFlags::OUT, deadline)?;
            match rustix::net::send(&self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

fn text(line: Vec<u8>) -> io::Result<String> {
    String::from_utf8(line).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Waits until the socket is ready. After the deadline it fails, ready or not: who is always ready is late, too.
fn wait(socket: &OwnedFd, what: PollFlags, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    match poll(&mut [PollFd::from_borrowed_fd(socket.as_fd(), what)], Some(&left)) {
        Ok(0) => Err(io::ErrorKind::TimedOut.into()),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    #[test]
    fn each_user_has_a_share_and_an_operator_is_not_kept_out_by_the_others() {
        let places = Arc::new(Places::default());
        let mut kept: Vec<Place> = (0..SHARE).map(|_| places.take(1000, false).unwrap()).collect();
        assert!(places.take(1000, false).is_none());
        kept.extend(
            (1001..1000 + (MOST / SHARE) as u32)
                .flat_map(|uid| vec![uid; SHARE])
                .map(|uid| places.take(uid, false).unwrap()),
        );
        assert!(places.take(2000, false).is_none(), "all places of the others are taken");
        let operator: Vec<Place> = (0..SHARE).map(|_| places.take(0, true).unwrap()).collect();
        assert!(places.take(0, true).is_none());
        drop(kept.pop());
        assert!(places.take(2000, false).is_some());
        drop((kept, operator));
        assert!(places.taken().is_empty());
    }

    #[test]
    fn a_byte_at_a_time_does_not_postpone_the_deadline() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // It goes on until the reader has given up, however long that takes.
                while !over.load(Ordering::Relaxed) && far.write_all(b"x").is_ok() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let line = Lines::new(near.into()).next(usize::MAX, Instant::now() + Duration::from_millis(100));
            over.store(true, Ordering::Relaxed);
            assert_eq!(line.unwrap_err().kind(), io::ErrorKind::TimedOut);
        });
    }

    #[test]
    fn an_answer_that_nobody_reads_has_a_deadline() {
        let (near, _far) = UnixStream::pair().unwrap();
        let written = Lines::new(near.into()).write(&vec![0; 64 << 20], Instant::now() + Duration::from_millis(100));
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_line_ends_at_its_line_feed_at_the_most_or_at_the_end() {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(b"one\ntwelve\nend").unwrap();
        drop(far);
        let mut lines = Lines::new(near.into());
        let later = Instant::now() + Duration::from_secs(60);
        let mut next = || lines.next(4, later).unwrap();
        let all: Vec<_> = std::iter::from_fn(&mut next).collect();
        assert_eq!(all, ["one\n", "twel", "ve\n", "end"]);
    }
}
