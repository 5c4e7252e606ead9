//! Requests that are values of one size, sent back changed: two architectures of server, and a client that says how
//! long each took.
//!
//! The first bytes of a value say when it was sent, by the clock that all processes of a machine share. All other bytes
//! are the same number, and come back as the next one.

pub mod client;
mod connections;
mod feedback;
mod load;
mod poller;
pub mod server;
mod tally;

use std::time::Duration;

/// Bytes of the time stamp in a value.
const STAMP: usize = 8;

/// Nanoseconds by the clock that all processes of a machine share.
fn now_ns() -> u64 {
    crate::sys::monotonic().as_nanos() as u64
}

/// The change that a server makes to a value.
fn modify(value: &mut [u8]) {
    for byte in value.iter_mut().skip(STAMP) {
        *byte = byte.wrapping_add(1);
    }
}

/// Fills a request: its time stamp, and `number` in all other bytes.
fn fill(value: &mut [u8], now_ns: u64, number: u8) {
    let (stamp, rest) = value.split_at_mut(STAMP.min(value.len()));
    stamp.copy_from_slice(&now_ns.to_le_bytes()[..stamp.len()]);
    rest.fill(number);
}

/// When a request was sent.
fn stamp(value: &[u8]) -> u64 {
    value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// True if it is the answer to the request with this number.
fn is_answer(value: &[u8], number: u8) -> bool {
    value.iter().skip(STAMP).all(|byte| *byte == number.wrapping_add(1))
}

/// Seconds, as arguments have them.
fn seconds(text: &str) -> Result<Duration, String> {
    let value: f64 = text.parse().map_err(|_| format!("{text} is no number of seconds"))?;
    Duration::try_from_secs_f64(value).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_the_request_with_every_byte_changed() {
        let mut value = [0; 1024];
        fill(&mut value, 77, 255);
        assert!(!is_answer(&value, 255));
        modify(&mut value);
        assert!(is_answer(&value, 255), "numbers go round");
        assert_eq!(stamp(&value), 77, "the time comes back as it was");
        value[1023] = 9;
        assert!(!is_answer(&value, 255));
    }
}
