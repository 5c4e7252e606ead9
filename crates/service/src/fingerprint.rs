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

/// The generation of what is in force at the start: the time, in microseconds since 1970. Each change adds one, and takes more
/// than a microsecond. So no number comes again after a restart, with which somebody could overwrite what he has not seen.
/// The exception is a clock that was set back. JSON has such numbers exactly, as they are below 2^53 until the year 2255.
pub fn first_generation() -> u64 {
    generation_at(SystemTime::now())
}

fn generation_at(start: SystemTime) -> u64 {
    start.duration_since(UNIX_EPOCH).map_or(1, |time| time.as_micros() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_hash_is_that_of_sha256sum() {
        assert_eq!(hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn a_later_start_has_a_greater_generation_than_many_changes_before_it() {
        let start = UNIX_EPOCH + Duration::from_secs(1_796_000_000);
        let changed = generation_at(start) + 100_000;
        assert!(generation_at(start + Duration::from_secs(1)) > changed);
    }

    #[test]
    fn a_generation_is_exact_in_json() {
        // A floating-point number of JSON's usual readers has 53 bits.
        let first = first_generation();
        assert!(first > 1_700_000_000_000_000 && (first + 1_000_000) as f64 as u64 == first + 1_000_000);
    }
}
