//! memcached: its command `stats`, which has no latency.

use crate::endpoint::Endpoint;
use crate::reading::{Amount, Reading};
use crate::server::{Server, plain};
use crate::stream::{Conversation, line};

/// Longest line of its answer.
const LINE: u64 = 4096;
/// Most lines.
const LINES: usize = 4096;

/// A memcached server.
pub(crate) struct Memcached {
    endpoint: Endpoint,
    conversation: Option<Conversation>,
}

impl Memcached {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, conversation: None }
    }

    fn read(&mut self) -> std::io::Result<String> {
        let conversation = match &mut self.conversation {
            Some(conversation) => conversation,
            none => none.insert(Conversation::open(&self.endpoint)?),
        };
        let (mut text, answer) = (String::new(), conversation.ask(b"stats\r\n")?);
        for _ in 0..LINES {
            let line = line(answer, LINE)?;
            if !line.starts_with("STAT ") {
                return Ok(text);
            }
            text.push_str(&line);
            text.push('\n');
        }
        Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "it says too much"))
    }
}

impl Server for Memcached {
    fn ask(&mut self) -> Result<Reading, String> {
        let answer = self.read().map_err(|error| plain(&error.to_string()));
        let reading = answer.and_then(|text| reading_of(&text).ok_or_else(|| "it does not count its commands".into()));
        if reading.is_err() {
            self.conversation = None;
        }
        reading
    }
}

/// Reads the answer to `stats`: lines such as `STAT cmd_get 17`. `None`: it counts neither gets nor sets.
pub fn reading_of(text: &str) -> Option<Reading> {
    let count = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix("STAT ")?.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|value| value.trim().parse::<u64>().ok())
    };
    let (gets, sets) = (count("cmd_get"), count("cmd_set"));
    let requests = gets.or(sets).map(|_| gets.unwrap_or(0) as f64 + sets.unwrap_or(0) as f64)?;
    Some(Reading::new(Amount::Total(requests)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gets_and_sets_are_counted() {
        let stats = "STAT pid 4\nSTAT cmd_get 17\nSTAT cmd_set 3\nSTAT cmd_flush 9\nSTAT cmd_get_x 1\n";
        assert_eq!(reading_of(stats), Some(Reading::new(Amount::Total(20.0))));
        for text in ["", "STAT cmd_get\n", "STAT cmd_get x\n", "ERROR\n", "STAT cmd_get -1\n"] {
            assert_eq!(reading_of(text), None, "{text}");
        }
    }
}
