//! All sources together.

use crate::address::Address;
use crate::datagrams::Datagrams;
use crate::memcached::Memcached;
use crate::mix::{FRESH, Mix};
use crate::polled::Polled;
use crate::prometheus::Prometheus;
use crate::redis::Redis;
use crate::server::Server;
use std::time::Instant;
use towpath_scaling::Outcome;

/// A source that is open.
enum SourceKind {
    Datagrams(Datagrams),
    Polled(Polled),
}

/// The last news of a source.
#[derive(Clone, Debug, PartialEq)]
pub struct Heard {
    /// The source, as it was named.
    pub source: String,
    /// Its outcome, if that is fresh.
    pub outcome: Option<Outcome>,
    /// The problem with it, if there is one.
    pub problem: Option<String>,
}

/// Everything that reports what applications achieve.
#[derive(Default)]
pub struct Feedback {
    sources: Vec<(String, SourceKind)>,
    mix: Mix,
    heard: Vec<Heard>,
}

impl Feedback {
    /// No source.
    pub fn none() -> Self {
        Self::default()
    }
    /// Opens these sources. `towpath` makes the one that asks a service of this machine. The password for Redis is in
    /// `REDISCLI_AUTH`, as for `redis-cli`.
    pub fn open(sources: &[Address], towpath: impl Fn() -> Box<dyn Server>) -> Result<Self, String> {
        let mut feedback = Self::none();
        for address in sources {
            let kind = match address {
                Address::Datagrams(path) => SourceKind::Datagrams(Datagrams::open(path)?),
                polled => SourceKind::Polled(Polled::start(server(polled, &towpath))?),
            };
            feedback.sources.push((address.to_string(), kind));
        }
        Ok(feedback)
    }

    /// The outcome of all sources now. It never waits.
    pub fn now(&mut self) -> Option<Outcome> {
        let (mut said, now) = (Vec::new(), Instant::now());
        self.heard.clear();
        for (source, kind) in &mut self.sources {
            let (last, problem) = match kind {
                SourceKind::Datagrams(datagrams) => (datagrams.last(), None),
                SourceKind::Polled(polled) => polled.last(),
            };
            let last = last.map(|(outcome, at)| (outcome, now.saturating_duration_since(at)));
            let outcome = last.filter(|(_, age)| *age < FRESH).map(|(outcome, _)| outcome);
            self.heard.push(Heard { source: source.clone(), outcome, problem });
            said.push(last);
        }
        self.mix.of(&said)
    }
    /// The news of each source at the last [`Feedback::now`].
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
