//! Sources, and what they say together.

use crate::address::Address;
use crate::datagrams::Datagrams;
use crate::memcached::Memcached;
use crate::mix::{FRESH, Mix};
use crate::polled::Polled;
use crate::prometheus::Prometheus;
use crate::reading::Reading;
use crate::redis::Redis;
use std::time::Instant;
use towpath_cores::Outcome;

/// Who can be asked what it achieves. It is asked in a thread of its own, and may take its time.
pub trait Server: Send {
    /// What it says now; or what is wrong.
    fn ask(&mut self) -> Result<Reading, String>;
}

enum Kind {
    Datagrams(Datagrams),
    Polled(Polled),
}

/// What has been heard of a source.
#[derive(Clone, Debug, PartialEq)]
pub struct Heard {
    /// The source, as it was named.
    pub source: String,
    /// What it says, if that is not long ago.
    pub outcome: Option<Outcome>,
    /// What is wrong with it.
    pub problem: Option<String>,
}

/// Whoever says what applications achieve.
#[derive(Default)]
pub struct Feedback {
    sources: Vec<(String, Kind)>,
    mix: Mix,
    heard: Vec<Heard>,
}

impl Feedback {
    /// Nobody.
    pub fn none() -> Self {
        Self::default()
    }
    /// These. `towpath` makes the one that asks a service of this machine. The password for Redis is in `REDISCLI_AUTH`, as for
    /// `redis-cli`.
    pub fn open(sources: &[Address], towpath: impl Fn() -> Box<dyn Server>) -> Result<Self, String> {
        let mut feedback = Self::none();
        for address in sources {
            let kind = match address {
                Address::Datagrams(path) => Kind::Datagrams(Datagrams::open(path)?),
                polled => Kind::Polled(Polled::start(server(polled, &towpath))?),
            };
            feedback.sources.push((address.to_string(), kind));
        }
        Ok(feedback)
    }

    /// What all of them say now, together. Never waits.
    pub fn now(&mut self) -> Option<Outcome> {
        let (mut said, now) = (Vec::new(), Instant::now());
        self.heard.clear();
        for (source, kind) in &mut self.sources {
            let (last, problem) = match kind {
                Kind::Datagrams(datagrams) => (datagrams.last(), None),
                Kind::Polled(polled) => polled.last(),
            };
            let last = last.map(|(outcome, at)| (outcome, now.saturating_duration_since(at)));
            let outcome = last.filter(|(_, age)| *age < FRESH).map(|(outcome, _)| outcome);
            self.heard.push(Heard { source: source.clone(), outcome, problem });
            said.push(last);
        }
        self.mix.of(&said)
    }
    /// What each of them said, the last time that they were asked.
    pub fn heard(&self) -> &[Heard] {
        &self.heard
    }
}

fn server(address: &Address, towpath: &impl Fn() -> Box<dyn Server>) -> Box<dyn Server> {
    match address.clone() {
        Address::Redis(endpoint) => Box::new(Redis::new(endpoint, std::env::var("REDISCLI_AUTH").ok())),
        Address::Memcached(endpoint) => Box::new(Memcached::new(endpoint)),
        Address::Prometheus { endpoint, path, selection } => Box::new(Prometheus { endpoint, path, selection }),
        Address::Towpath | Address::Datagrams(_) => towpath(),
    }
}

/// What a server says of what is wrong, fit for a line of a log.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(160).collect()
}
