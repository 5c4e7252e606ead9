//! Traces of a wire: a running hash, and readable lines.

use towpath_tcp::time::Micros;
use towpath_wire::segment;

/// A 64-bit hash of everything fed to it, in order. Not cryptographic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hash(pub u64);

impl Default for Hash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hash {
    /// Adds a number.
    pub fn word(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9fb2_1c65_1e98_df25);
        self.0 = mixed ^ (mixed >> 29);
    }

    /// Adds bytes and their length. The division into calls changes the hash.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
    }
}

/// A hash of a byte stream that does not depend on its division into pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamHash {
    hash: Hash,
    /// Bytes so far.
    pub len: u64,
    partial: [u8; 8],
}

impl StreamHash {
    /// Adds the next bytes of the stream.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let at = (self.len % 8) as usize;
            let n = bytes.len().min(8 - at);
            self.partial[at..at + n].copy_from_slice(&bytes[..n]);
            self.len += n as u64;
            bytes = &bytes[n..];
            if self.len.is_multiple_of(8) {
                self.hash.word(u64::from_le_bytes(std::mem::take(&mut self.partial)));
            }
        }
    }

    /// The hash of all bytes so far.
    pub fn finish(mut self) -> u64 {
        self.hash.word(u64::from_le_bytes(self.partial));
        self.hash.word(self.len);
        self.hash.0
    }
}

/// One line about a frame, as tcpdump would write it.
pub fn line(now: Micros, name: &str, frame: &[u8]) -> String {
    let seconds = now.0 as f64 / 1e6;
    match segment::parse(frame) {
        Ok(s) => {
            let flags: String =
                "FSRPAUEC".chars().enumerate().filter(|(i, _)| s.flags & (1 << i) != 0).map(|(_, c)| c).collect();
            format!(
                "{seconds:>11.6} {name} {}:{} > {}:{} [{flags}] seq {} ack {} win {} len {} {:?}",
                s.source,
                s.source_port,
                s.destination,
                s.destination_port,
                s.seq,
                s.ack,
                s.window,
                s.payload_len,
                s.options
            )
        }
        Err(error) => format!("{seconds:>11.6} {name} {} bytes: {error:?}", frame.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::StreamHash;

    #[test]
    fn stream_hash_ignores_cuts_but_not_content() {
        let data: Vec<u8> = (0..=255).collect();
        let mut whole = StreamHash::default();
        whole.update(&data);
        let mut cut = StreamHash::default();
        for chunk in data.chunks(7) {
            cut.update(chunk);
        }
        assert_eq!(whole.finish(), cut.finish());
        let mut swapped = StreamHash::default();
        let mut other = data.clone();
        other.swap(100, 200);
        swapped.update(&other);
        assert_ne!(whole.finish(), swapped.finish());
        let mut shorter = StreamHash::default();
        shorter.update(&data[..255]);
        assert_ne!(whole.finish(), shorter.finish());
    }
}
