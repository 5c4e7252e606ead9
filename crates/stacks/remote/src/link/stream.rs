//! A link over a byte stream. Each write is a frame: a header, then the bytes. A frame is checked before it is carried
//! out: its number, its length, and that its bytes lie in registered memory.

use crate::link::byte_stream::{ByteStream, Plain};
use crate::link::{Arrival, Broken, Key, Link};
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;
use towpath_ring::span::Span;

/// Most payload bytes of a frame.
pub const LONGEST: usize = 64 << 10;
/// Bytes of a header.
pub const HEADER: usize = 28;
/// Bytes collected before they are sent.
const COLLECTED: usize = 128 << 10;
/// Bytes read from the stream at a time: two whole frames.
const TAKEN: usize = 2 * (HEADER + LONGEST);

/// First byte of what a peer sends that speaks TLS: an alert, a handshake (RFC 8446, 5.1). No frame begins so.
const TLS: [u8; 2] = [21, 22];
/// First byte of a write.
const WRITE: u8 = b'W';
/// First byte of a write with an immediate.
const WRITE_WITH_IMMEDIATE: u8 = b'I';

/// A link over bytes in both directions.
pub struct Stream<S = Plain> {
    stream: S,
    memories: RwLock<HashMap<Key, Span>>,
    outgoing: Mutex<Outgoing>,
    incoming: Mutex<Incoming>,
}

#[derive(Default)]
struct Outgoing {
    bytes: Vec<u8>,
    /// Number of frames until now.
    frames: u32,
}

struct Incoming {
    bytes: Vec<u8>,
    /// Bytes of `bytes` that are filled.
    filled: usize,
    frames: u32,
}

impl Stream {
    /// Over this descriptor, as it is.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self::over(Plain::new(fd)?))
    }
}

impl<S: ByteStream> Stream<S> {
    /// Over these bytes.
    pub fn over(stream: S) -> Self {
        let incoming = Mutex::new(Incoming { bytes: vec![0; TAKEN], filled: 0, frames: 0 });
        Self { stream, memories: RwLock::default(), outgoing: Mutex::default(), incoming }
    }

    fn put(&self, key: Key, offset: u64, bytes: &[u8], immediate: Option<u32>) -> Result<(), Broken> {
        let mut out = lock(&self.outgoing);
        // A write longer than a frame is several frames. The last one has the immediate.
        let mut parts = bytes.chunks(LONGEST).peekable();
        let mut at = offset;
        loop {
            let part = parts.next().unwrap_or_default();
            let last = parts.peek().is_none();
            out.frame(key, at, part, immediate.filter(|_| last));
            at = at.wrapping_add(part.len() as u64);
            if out.bytes.len() >= COLLECTED {
                self.send(&mut out)?;
            }
            if last {
                return Ok(());
            }
        }
    }

    fn send(&self, out: &mut Outgoing) -> Result<(), Broken> {
        self.stream.send(&out.bytes)?;
        out.bytes.clear();
        Ok(())
    }

    /// Carries out a frame.
    fn carry_out(&self, header: &Header, bytes: &[u8]) -> Result<Option<Arrival>, Broken> {
        let memories = self.memories.read().unwrap_or_else(PoisonError::into_inner);
        let memory = memories.get(&header.key).ok_or(Broken::Rules("there is no memory of that key"))?;
        if !memory.write(header.offset, bytes) {
            return Err(Broken::Rules("the memory is not as long as that"));
        }
        Ok(header.immediate.map(|immediate| Arrival { lane: 0, immediate }))
    }
}

impl<S: ByteStream> Link for Stream<S> {
    fn lanes(&self) -> u32 {
        1
    }
    fn register(&self, key: Key, memory: Span) -> io::Result<()> {
        self.memories.write().unwrap_or_else(PoisonError::into_inner).insert(key, memory);
        Ok(())
    }
    fn deregister(&self, key: Key) {
        self.memories.write().unwrap_or_else(PoisonError::into_inner).remove(&key);
    }
    fn write(&self, _: u32, key: Key, offset: u64, bytes: &[u8]) -> Result<(), Broken> {
        self.put(key, offset, bytes, None)
    }
    fn write_with_immediate(&self, _: u32, key: Key, offset: u64, bytes: &[u8], immediate: u32) -> Result<(), Broken> {
        self.put(key, offset, bytes, Some(immediate))
    }
    fn flush(&self) -> Result<(), Broken> {
        self.send(&mut lock(&self.outgoing))
    }
    fn wait(&self, arrivals: &mut Vec<Arrival>, timeout: Duration) -> Result<(), Broken> {
        let mut incoming = lock(&self.incoming);
        let Incoming { bytes, filled, frames } = &mut *incoming;
        match self.stream.receive(&mut bytes[*filled..], timeout)? {
            0 => return Ok(()),
            count => *filled += count,
        }
        let mut used = 0;
        while let Some(header) = Header::of(&bytes[used..*filled], *frames)? {
            let Some(part) = bytes[used + HEADER..*filled].get(..header.length) else { break };
            arrivals.extend(self.carry_out(&header, part)?);
            *frames = frames.wrapping_add(1);
            used += HEADER + header.length;
        }
        bytes.copy_within(used..*filled, 0);
        *filled -= used;
        Ok(())
    }
    fn close(&self) {
        self.stream.close();
    }
}

/// The header of a frame: kind, three zeros, number of the frame, key, length, offset, immediate; little-endian.
struct Header {
    key: Key,
    length: usize,
    offset: u64,
    immediate: Option<u32>,
}

impl Header {
    /// Reads a header; `None` if it is incomplete.
    fn of(bytes: &[u8], expected: u32) -> Result<Option<Self>, Broken> {
        // An alert is shorter than a header.
        if expected == 0 && bytes.first().is_some_and(|first| TLS.contains(first)) {
            return Err(Broken::Encrypted);
        }
        let Some(bytes) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let immediate = match bytes[..4] {
            [WRITE, 0, 0, 0] => None,
            [WRITE_WITH_IMMEDIATE, 0, 0, 0] => Some(word(24)),
            _ => return Err(Broken::Rules("no frame begins so")),
        };
        if word(4) != expected {
            return Err(Broken::Rules("a frame is missing or has come twice"));
        }
        let length = word(12) as usize;
        if length > LONGEST {
            return Err(Broken::Rules("a frame is too long"));
        }
        let offset = u64::from(word(20)) << 32 | u64::from(word(16));
        Ok(Some(Self { key: word(8), length, offset, immediate }))
    }
}

impl Outgoing {
    fn frame(&mut self, key: Key, offset: u64, bytes: &[u8], immediate: Option<u32>) {
        let kind = if immediate.is_some() { WRITE_WITH_IMMEDIATE } else { WRITE };
        self.bytes.extend([kind, 0, 0, 0]);
        let words = [self.frames, key, bytes.len() as u32, offset as u32, (offset >> 32) as u32];
        words.into_iter().chain([immediate.unwrap_or(0)]).for_each(|word| self.bytes.extend(word.to_le_bytes()));
        self.bytes.extend_from_slice(bytes);
        self.frames = self.frames.wrapping_add(1);
    }
}

/// Locks a mutex. A panic under it leaves a stream that the peer will find broken.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
