//! Redis, and servers with its protocol.
//!
//! `INFO commandstats` counts the calls of every command. `LATENCY HISTOGRAM` (since 7.0) has their run times: the time
//! within the server, not the client's wait. It grows when interrupts take the server's CPU, and not when requests
//! queue before the server.

use crate::buckets::Buckets;
use crate::endpoint::Endpoint;
use crate::reading::{Amount, Reading};
use crate::resp::{Reply, reply_of};
use crate::server::{Server, plain};
use crate::stream::Conversation;

/// The commands that we ask ourselves. They do not count.
const OWN: [&str; 4] = ["info", "latency", "auth", "hello"];
/// Redis counts whole µs, so shorter times are mostly rounding.
const SHORTEST_US: f64 = 10.0;

/// A Redis server.
pub(crate) struct Redis {
    endpoint: Endpoint,
    password: Option<String>,
    conversation: Option<Conversation>,
}

impl Redis {
    pub(crate) fn new(endpoint: Endpoint, password: Option<String>) -> Self {
        Self { endpoint, password, conversation: None }
    }

    fn command(&mut self, words: &[&str]) -> Result<Reply, String> {
        let conversation = match &mut self.conversation {
            Some(conversation) => conversation,
            none => none.insert(Conversation::open(&self.endpoint).map_err(|error| plain(&error.to_string()))?),
        };
        let arguments: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        let question = format!("*{}\r\n{arguments}", words.len());
        let answer = conversation.ask(question.as_bytes()).and_then(reply_of);
        answer.map_err(|error| plain(&error.to_string()))
    }

    fn read(&mut self) -> Result<Reading, String> {
        if let (None, Some(password)) = (&self.conversation, self.password.clone()) {
            text(self.command(&["AUTH", &password])?)?;
        }
        let info = text(self.command(&["INFO", "commandstats"])?)?;
        let mut reading = reading_of(&info).ok_or("it does not count its commands")?;
        // Redis before 7.0 answers with an error, and so does one that forbids it. Then there are no buckets.
        reading.buckets = histogram_of(&self.command(&["LATENCY", "HISTOGRAM"])?);
        Ok(reading)
    }
}

impl Server for Redis {
    fn ask(&mut self) -> Result<Reading, String> {
        let reading = self.read();
        if reading.is_err() {
            // The rest of this answer must not be read as the next one.
            self.conversation = None;
        }
        reading
    }
}

fn text(reply: Reply) -> Result<String, String> {
    match reply {
        Reply::Text(text) => Ok(text),
        Reply::Error(error) => Err(plain(&error)),
        _ => Err("an answer that was not asked for".into()),
    }
}

/// True if it is a command that we ask ourselves, or a subcommand of one.
fn is_own(command: &str) -> bool {
    OWN.iter().any(|own| command.split('|').next().is_some_and(|name| name.eq_ignore_ascii_case(own)))
}

/// Reads the answer to `INFO commandstats`: lines such as `cmdstat_get:calls=21,usec=175,usec_per_call=8.33,...`.
/// `None`: it is another text.
pub fn reading_of(info: &str) -> Option<Reading> {
    info.lines().find(|line| line.trim().eq_ignore_ascii_case("# Commandstats"))?;
    let (mut calls, mut us) = (0.0, 0.0);
    for line in info.lines() {
        let Some((name, fields)) = line.strip_prefix("cmdstat_").and_then(|line| line.split_once(':')) else {
            continue;
        };
        let field = |wanted: &str| {
            let value = fields.split(',').find_map(|field| field.strip_prefix(wanted)?.strip_prefix('='));
            value.and_then(|value| value.trim().parse::<u64>().ok())
        };
        if let (false, Some(count)) = (is_own(name), field("calls")) {
            calls += count as f64;
            us += field("usec").unwrap_or(0) as f64;
        }
    }
    Some(Reading { spent: Some((us, calls)), shortest_us: SHORTEST_US, ..Reading::new(Amount::Total(calls)) })
}

/// Reads the answer to `LATENCY HISTOGRAM`: for each command `calls`, and `histogram_usec` with pairs of a bound and
/// all calls up to it.
pub fn histogram_of(reply: &Reply) -> Buckets {
    let mut all = Buckets::default();
    let Reply::Many(commands) = reply else { return all };
    for command in commands.chunks_exact(2) {
        let [Reply::Text(name), Reply::Many(fields)] = command else { continue };
        let counts = fields.chunks_exact(2).find_map(|field| match field {
            [Reply::Text(name), Reply::Many(counts)] if name == "histogram_usec" => Some(counts),
            _ => None,
        });
        let mut below = 0.0;
        for pair in counts.filter(|_| !is_own(name)).into_iter().flat_map(|counts| counts.chunks_exact(2)) {
            let [Reply::Number(bound), Reply::Number(count)] = pair else { break };
            let (bound, count) = (*bound as f64, *count as f64);
            // Redis lists only buckets with calls. Each bound is twice the one below it.
            all.add(bound / 2.0, 0.0);
            all.add(bound, count - below);
            below = count;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::Duration;

    fn info(get: u64, us: u64) -> Reading {
        reading_of(&format!(
            "# Commandstats\r\ncmdstat_get:calls={get},usec={us},usec_per_call=1.00,rejected_calls=0\r\n\
             cmdstat_set:calls=100,usec=700\r\ncmdstat_info:calls={get},usec=999999\r\ncmdstat_latency|histogram:calls=9,usec=9\r\n"
        ))
        .unwrap()
    }

    #[test]
    fn calls_count_but_not_those_of_who_asks() {
        let outcome = info(3000, 91_000).since(&info(1000, 1000), Duration::from_secs(2)).unwrap();
        assert_eq!((outcome.throughput, outcome.latency_us), (1000.0, 45.0));
        let fast = info(3000, 3000).since(&info(1000, 1000), Duration::from_secs(1)).unwrap();
        assert_eq!(fast.latency_us, 0.0, "1 µs is mostly rounding");
        assert_eq!(reading_of("# Server\r\nredis_version:7.0.15\r\n"), None);
        assert_eq!(reading_of("-NOAUTH"), None);
    }

    #[test]
    fn the_histograms_of_all_commands_are_one() {
        let histogram = |counts: &str| {
            let bytes = format!(
                "*4\r\n$3\r\nget\r\n*4\r\n$5\r\ncalls\r\n:100\r\n$14\r\nhistogram_usec\r\n{counts}$4\r\ninfo\r\n*2\r\n$14\r\nhistogram_usec\r\n*2\r\n:9000\r\n:5\r\n"
            );
            histogram_of(&reply_of(&mut bytes.as_bytes()).unwrap())
        };
        let (before, after) = (histogram("*2\r\n:16\r\n:100\r\n"), histogram("*4\r\n:16\r\n:190\r\n:33\r\n:200\r\n"));
        let p90 = after.since(&before).unwrap().quantile(0.9);
        assert_eq!(p90, Some(16.0), "of the hundred calls since, ninety");
        assert!(after.since(&before).unwrap().quantile(0.99).is_some_and(|p99| p99 > 31.0 && p99 < 33.0));
        assert!(histogram_of(&Reply::Error("ERR unknown command".into())).is_empty());
    }
}
