//! Errors.

use std::io;

/// An error as Linux numbers it.
pub(crate) fn errno(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}
