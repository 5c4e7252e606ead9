//! What tells one file from another: a hash of its text, and a number that grows with each change.

use ring::digest::{SHA256, digest};
use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// The SHA-256 of a text, as `sha256sum` shows it.
pub fn hash(text: &str) -> String {
    digest(&SHA256, text.as_bytes()).as_ref().iter().fold(String::new(), |mut digits, byte| {
        // Memory takes everything.
        let _ = write!(digits, "{byte:02x}");
        digits
    })
}

/// The generation of what is in force at the start: the time, in seconds since 1970. Each change adds one. So no number comes
/// again after a restart, with which somebody could overwrite what he has not seen.
pub fn first_generation() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_that_of_sha256sum() {
        assert_eq!(hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn a_later_start_has_a_greater_generation_unless_it_is_of_the_same_second() {
        let first = first_generation();
        assert!(first > 1_700_000_000 && first_generation() >= first);
    }
}
