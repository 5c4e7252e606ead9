//! The text of a configuration file that a running service reads again.

use rustix::fs::{FileType, Mode, OFlags};
use std::io::{self, Read};
use std::path::Path;

/// Most bytes.
pub const MOST_TEXT: u64 = 1 << 20;

/// Reads a configuration file. It waits for nobody.
pub fn read(file: &Path) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = std::fs::File::from(rustix::fs::open(file, flags, Mode::empty())?);
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut text = String::new();
    if file.take(MOST_TEXT + 1).read_to_string(&mut text)? as u64 > MOST_TEXT {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    Ok(text)
}
