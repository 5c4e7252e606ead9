//! Random bits from the kernel, fetched a page at a time.

use std::fs::File;
use std::io::{self, Read};

/// A stock of random words.
pub struct Random {
    source: File,
    stock: Vec<u64>,
}

impl Random {
    /// Opens the kernel's generator.
    pub fn new() -> io::Result<Self> {
        let mut random = Self { source: File::open("/dev/urandom")?, stock: Vec::with_capacity(64) };
        random.fill()?;
        Ok(random)
    }
    fn fill(&mut self) -> io::Result<()> {
        let mut bytes = [0; 64 * 8];
        self.source.read_exact(&mut bytes)?;
        self.stock.extend(
            bytes.chunks_exact(8).map(|c| u64::from_le_bytes([c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]])),
        );
        Ok(())
    }
    /// 64 random bits.
    pub fn next(&mut self) -> u64 {
        while self.stock.is_empty() {
            // An open device should not fail. The pause keeps this loop from spinning if it does.
            if self.fill().is_err() {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
        self.stock.pop().unwrap_or_default()
    }
}
